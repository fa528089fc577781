"""The checks of every observation and reward, and their small cost."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from hybridppo.errors import BadValueError
from hybridppo.spaces.checks import finite_test
from hybridppo.spaces.masks import MaskedObservation


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 5, 9])
def test_one_bad_number_among_many_shows(bad: float, where: int) -> None:
    numbers = np.ones(10, np.float32)
    assert np.isfinite(finite_test(10)(numbers))
    numbers[where] = bad
    assert not np.isfinite(finite_test(10)(numbers))


def test_the_largest_numbers_are_finite_all_together() -> None:
    assert np.isfinite(finite_test(1000)(np.full(1000, np.finfo(np.float32).max)))


def test_a_masked_observation_is_held_to_its_space() -> None:
    space = MaskedObservation(Discrete(3, start=1), 2)
    assert space.row(2, np.array([1, 0])).tolist() == [0, 1, 0, 1, 0]
    for bad in (0, 4):
        with pytest.raises(BadValueError):
            space.row(bad, np.array([1, 0]))
    with pytest.raises(BadValueError):
        MaskedObservation(Box(-1, 1, (2,)), 2).row(np.zeros(3, np.float32), np.array([1, 0]))
    # Bounds are looked at once, when an environment is new: rows that come after need be of the right shape.
    beyond = MaskedObservation(Box(-1, 1, (2,)), 2).row(np.array([2.0, 0.0], np.float32), np.array([1, 0]))
    assert beyond.tolist() == [2, 0, 1, 0]
