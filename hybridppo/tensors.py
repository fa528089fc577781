"""Batched environments, and wrappers that make them from simulators.

    env = hybridppo.tensors.Playground("CartpoleBalance", num_envs=1024)
    result = hybridppo.train(env, total_steps=10_000_000, config=hybridppo.PPOConfig(num_envs=1024))

Each is imported when it is used.
"""

from hybridppo._lazy import lazy_attributes

__all__, __getattr__ = lazy_attributes(__name__)
