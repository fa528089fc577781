"""Compiled environments beside gymnasium's own: 20,000 random steps each."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from selection import only_by_default

from hybridppo.environments.making import make_environments

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

STEPS = 20_000
CASES = {
    # The largest difference of a state from the same state, and the type that gymnasium has it in.
    "CartPole-v1": (0.0, np.float64),
    "MountainCar-v0": (0.0, np.float64),
    "MountainCarContinuous-v0": (0.0, np.float32),
    "Pendulum-v1": (0.0, np.float64),
    "Acrobot-v1": (1e-12, np.float64),
}


def fields(environments: Any) -> list[Any]:
    return list(environments.states[0].item())


@pytest.mark.parametrize("env_id", only_by_default(("CartPole-v1", "Pendulum-v1"), CASES, pytest.mark.slow))
def test_every_step_is_gymnasiums(env_id: str) -> None:
    tolerance, dtype = CASES[env_id]
    environments: Any = make_environments(env_id, 1, vectorization="compiled")
    reference = gym.make(env_id)
    reference.action_space.seed(3)
    reference.reset(seed=0)
    inner: Any = reference.unwrapped
    environments.reset(7)
    inner.state = np.array(fields(environments), dtype)
    ended = {"terminated": 0, "truncated": 0}
    for _ in range(STEPS):
        action = reference.action_space.sample()
        before = int(environments.lengths[0])
        observations, rewards, terminated, truncated, finals_of, finals = environments.step(np.asarray(action)[None])
        expected, reward, is_over, is_cut, _ = reference.step(action)
        assert (terminated[0], truncated[0]) == (is_over, is_cut)
        assert rewards[0] == np.float32(reward)
        assert finals_of == ([0] if is_cut and not is_over else [])
        if is_over or is_cut:
            ended["truncated" if is_cut else "terminated"] += 1
            for final in finals:
                np.testing.assert_allclose(final, expected, rtol=0, atol=max(tolerance, 0.0) * 1e6)
            assert environments.lengths[0] == 0
            reference.reset()
        else:
            assert environments.lengths[0] == before + 1
            difference = np.abs(np.array(fields(environments)) - np.array(inner.state, np.float64)).max()
            assert difference <= tolerance
            np.testing.assert_allclose(observations[0], expected, rtol=0, atol=tolerance * 1e6)
        inner.state = np.array(fields(environments), dtype)  # from the same state again
    assert sum(ended.values()) > 10
    if env_id == "CartPole-v1":
        assert ended["terminated"] > 500


@pytest.mark.parametrize("env_id", only_by_default(("CartPole-v1", "Pendulum-v1"), CASES, pytest.mark.slow))
def test_starts_are_where_gymnasiums_are(env_id: str) -> None:
    environments = make_environments(env_id, 512, vectorization="compiled")
    ours = environments.reset(1)
    reference = gym.make_vec(env_id, 512, vectorization_mode="sync").reset(seed=1)[0]
    assert np.unique(ours, axis=0).shape[0] == 512
    np.testing.assert_allclose(ours.mean(0), reference.mean(0), atol=0.15)
    np.testing.assert_allclose(ours.std(0), reference.std(0), atol=0.15)
    spread = np.abs(reference.max(0) - reference.min(0))
    np.testing.assert_allclose(ours.max(0) - ours.min(0), spread, atol=0.05, rtol=0.05)


def test_spaces_are_gymnasiums() -> None:
    for env_id in CASES:
        environments, reference = make_environments(env_id, 1, vectorization="compiled"), gym.make(env_id)
        assert environments.observation_space == reference.observation_space
        assert environments.action_space == reference.action_space
