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
    EnvError,
    HybridPPOError,
    OutOfMemoryError,
    RunDirectoryError,
    TrainingError,
)

if TYPE_CHECKING:
    from hybridppo.agents.ppo import PPO
    from hybridppo.agents.ppo_config import PPOConfig
    from hybridppo.auto import Auto
    from hybridppo.placement import Migrating, Mirrored, Placement, SingleDevice
    from hybridppo.training import TrainResult, evaluate, load, resume, train

__all__ = [
    "PPO",
    "Auto",
    "CheckpointError",
    "ConfigurationError",
    "DeviceError",
    "EnvError",
    "HybridPPOError",
    "Migrating",
    "Mirrored",
    "OutOfMemoryError",
    "PPOConfig",
    "Placement",
    "RunDirectoryError",
    "SingleDevice",
    "TrainResult",
    "TrainingError",
    "__version__",
    "evaluate",
    "load",
    "resume",
    "train",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "PPO": "hybridppo.agents.ppo",
        "PPOConfig": "hybridppo.agents.ppo_config",
        "Auto": "hybridppo.auto",
        **dict.fromkeys(("Migrating", "Mirrored", "Placement", "SingleDevice"), "hybridppo.placement"),
        **dict.fromkeys(("TrainResult", "evaluate", "load", "resume", "train"), "hybridppo.training"),
    },
)


def __dir__() -> list[str]:
    return __all__
