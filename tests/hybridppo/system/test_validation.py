"""Values that users set or that were saved: valid ones come back, others are refused by name."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridppo import ConfigurationError
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.settings import RunOptions
from hybridppo.system.validation import is_number, real, reals, require_path, require_seconds, whole


def test_what_was_saved_comes_back() -> None:
    assert whole({"a": 3}, "a") == 3
    assert whole({"a": 2**63 - 1}, "a") == 2**63 - 1
    assert real(3, "a") == 3.0
    assert reals({"a": [1, 2.5]}, "a", length=2) == [1.0, 2.5]
    assert reals({"a": []}, "a") == []


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, True, "1", None, [1]], ids=str)
def test_other_things_are_no_whole_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="a must be a whole number of at least 0"):
        whole({"a": value}, "a")


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 10**400, True, "1", None, [1.0]], ids=lambda value: str(value)[:9]
)
def test_other_things_are_no_finite_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="a number in a must be a finite number"):
        reals({"a": [1.0, value]}, "a")


def test_lists_are_of_the_length_they_were() -> None:
    with pytest.raises(ValueError, match="a must be a list of 3 numbers"):
        reals({"a": [1.0, 2.0]}, "a", length=3)
    with pytest.raises(ValueError, match=r"a must be a list$"):
        reals({"a": "12"}, "a")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [int, float, np.int8, np.int64, np.float32, np.float64])
def test_numbers_may_be_numpys(kind: Any) -> None:
    assert is_number(kind(3))
    assert require_seconds("wait", kind(3)) == 3
    options = [EnvironmentOptions(worker_timeout=kind(3)).worker_timeout]
    options += [RunOptions(total_steps=1, checkpoint_seconds=kind(3)).checkpoint_seconds]
    assert options == [3, 3]
    assert {*map(type, options)} <= {int, float}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32(math.inf), True, np.True_, "1", None])
def test_other_things_are_no_numbers(value: Any) -> None:
    assert not is_number(value)
    if value in (None, math.inf, np.float32(math.inf)):
        assert require_seconds("wait", value) == math.inf
        return
    with pytest.raises(ConfigurationError, match="wait must be a number of at least 0, got"):
        require_seconds("wait", value)


def test_paths_are_texts_or_paths() -> None:
    assert require_path("output", "a/b") == require_path("output", Path("a/b")) == Path("a/b")


@pytest.mark.parametrize("value", [None, "", b"a", 3, True, ["a"], Path, "a\0b", "\ud800"], ids=ascii)
def test_other_things_are_no_paths(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="output must be a path, got "):
        require_path("output", value)


def test_a_home_folder_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no such home folder: write \./~no one/a for"):
        require_path("output", "~no one/a")
