"""PPO's configuration in tests: small, and with every part of the loss at work, where the defaults have some idle."""

from typing import Any

from hybridppo import PPOConfig

EVERY_PART: dict[str, Any] = {
    "num_envs": 4, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4, "learning_rate": 2.5e-4,
    "anneal_learning_rate": True, "clip_range_vf": 0.2, "entropy_coef": 0.01, "normalize_observations": False,
    "normalize_rewards": False,
}  # fmt: skip
"""CleanRL's settings of classic control."""


def ppo_config(**changes: Any) -> PPOConfig:
    """`EVERY_PART`, but for what differs."""
    return PPOConfig(**{**EVERY_PART, **changes})
