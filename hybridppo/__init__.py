"""PPO that samples on the CPU and learns on the GPU; the placement decides which half runs where.

import hybridppo
result = hybridppo.train("CartPole-v1", total_steps=100_000)
"""

from hybridppo._version import __version__
from hybridppo.agents import PPO, PPOConfig
from hybridppo.errors import (
    CheckpointError,
    ConfigurationError,
    DeviceError,
    EnvError,
    HybridPPOError,
    RunDirectoryError,
)
from hybridppo.placement import Auto, Migrating, Mirrored, Placement, SingleDevice
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
    "PPOConfig",
    "Placement",
    "RunDirectoryError",
    "SingleDevice",
    "TrainResult",
    "__version__",
    "evaluate",
    "load",
    "resume",
    "train",
]
