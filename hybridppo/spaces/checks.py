"""What a space admits as an observation, and which spaces are supported."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, shown

Array = NDArray[Any]


class UnsupportedSpaceError(Exception):
    """A space, or a part of one, that cannot be what it is asked to be; `reason` may say what to do."""

    def __init__(self, space: gym.Space[Any], path: str = "", reason: str = "") -> None:
        super().__init__(space, path, reason)
        self.space, self.path, self.reason = space, path, reason


def finite_test(size: int, dtype: Any = np.float32) -> Callable[[Array], Any]:
    """A sum `[size] -> number` that is finite where all numbers of the array are; taken at every step.

    The numbers are weighted, so that a sum of large ones stays finite. The weights are not zero, since zero times
    infinity would warn. Of whole numbers, which are all finite, none is taken.
    """
    if not np.issubdtype(dtype, np.floating):
        return lambda array: 0
    return np.full(size, 2.0**-20, dtype).dot


def can_be_scaled_to(low: Array, high: Array) -> bool:
    """Whether actions of float32 can be scaled to these bounds."""
    return bool((np.maximum(np.abs(low), np.abs(high)) <= np.finfo(np.float32).max).all())


def require_finite(name: str, values: Array) -> None:
    """Refuse an array, or a number, that holds what is no finite number.

    Raises:
        BadValueError: naming the first.
    """
    values = np.asarray(values)
    bad = ~np.isfinite(values)
    if bad.any():
        at = np.argwhere(bad)[0].tolist()
        raise BadValueError(f"{name}{at if at else ''} is {values[tuple(at)]}")


def reshaped(space: gym.Space[Any], observation: Any, name: str = "its observation") -> Array:
    """An observation as an array of the shape of its `Box`, where only dimensions of size 1 differ.

    Raises:
        BadValueError: where others do.
    """
    array, shape = np.asarray(observation), space.shape or ()
    if array.shape != shape:
        if [size for size in array.shape if size != 1] != [size for size in shape if size != 1]:
            raise BadValueError(f"{name} is of shape {array.shape}, and that of its space is {shape}")
        array = array.reshape(shape)
    return array


def checked_whole(value: Any, shape: tuple[int, ...], name: str) -> Array:
    """An array of whole numbers of this shape.

    Raises:
        BadValueError: where it is none.
    """
    array = as_numbers(name, value)
    if array.shape != shape:
        raise BadValueError(f"{name} is of shape {array.shape}, and that of its space is {shape}")
    if array.dtype.kind == "f" and not np.array_equal(array, np.trunc(array)):
        raise BadValueError(f"{name} is not whole: {shown(array.tolist())}")
    return array


def write_one_hot(indices: Array, rows: Array) -> int | None:
    """Write choices `[...]` one-hot into rows `[..., n]`; the flat place of the first that is none of `n`, if any."""
    n = rows.shape[-1]
    bad = (indices < 0) | (indices >= n) | (indices != np.trunc(indices))
    if bad.any():
        return int(np.flatnonzero(bad.ravel())[0])
    rows[...] = indices[..., None] == np.arange(n)
    return None


def as_truths(mask: Any, shape: tuple[int, ...], name: str, which: str) -> Array:
    """A mask of this shape as float32: 1 for what is allowed.

    Raises:
        BadValueError: where it is of another shape, or not of numbers.
    """
    try:
        array = np.asarray(mask)
    except ValueError:  # of a ragged one
        array = np.array("")
    if array.shape != shape or array.dtype.kind not in "biuf":
        found = shown(mask) if array.dtype.kind not in "biuf" else array.tolist()
        raise BadValueError(
            f"{name} must be {shape[0]} truths, {which}, and is "
            f"{found if array.size < 100 else f'of shape {array.shape}'}"
        )
    allowed: Array = (array != 0).astype(np.float32)
    return allowed


def as_numbers(name: str, value: Any) -> Array:
    """An array of numbers or truths, refused where it is something else."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BadValueError(f"{name} is no array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise BadValueError(f"{name} is no number, or array of numbers: {shown(value)}")
    return array


def as_scalar(name: str, array: Array) -> Any:
    """The only number of an array."""
    if array.size != 1:
        raise BadValueError(f"{name} must be one number, and is of shape {array.shape}")
    return array.item()
