"""A PPO library for PyTorch. It finds the fastest split of sampling and learning between your CPU and GPU.

import hybridppo
result = hybridppo.train("CartPole-v1", total_steps=100_000)
"""

from hybridppo import tensors as tensors
from hybridppo._lazy import lazy_attributes
from hybridppo._version import __version__ as __version__

__all__, __getattr__ = lazy_attributes(__name__)


def __dir__() -> list[str]:
    return __all__
