"""Every kind of network that a configuration can ask for. To add one, add a line to `KINDS`."""

from typing import Any

import gymnasium as gym
import pytest

KINDS: dict[str, dict[str, Any]] = {
    "normalised": {"normalize_observations": True, "normalize_rewards": True},
    "shared trunk": {"shared_trunk": True},
    "torch's first weights": {"orthogonal_init": False, "log_std_init": -1.0},
    "compiled": {"compiled_updates": True, "critic_hidden_sizes": (24, 8)},
    "a pool": {"pool_size": 3},
    "a pool, normalised": {
        "pool_size": 2, "normalize_observations": True, "normalize_rewards": True, "critic_hidden_sizes": (24,)
    },
    "lstm": {"recurrent": "lstm", "recurrent_size": 8, "sequence_length": 5},
    "gru": {"recurrent": "gru", "recurrent_size": 8, "sequence_length": 16},
    "lstm, normalised": {
        "recurrent": "lstm", "recurrent_size": 8, "sequence_length": 8, "normalize_observations": True,
        "normalize_rewards": True, "critic_hidden_sizes": (),
    },
    "state-dependent exploration": {"use_sde": True, "sde_sample_freq": 5, "log_std_init": -1.0},
    "state-dependent exploration, a trunk, normalised": {
        "use_sde": True, "shared_trunk": True, "normalize_observations": True
    },
    "state-dependent exploration, squashed": {"use_sde": True, "sde_sample_freq": 3, "squash_actions": True},
}  # fmt: skip
"""For each name, what differs from the defaults."""

NEED_EXTRAS = ("compiled",)
"""Kinds that need the packages of an extra; they are tested with those."""
OF_THE_DEFAULT_TESTS = (
    "shared trunk", "gru", "lstm, normalised", "a pool, normalised", "state-dependent exploration"
)  # fmt: skip
"""Kinds that together have everything that the others have; the slow tests run those."""


def marks_of(kind: str) -> list[pytest.MarkDecorator]:
    """The marks of a kind's tests."""
    if kind in NEED_EXTRAS:
        return [pytest.mark.extras]
    return [] if kind in OF_THE_DEFAULT_TESTS else [pytest.mark.slow]


def acts_by_numbers(kind: str) -> bool:
    """Whether a kind needs actions of a Box."""
    return "use_sde" in KINDS[kind]


def short_pendulum() -> gym.Env[Any, Any]:
    """Episodes that are all cut short, within a rollout."""
    return gym.make("Pendulum-v1", max_episode_steps=11)


def env_of(kind: str) -> Any:
    """An environment with short episodes in which a kind acts."""
    return short_pendulum if acts_by_numbers(kind) else "CartPole-v1"
