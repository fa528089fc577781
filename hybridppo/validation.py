"""Numbers out of a saved state, refused where they cannot be what was saved: files come from anywhere."""

import math
from collections.abc import Mapping
from typing import Any


def whole(state: Mapping[str, Any], name: str, minimum: int = 0) -> int:
    """A whole number of at least `minimum`, of 64 bits.

    Raises:
        KeyError: where there is none of that name.
        ValueError: where it is something else.
    """
    value = state[name]
    if type(value) is not int or not minimum <= value < 2**63:
        raise ValueError(f"{name} is no whole number of at least {minimum}")
    return value


def real(value: Any, name: str) -> float:
    """A number that is finite.

    Raises:
        ValueError: where it is something else.
    """
    if type(value) not in (int, float) or not abs(value) <= 1.7e308 or not math.isfinite(value):
        raise ValueError(f"{name} is no finite number")
    return float(value)


def reals(state: Mapping[str, Any], name: str, *, length: int | None = None) -> list[float]:
    """A list of numbers that are finite, of a given length.

    Raises:
        KeyError: where there is none of that name.
        ValueError: where it is something else.
    """
    values = state[name]
    if not isinstance(values, list) or (length is not None and len(values) != length):
        raise ValueError(f"{name} is no list" + (f" of {length} numbers" if length is not None else ""))
    return [real(value, f"a number in {name}") for value in values]
