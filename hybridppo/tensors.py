"""Environments of tensors, and wrappers that make them from simulators.

    env = hybridppo.tensors.Playground("CartpoleBalance", num_envs=1024)
    result = hybridppo.train(env, total_steps=10_000_000, config=hybridppo.PPOConfig(num_envs=1024))

Each is imported when it is used.
"""

from typing import TYPE_CHECKING

from hybridppo._lazy import lazy_attributes

if TYPE_CHECKING:
    from hybridppo.environments.from_jax import Brax as Brax
    from hybridppo.environments.from_jax import Playground as Playground
    from hybridppo.environments.simulators import IsaacLab as IsaacLab
    from hybridppo.environments.simulators import Mjlab as Mjlab
    from hybridppo.environments.simulators import RslRlVecEnv as RslRlVecEnv
    from hybridppo.environments.tensors import TensorEnv as TensorEnv
    from hybridppo.environments.torch_cartpole import TorchCartPole as TorchCartPole

_NAMES = {
    "hybridppo.environments.from_jax": "Brax Playground",
    "hybridppo.environments.simulators": "IsaacLab Mjlab RslRlVecEnv",
    "hybridppo.environments.tensors": "TensorEnv",
    "hybridppo.environments.torch_cartpole": "TorchCartPole",
}
__all__, __getattr__ = lazy_attributes(__name__, _NAMES)
