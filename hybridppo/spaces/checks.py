"""Checks of observations and masks against their space, and the error for spaces that are not supported."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError, EnvError, shown
from hybridppo.spaces.arrays import Array


class UnsupportedSpaceError(Exception):
    """A space, or a part of one, that cannot be used as asked; `reason` may say what to do."""

    def __init__(self, space: gym.Space[Any], path: str = "", reason: str = "") -> None:
        super().__init__(space, path, reason)
        self.space, self.path, self.reason = space, path, reason


def unsupported(role: str, space: gym.Space[Any], error: UnsupportedSpaceError, remedy: str) -> EnvError:
    """The error for an unsupported space: names the unsupported part, and the remedy."""
    which = f"the {role} space {error.space}"
    if error.path:
        which += f", which is at {error.path} of {space},"
    return EnvError(f"{which} is not supported: {error.reason or remedy}")


REMEDY = "use Discrete, MultiDiscrete, MultiBinary, a Box, or a Dict or Tuple of those"
"""For an action space that is not supported."""
LARGEST = float(np.finfo(np.float32).max)
FEW = 16
"""Up to this number of numbers, Python sums faster than NumPy."""


def finite_test(size: int, dtype: Any = np.float32) -> Callable[[Array], Any]:
    """A function `[size] -> number` whose result is finite if all numbers of the array are; called at every step.

    It sums weighted numbers, so that a sum of large numbers stays finite. The weights are not zero, since zero times
    infinity would warn. Python sums a few numbers faster, and its floats hold their sum. For whole numbers, which are
    always finite, the function returns 0.
    """
    if not np.issubdtype(dtype, np.floating):
        return lambda array: 0
    if size <= FEW and dtype == np.float32:
        return lambda array: sum(array.tolist())
    return np.full(size, 2.0**-20, dtype).dot


def can_be_scaled_to(low: Array, high: Array) -> bool:
    """Whether float32 actions can be scaled to these bounds."""
    return bool((np.maximum(np.abs(low), np.abs(high)) <= np.finfo(np.float32).max).all())


def require_finite(name: str, values: Array, given: Any = None) -> None:
    """Refuse an array, or a number, that is not finite.

    Args:
        name: what it is, for the message.
        values: the array or the number.
        given: the number that the environment returned, if `values` is that as float32; None if it is not known.

    Raises:
        BadValueError: naming the first number that is not finite.
    """
    values = np.asarray(values)
    bad = ~np.isfinite(values)
    if bad.any():
        at = np.argwhere(bad)[0].tolist()
        raise BadValueError(f"{name}{at if at else ''} is {shown_cast(values[tuple(at)], given)}")


def shown_cast(number: Any, given: Any = None) -> str:
    """A number of float32 that is not finite, or the number that the environment returned; None if it is not known."""
    if given is not None and np.ndim(given) == 0 and LARGEST < abs(given) < np.inf:
        return f"{given}, and the largest number of float32 is {LARGEST:.3g}"
    is_unknown = given is None and np.isinf(number)
    return f"{number:g}" + (f", or beyond the largest number of float32, {LARGEST:.3g}" if is_unknown else "")


def reshaped(value: Any, shape: tuple[int, ...] | None, name: str = "its observation") -> Array:
    """A value as an array of numbers of this shape, from which it may differ only by dimensions of size 1.

    Raises:
        BadValueError: if it differs otherwise, or is not one of numbers.
    """
    array, shape = as_numbers(name, value), shape or ()
    if array.shape != shape:
        if [size for size in array.shape if size != 1] != [size for size in shape if size != 1]:
            raise BadValueError(f"{name} is of shape {array.shape}, and that of its space is {shape}")
        array = array.reshape(shape)
    return array


def checked_whole(value: Any, shape: tuple[int, ...], name: str) -> Array:
    """The value as an array of whole numbers of this shape.

    Raises:
        BadValueError: if it is something else.
    """
    array = reshaped(value, shape, name)
    if array.dtype.kind == "f" and not np.array_equal(array, np.trunc(array)):
        raise BadValueError(f"{name} is not whole: {shown(array.tolist())}")
    return array


def is_outside(array: Array, low: Array, high: Array) -> Array:
    """Where numbers lie outside of their bounds, possibly infinite, by more than rounding explains."""
    slack = [1e-5 * np.maximum(1.0, np.abs(np.where(np.isfinite(bound), bound, 0.0))) for bound in (low, high)]
    with np.errstate(over="ignore"):
        outside: Array = (array < low - slack[0]) | (array > high + slack[1])
    return outside


def as_truths(mask: Any, shape: tuple[int, ...], name: str, which: str) -> Array:
    """A mask of this shape as float32: 1 for what is allowed.

    Raises:
        BadValueError: if it has another shape, or other values than 0 and 1.
    """
    try:
        array = np.asarray(mask)
    except ValueError:  # a ragged list
        array = np.array("")
    if array.shape != shape or array.dtype.kind not in "biuf":
        found = shown(mask) if array.dtype.kind not in "biuf" else array.tolist()
        raise BadValueError(
            f"{name} must be {shape[0]} truths, {which}, and is "
            f"{found if array.size < 100 else f'of shape {array.shape}'}"
        )
    if array.dtype.kind != "b" and not _has_truths_only(array):  # called at every step
        wrong = np.argwhere((array != 0) & (array != 1))[0]
        raise BadValueError(
            f"{name}{wrong.tolist()} is {array[tuple(wrong)]}, and must be 1 if the action is allowed, else 0"
        )
    return array.astype(np.float32)


def _has_truths_only(array: Array) -> bool:
    """Whether all of the numbers `[n]` are 0 or 1."""
    if array.itemsize == 1:  # the usual masks, of int8: faster than NumPy
        return not array.tobytes().translate(None, b"\0\1")
    return bool(np.count_nonzero(array) == np.count_nonzero(array == 1))


def as_numbers(name: str, value: Any) -> Array:
    """The value as an array of numbers or booleans; anything else is refused."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BadValueError(f"{name} is not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise BadValueError(f"{name} is not a number or an array of numbers: {shown(value)}")
    return array


def as_scalar(name: str, array: Array) -> Any:
    """The number of an array that has only one."""
    if array.size != 1:
        raise BadValueError(f"{name} must be one number, and is of shape {array.shape}")
    return array.item()
