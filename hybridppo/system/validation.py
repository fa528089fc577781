"""Checks of values that users set or that come from a file."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hybridppo.errors import ConfigurationError, shown

Saved = TypeVar("Saved")
CHANGEABLE = {"changeable": True}
"""In the metadata of an option: a resumed run may have another value of it."""
SAME_RESULT = {"changes_result": False}
"""In the metadata of an option: a seed gives the same metrics and the same agent with any value of it, up to
rounding."""


def whole(state: Mapping[str, Any], name: str) -> int:
    """An integer of at least 0, with 64 bits.

    Raises:
        KeyError: if there is no such key.
        ValueError: if it is something else.
    """
    value = state[name]
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return value


def real(value: Any, name: str) -> float:
    """A finite number.

    Raises:
        ValueError: if it is something else.
    """
    if type(value) not in (int, float) or not abs(value) <= 1.7e308 or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number")
    return float(value)


def reals(state: Mapping[str, Any], name: str, *, length: int | None = None) -> list[float]:
    """A list of finite numbers of a given length.

    Raises:
        KeyError: if there is no such key.
        ValueError: if it is something else.
    """
    values = state[name]
    if not isinstance(values, list) or (length is not None and len(values) != length):
        raise ValueError(f"{name} must be a list" + (f" of {length} numbers" if length is not None else ""))
    return [real(value, f"a number in {name}") for value in values]


def part_of(saved: Mapping[str, Saved], prefix: str) -> dict[str, Saved]:
    """The entries whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}


def require_whole(name: str, value: Any, minimum: int = 1, *, below: int = 2**63) -> int:
    """An integer that a user set, Python's or NumPy's.

    Raises:
        ConfigurationError: naming the option, the rule and the value.
    """
    number = int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None
    if number is None or number < minimum:
        is_of_float = isinstance(value, float) and value.is_integer() and minimum <= value < below  # such as 1e6
        remedy = f": write {int(value):_}" if is_of_float else ""
        raise ConfigurationError(f"{name} must be a whole number of at least {minimum}, got {shown(value)}{remedy}")
    if number >= below:
        raise ConfigurationError(f"{name} must be below {below}, got {shown(value)}")
    return number


def require_bools(**values: Any) -> None:
    """Refuse values that are neither True nor False, Python's or NumPy's.

    Raises:
        ConfigurationError: naming the option, the rule and the value.
    """
    for name, value in values.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigurationError(f"{name} must be True or False, got {shown(value)}")


def require_path(name: str, value: Any, rule: str = "a path") -> Path:
    """A path that a user set: a text that is not empty, or an object with `__fspath__`.

    Raises:
        ConfigurationError: naming the argument, the rule and the value.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not (isinstance(text, str) and text):
        raise ConfigurationError(f"{name} must be {rule}, got {shown(value)}")
    return Path(text)


def plain(value: Any) -> Any:
    """A number of NumPy's as one of Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def held_by_json(value: Any) -> Any:
    """A value as JSON holds it: with NumPy's numbers as Python's, and lists for tuples.

    Raises:
        ValueError: if JSON cannot hold it.
    """

    def of_numpy(other: Any) -> Any:
        if isinstance(other, np.generic):
            return other.item()
        raise ValueError(f"it has {shown(other)}")

    try:
        return json.loads(json.dumps(value, allow_nan=False, default=of_numpy))
    except (TypeError, RecursionError) as error:
        raise ValueError(error) from None


def seconds_of(value: Any) -> Any:
    """A number of seconds as one of Python's; infinity for None, because config.json has no infinity."""
    return math.inf if value is None else plain(value)


def is_seconds(value: Any) -> bool:
    """Whether it is a number of seconds, Python's or NumPy's; infinity is one."""
    # nan is not at least 0; an integer may be too large for a float
    return type(value := plain(value)) in (int, float) and value >= 0 and (value == math.inf or value < 2**63)


def require_seconds(name: str, value: Any) -> None:
    """Refuse what is no number of seconds.

    Raises:
        ConfigurationError: naming the option, the rule and the value.
    """
    if not is_seconds(value):
        raise ConfigurationError(f"{name} must be a number of at least 0, got {shown(value)}")


def is_number(value: Any) -> bool:
    """Whether it is a finite number, Python's or NumPy's."""
    value = plain(value)  # float32 cannot hold the limit
    return type(value) in (int, float) and abs(value) <= 1.7e308
