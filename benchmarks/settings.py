"""The settings of the published figures, whatever the library's present defaults are.

Tests make their configurations from them too (`tests/helpers/ppo_settings.py`).
"""

from typing import Any

from hybridppo import PPOConfig

CLEANRL: dict[str, Any] = {
    "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "num_epochs": 4, "learning_rate": 2.5e-4,
    "anneal_learning_rate": True, "clip_range_vf": 0.2, "entropy_coef": 0.01, "normalize_observations": False,
    "normalize_rewards": False,
}  # fmt: skip
"""CleanRL's settings for classic control, as fields of `PPOConfig`."""


def cleanrl(**changes: Any) -> PPOConfig:
    """`CLEANRL` with these changes."""
    return PPOConfig(**{**CLEANRL, **changes})
