"""Returns and lengths of whole episodes, which may span several rollouts."""

import json
import math
from typing import Any

import numpy as np
import pytest

from hybridppo.runners.counts import EpisodeStatistics


def add(statistics: EpisodeStatistics, *, rewards: Any, ended: Any, valid: Any = None) -> None:
    """Add the steps of one environment."""
    rewards, ended = np.array(rewards, dtype=np.float32)[:, None], np.array(ended, dtype=bool)[:, None]
    valid = np.ones_like(ended) if valid is None else np.array(valid, dtype=bool)[:, None]
    statistics.add(rewards, ended, valid)


def latest(statistics: EpisodeStatistics) -> tuple[list[float], list[int]]:
    state = statistics.state()
    return state["returns"], state["lengths"]


def test_before_the_first_episode_there_is_no_mean() -> None:
    statistics = EpisodeStatistics(1)
    add(statistics, rewards=[1, 2], ended=[0, 0])
    assert statistics.episodes == 0
    assert math.isnan(statistics.return_mean)
    assert math.isnan(statistics.length_mean)


def test_several_episodes_in_one_rollout() -> None:
    statistics = EpisodeStatistics(1)
    add(statistics, rewards=[1, 2, 4, 8, 16], ended=[0, 1, 1, 0, 1])
    assert statistics.episodes == 3
    assert latest(statistics) == ([3, 4, 24], [2, 1, 2])
    assert statistics.return_mean == pytest.approx(31 / 3)
    assert statistics.length_mean == pytest.approx(5 / 3)


def test_an_episode_may_span_rollouts() -> None:
    statistics = EpisodeStatistics(1)
    add(statistics, rewards=[1, 2, 4], ended=[0, 1, 0])
    add(statistics, rewards=[8, 16], ended=[0, 0])
    add(statistics, rewards=[32, 64], ended=[1, 1])
    assert latest(statistics) == ([3, 60, 64], [2, 4, 1])


def test_rows_that_are_no_steps_do_not_count() -> None:
    statistics = EpisodeStatistics(1)
    add(statistics, rewards=[1, 100, 2, 4], ended=[1, 0, 0, 1], valid=[1, 0, 1, 1])
    add(statistics, rewards=[100, 8], ended=[0, 1], valid=[0, 1])
    assert latest(statistics) == ([1, 6, 8], [1, 2, 1])


def test_environments_are_counted_apart_in_the_order_in_which_episodes_end() -> None:
    statistics = EpisodeStatistics(3)
    rewards = np.array([[1, 10, 100], [2, 20, 200], [3, 30, 300]], dtype=np.float32)
    ended = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0]], dtype=bool)
    statistics.add(rewards, ended, np.ones_like(ended))
    assert latest(statistics) == ([100, 3, 30, 30], [1, 2, 2, 1])
    statistics.add(rewards[:1], np.array([[True, False, True]]), np.ones((1, 3), dtype=bool))
    assert latest(statistics) == ([100, 3, 30, 30, 4, 600], [1, 2, 2, 1, 2, 3])


def test_only_the_latest_episodes_are_averaged() -> None:
    statistics = EpisodeStatistics(1, window=2)
    add(statistics, rewards=[1, 2, 4, 8], ended=[1, 1, 1, 1])
    assert statistics.episodes == 4
    assert statistics.return_mean == 6
    assert statistics.length_mean == 1


def test_the_window_is_a_hundred_episodes() -> None:
    statistics = EpisodeStatistics(1)
    add(statistics, rewards=range(150), ended=[1] * 150)
    assert statistics.return_mean == pytest.approx(np.mean(range(50, 150)))


def test_the_score_is_the_mean_of_a_full_window_of_finite_returns() -> None:
    statistics = EpisodeStatistics(1, window=3)
    add(statistics, rewards=[1, 2], ended=[1, 1])
    assert statistics.score is None
    add(statistics, rewards=[3], ended=[1])
    assert statistics.score == 2.0
    with np.errstate(invalid="ignore"):
        add(statistics, rewards=[math.inf], ended=[1])
    assert statistics.score is None


def test_small_rewards_are_not_lost_in_a_long_episode() -> None:
    statistics = EpisodeStatistics(1)
    statistics.add(np.full((1, 1), 2.0**24, np.float32), np.zeros((1, 1), bool), np.ones((1, 1), bool))
    add(statistics, rewards=[1] * 10, ended=[0] * 9 + [1])
    assert statistics.return_mean == 2**24 + 10


def test_small_rewards_are_not_lost_after_a_large_one_in_the_same_rollout() -> None:
    statistics = EpisodeStatistics(1)
    add(statistics, rewards=[2.0**24, *[1] * 10], ended=[0] * 10 + [1])  # in float32, 2**24 + 1 is 2**24
    assert statistics.return_mean == 2**24 + 10


def test_dropping_running_episodes_keeps_the_finished_ones() -> None:
    statistics = EpisodeStatistics(1)
    add(statistics, rewards=[1, 50], ended=[1, 0])
    statistics.drop_running()
    add(statistics, rewards=[2, 4], ended=[0, 1])
    assert latest(statistics) == ([1, 6], [1, 2])
    assert statistics.episodes == 2


def test_a_saved_state_goes_on_where_it_was() -> None:
    statistics = EpisodeStatistics(1, window=2)
    add(statistics, rewards=[1, 2, 4, 8], ended=[1, 1, 1, 0])
    restored = EpisodeStatistics(1, window=2)
    restored.load_state(json.loads(json.dumps(statistics.state())))
    assert restored.state() == statistics.state()
    for each in (statistics, restored):
        add(each, rewards=[16], ended=[1])
    assert restored.state() == statistics.state()
    assert latest(restored) == ([4, 24], [1, 2])
    assert restored.episodes == 4
