"""Actions of a deterministic actor, and the exploration noise: by hand, block by block, and resumed."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from hybridppo import EnvError
from hybridppo.distributions.deterministic import (
    DeterministicActions,
    deterministic_actions,
)

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)


def actions(std: float = 0.1, warmup: int = 0) -> DeterministicActions:
    return DeterministicActions(LOW, HIGH, std=std, warmup=warmup)


def test_actions_are_squashed_and_scaled_to_the_bounds() -> None:
    outputs = np.array([[0.0, 0.0], [100.0, -100.0], [np.arctanh(0.5), np.arctanh(-0.2)]], np.float32)
    mode = actions().mode(outputs)
    np.testing.assert_allclose(mode, [[0, 0], [1, -1], [0.5, -0.2]], atol=1e-6)
    np.testing.assert_allclose(actions().to_env(mode), [[0, 5], [2, 0], [1, 4]], atol=1e-5)
    assert actions().to_env(mode).dtype == np.float32


def test_noise_is_added_to_the_action_or_is_all_of_it_and_sums_are_clipped() -> None:
    outputs = np.full((3, 2), np.arctanh(0.5), np.float32)
    noise = np.array([[0.25, -0.25, 1], [0.75, -2, 1], [0.3, -0.3, 0]], np.float32)
    np.testing.assert_allclose(actions().sample(outputs, noise), [[0.75, 0.25], [1, -1], [0.3, -0.3]], atol=1e-6)


def test_an_action_depends_on_nothing_but_its_own_row() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.standard_normal((13, 2), np.float32)
    noise = actions().draw_noise(rng, (13,))
    at_once = actions().sample(outputs, noise)
    for i in range(13):
        np.testing.assert_array_equal(actions().sample(outputs[i : i + 1], noise[i : i + 1])[0], at_once[i])


def test_noise_has_the_deviation_that_was_asked_for() -> None:
    noise = actions(0.3).draw_noise(np.random.default_rng(0), (20_000,))
    assert noise.shape == (20_000, 3)
    assert noise[:, :2].std() == pytest.approx(0.3, rel=0.02)
    assert noise[:, :2].mean() == pytest.approx(0.0, abs=0.01)
    assert (noise[:, 2] == 1).all()


def test_nobody_learns_from_densities() -> None:
    log_probs, entropy = actions().log_prob_and_entropy(torch.ones(4, 3, 2), torch.ones(4, 3, 2))
    assert log_probs.tolist() == entropy.tolist() == [[0.0] * 3] * 4


def test_the_first_steps_are_uniform_over_all_environments_together() -> None:
    exploration = actions(0.1, warmup=20)
    noise = np.concatenate([exploration.draw_noise(np.random.default_rng(i), (3, 2)) for i in range(5)])
    assert noise[:, :, 2].tolist() == [[0.0] * 2] * 10 + [[1.0] * 2] * 5
    assert np.abs(noise[:10, :, :2]).max() > 0.8
    assert np.abs(noise[10:, :, :2]).max() < 0.6
    assert exploration.drawn == 30


def test_uniform_actions_reach_from_bound_to_bound() -> None:
    noise = actions(warmup=4_000).draw_noise(np.random.default_rng(0), (4_000, 1))[:, 0, :2]
    assert -1 <= noise.min() < -0.99
    assert 0.99 < noise.max() <= 1
    assert np.histogram(noise, 4, (-1, 1))[0] == pytest.approx(2_000, rel=0.1)


def test_noise_goes_on_where_it_was_left() -> None:
    def made() -> DeterministicActions:
        return actions(0.2, 10)

    generator, exploration = np.random.default_rng(0), made()
    exploration.draw_noise(generator, (4, 2))
    state, saved = exploration.state(), generator.bit_generator.state
    expected = [exploration.draw_noise(generator, (4, 2)) for _ in range(2)]
    again, generator = made(), np.random.default_rng()
    generator.bit_generator.state = saved
    again.load_state(state)
    for noise in expected:
        np.testing.assert_array_equal(again.draw_noise(generator, (4, 2)), noise)


@pytest.mark.parametrize("drawn", [-1, 1.5])
def test_noise_that_is_none_is_refused(drawn: Any) -> None:
    with pytest.raises(ValueError, match="drawn must be a whole number"):
        actions().load_state({"drawn": drawn})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Discrete(3), r"Discrete\(3\) is not supported: a deterministic actor .* needs a Box"),
        (Box(0, 5, (2,), np.int64), "needs a Box of floating-point numbers"),
        (Box(-np.inf, np.inf, (2,)), "between finite bounds"),
        (gym.spaces.Dict({"a": Box(-1, 1, (1,))}), "Use PPO for other spaces"),
    ],
)
def test_other_spaces_are_refused(space: gym.Space, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        deterministic_actions(space, std=0.1)
