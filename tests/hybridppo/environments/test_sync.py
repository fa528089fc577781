"""The library's own copies, stepped in turn: the same results as gymnasium's `SyncVectorEnv`."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.environments.vector import wrap
from hybridppo.errors import EnvError


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_steps_are_those_of_gymnasiums_vector(env_id: str) -> None:
    make = partial(gym.make, env_id, max_episode_steps=12)
    ours = SubEnvironments(make, 3)
    theirs = wrap(SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.DISABLED))
    distribution = distribution_for(ours.action_space)
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(ours.reset(7), theirs.reset(7))
    num_finals = 0
    for _ in range(100):
        noise = distribution.draw_noise(generator, (3,))
        actions = distribution.to_env(distribution.sample(np.zeros((3, distribution.output_size), np.float32), noise))
        (*arrays, indices, finals), (*expected, their_indices, their_finals) = ours.step(actions), theirs.step(actions)
        for array, other in zip(arrays, expected, strict=True):
            # Rewards are float32 at once, as rollouts hold them.
            np.testing.assert_array_equal(array, np.asarray(other, array.dtype))
        assert indices == their_indices
        np.testing.assert_array_equal(finals, their_finals)
        num_finals += len(finals)
    assert num_finals


CARELESS: dict[str, tuple[int, Any]] = {
    "a list": (0, list),
    "one more axis": (0, lambda array: array[None]),
    "a reward in an array": (1, lambda number: np.array([number])),
    "flags in arrays": (2, lambda flag: np.array([flag])),
    "flags of numbers": (3, int),
}
"""The number of a value of a step, and another form of it."""


@pytest.mark.parametrize("form", CARELESS)
def test_another_form_of_a_value_is_cast_in_every_step(form: str) -> None:
    place, cast = CARELESS[form]

    class Careless(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            result = [*self.env.step(action)]
            result[place] = cast(result[place])
            return tuple(result)

    def make() -> Any:
        return gym.make("CartPole-v1", max_episode_steps=5)

    ours, others = SubEnvironments(make, 2), SubEnvironments(lambda: Careless(make()), 2)
    np.testing.assert_array_equal(ours.reset(7), others.reset(7))
    for _ in range(12):
        for array, other in zip(ours.step(np.ones(2, int)), others.step(np.ones(2, int)), strict=True):
            np.testing.assert_array_equal(array, other)


def test_closing_closes_every_copy() -> None:
    closed: list[Any] = []

    class Counted(gym.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(self)

    environments = SubEnvironments(lambda: Counted(gym.make("CartPole-v1")), 3)
    environments.close()
    environments.close()
    assert closed == [each.env for each in environments.sub_environments]


@pytest.mark.parametrize("fault", ["fails", "differs"])
def test_environments_are_closed_if_a_later_one_cannot_be_used(fault: str) -> None:
    licences = ["first", "second"]

    class Licensed(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self) -> None:
            if not licences and fault == "fails":
                raise RuntimeError("no licence left")
            super().__init__(gym.make("CartPole-v1" if licences else "Pendulum-v1"))
            self.licence = licences.pop() if licences else None

        def close(self) -> None:
            licences.append(str(self.licence))

    with pytest.raises(RuntimeError if fault == "fails" else EnvError, match=r"no licence left|environments differ"):
        SubEnvironments(Licensed, 3)
    assert {"first", "second"} <= {*licences}
