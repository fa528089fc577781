"""What is said at a training's end of what its return does not tell."""

import math
from typing import Any

import pytest
from ppo_settings import ppo_config

from hybridppo import TD3Config
from hybridppo.reporting.advice import advice

WELL = {"iteration": 50, "explained_variance": 0.9, "episode_return_mean": 100.0}


def test_where_all_is_well_nothing_is_said() -> None:
    assert advice(WELL, ppo_config(), [95.0, 105.0]) == []
    assert advice({}, ppo_config()) == []
    assert advice({"iteration": 50, "episode_return_mean": 1.0}, TD3Config(), [1.0]) == []


@pytest.mark.parametrize(
    ("explained", "iteration", "is_said"), [(0.05, 50, True), (-3.0, 50, True), (0.05, 5, False), (math.nan, 50, False)]
)
def test_a_critic_that_explains_nothing(explained: float, iteration: int, is_said: bool) -> None:
    found = advice({**WELL, "explained_variance": explained, "iteration": iteration}, ppo_config())
    assert bool(found) == is_said
    if is_said:
        assert "normalize_rewards=True (--normalize-rewards); clip_range_vf=None (--clip-range-vf None)" in found[0]


def test_returns_that_are_all_alike_leave_nothing_to_explain() -> None:
    unexplained = {**WELL, "episode_return_mean": 500.0, "explained_variance": 0.0}
    assert advice(unexplained, ppo_config(), [500.0] * 20) == []
    assert advice(unexplained, ppo_config(), [500.0] * 19 + [450.0]) != []


def test_what_is_done_already_is_not_advised() -> None:
    config = ppo_config(normalize_rewards=True, clip_range_vf=None, normalize_observations=True)
    (found,) = advice({**WELL, "explained_variance": 0.0}, config)
    assert "critic_learning_rate" in found
    assert "normalize" not in found


@pytest.mark.parametrize(
    ("sampled", "evaluation", "is_said"),
    [(-160.0, [-1500.0, -1600.0], True), (100.0, [20.0], True), (100.0, [90.0], False), (-100.0, [50.0], False)],
)
def test_actions_that_must_be_sampled(sampled: float, evaluation: list[Any], is_said: bool) -> None:
    found = advice({**WELL, "episode_return_mean": sampled}, ppo_config(), evaluation)
    assert bool(found) == is_said
    if is_said:
        assert "(--no-deterministic)" in found[0]
