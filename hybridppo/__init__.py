"""PPO that samples on the CPU and learns on the GPU; the placement decides which half runs where.

import hybridppo
result = hybridppo.train("CartPole-v1", total_steps=100_000)
"""

from typing import TYPE_CHECKING

from hybridppo._lazy import lazy_attributes
from hybridppo._version import __version__
from hybridppo.errors import (
    CheckpointError,
    ConfigurationError,
    DeviceError,
    DistributionError,
    EnvError,
    HybridPPOError,
    OutOfMemoryError,
    RunDirectoryError,
    TrainingError,
)

if TYPE_CHECKING:
    from hybridppo.agents.ppo.config import PPOConfig
    from hybridppo.agents.ppo.ppo import PPO
    from hybridppo.checking import check_env
    from hybridppo.distribution.policies import (
        Central,
        Environments,
        GPUOnly,
        Local,
        MultiLearner,
        SingleLearnerCoarse,
        SingleLearnerFine,
    )
    from hybridppo.evaluating import evaluate, evaluate_agent
    from hybridppo.loading import load
    from hybridppo.placements.auto.auto import Auto
    from hybridppo.placements.base import Placement
    from hybridppo.placements.migrating import Migrating
    from hybridppo.placements.mirrored import Mirrored
    from hybridppo.placements.single_device import SingleDevice
    from hybridppo.resuming import resume
    from hybridppo.training import TrainResult, train

__all__ = [
    "PPO",
    "Auto",
    "Central",
    "CheckpointError",
    "ConfigurationError",
    "DeviceError",
    "DistributionError",
    "EnvError",
    "Environments",
    "GPUOnly",
    "HybridPPOError",
    "Local",
    "Migrating",
    "Mirrored",
    "MultiLearner",
    "OutOfMemoryError",
    "PPOConfig",
    "Placement",
    "RunDirectoryError",
    "SingleDevice",
    "SingleLearnerCoarse",
    "SingleLearnerFine",
    "TrainResult",
    "TrainingError",
    "__version__",
    "check_env",
    "evaluate",
    "evaluate_agent",
    "load",
    "resume",
    "train",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "PPO": "hybridppo.agents.ppo.ppo",
        "PPOConfig": "hybridppo.agents.ppo.config",
        "Auto": "hybridppo.placements.auto.auto",
        "Migrating": "hybridppo.placements.migrating",
        "Mirrored": "hybridppo.placements.mirrored",
        "Placement": "hybridppo.placements.base",
        "SingleDevice": "hybridppo.placements.single_device",
        **dict.fromkeys(
            (
                "Central",
                "Environments",
                "GPUOnly",
                "Local",
                "MultiLearner",
                "SingleLearnerCoarse",
                "SingleLearnerFine",
            ),
            "hybridppo.distribution.policies",
        ),
        **dict.fromkeys(("TrainResult", "train"), "hybridppo.training"),
        **dict.fromkeys(("evaluate", "evaluate_agent"), "hybridppo.evaluating"),
        "check_env": "hybridppo.checking",
        "load": "hybridppo.loading",
        "resume": "hybridppo.resuming",
    },
)


def __dir__() -> list[str]:
    return __all__
