"""The advice at a training's end."""

import math
from typing import Any

import pytest
from ppo_settings import ppo_config

from hybridppo import TD3Config
from hybridppo.reporting.advice import advice

WELL = {"iteration": 50, "explained_variance": 0.9, "episode_return_mean": 100.0}


def test_if_all_is_well_there_is_no_advice() -> None:
    assert advice(WELL, ppo_config(), [95.0, 105.0]) == []
    assert advice({}, ppo_config()) == []
    assert advice({"iteration": 50, "episode_return_mean": 1.0}, TD3Config(), [1.0]) == []


def test_a_training_that_ends_before_learning_begins() -> None:
    metrics = {"iteration": 1, "env_steps": 600, "gradient_steps": 0}
    (found,) = advice(metrics, TD3Config())
    assert found.startswith("nothing was learned: 600 steps are within learning_starts, 1,000. Raise total_steps")
    assert advice({**metrics, "gradient_steps": 1}, TD3Config()) == []


LARGE = 0.5 * 60.0**2
"""The value loss if values are off by 60."""


@pytest.mark.parametrize(
    ("explained", "loss", "iteration", "is_given"),
    [
        (0.05, LARGE, 50, True),
        (-3.0, LARGE, 50, True),
        (0.05, LARGE, 5, False),
        (0.9, LARGE, 50, False),
        (math.nan, LARGE, 50, False),
        (0.05, math.nan, 50, False),
        (-3.4, 2e-6, 59, False),  # CartPole, solved, without normalised rewards: as measured
        (0.05, 0.5, 50, False),
    ],
)
def test_a_critic_that_explains_nothing(explained: float, loss: float, iteration: int, is_given: bool) -> None:
    metrics = {**WELL, "explained_variance": explained, "value_loss": loss, "iteration": iteration}
    found = advice(metrics, ppo_config())
    assert bool(found) == is_given
    if is_given:
        assert "is off by 60" in found[0]
        assert "normalize_rewards=True (--normalize-rewards); clip_range_vf=None (--clip-range-vf None)" in found[0]


def test_what_is_done_already_is_not_advised() -> None:
    metrics = {**WELL, "explained_variance": 0.0, "value_loss": LARGE}
    (found,) = advice(metrics, ppo_config(clip_range_vf=None))
    assert "clip_range_vf" not in found
    assert advice(metrics, ppo_config(normalize_rewards=True, clip_range_vf=None)) == []


@pytest.mark.parametrize(
    ("sampled", "evaluation", "is_given"),
    [
        (-160.0, [-1500.0, -1600.0] * 3, True),
        (100.0, [20.0] * 5, True),
        (100.0, [20.0], False),  # a single episode may be bad by chance
        (100.0, [0.0, 0.0, 0.0, 0.0, 200.0], False),  # as these may
        (100.0, [90.0] * 5, False),
        (-100.0, [50.0] * 5, False),
    ],
)
def test_actions_that_must_be_sampled(sampled: float, evaluation: list[Any], is_given: bool) -> None:
    found = advice({**WELL, "episode_return_mean": sampled}, ppo_config(), evaluation)
    assert bool(found) == is_given
    if is_given:
        assert "(--no-deterministic)" in found[0]
