"""What a space admits as an observation."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, shown

Array = NDArray[Any]


def finite_test(size: int, dtype: Any = np.float32) -> Callable[[Array], Any]:
    """A sum `[size] -> number` that is finite where all numbers of the array are; taken at every step.

    The numbers are weighted, so that a sum of large ones stays finite. The weights are not zero, since zero times
    infinity would warn. Of whole numbers, which are all finite, none is taken.
    """
    if not np.issubdtype(dtype, np.floating):
        return lambda array: 0
    return np.full(size, 2.0**-20, dtype).dot


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


def checked_observation(space: gym.Space[Any], observation: Any) -> Array:
    """An observation as an array of its space's shape, cast where nothing is lost by it.

    Raises:
        BadValueError: where its shape, type or values are not those of the space.
    """
    array = as_numbers("its observation", observation)
    require_finite("its observation", array)
    if isinstance(space, gym.spaces.Discrete):
        number = as_scalar("its observation", array)
        if number != int(number) or not space.start <= number < space.start + space.n:
            raise BadValueError(f"its observation is {number}, which is not one of its space, {space}")
        return np.asarray(int(number))
    assert isinstance(space, gym.spaces.Box)
    array = reshaped(space, array)
    if np.issubdtype(space.dtype, np.integer) and np.any(array != np.trunc(array)):
        raise BadValueError(
            f"its observation is of {array.dtype} and not whole, and its space is of {space.dtype}: give the space "
            "the type of the observations"
        )
    # Rounding may take a value beyond a bound.
    slack = [1e-5 * np.maximum(1.0, np.abs(np.where(np.isfinite(b), b, 0.0))) for b in (space.low, space.high)]
    outside = (array < space.low - slack[0]) | (array > space.high + slack[1])
    if outside.any():
        at = tuple(np.argwhere(outside)[0].tolist())
        raise BadValueError(
            f"its observation{list(at) if at else ''} is {array[at]}, outside of the bounds of its space, "
            f"{space.low[at]} to {space.high[at]}: give the space the true bounds (-inf and inf where there are none)"
        )
    return array


def reshaped(space: gym.Space[Any], observation: Any) -> Array:
    """An observation as an array of the shape of its `Box`, where only dimensions of size 1 differ.

    Raises:
        BadValueError: where others do.
    """
    array, shape = np.asarray(observation), space.shape or ()
    if array.shape != shape:
        if [size for size in array.shape if size != 1] != [size for size in shape if size != 1]:
            raise BadValueError(f"its observation is of shape {array.shape}, and that of its space is {shape}")
        array = array.reshape(shape)
    return array


def is_plain(space: gym.Space[Any], result: tuple[Any, ...]) -> bool:
    """Whether a step that was checked needs no casting, so that those like it can be taken as they are."""
    observation, reward, terminated, truncated, _ = result
    of_space = np.ndim(observation) == 0 if isinstance(space, gym.spaces.Discrete) else (
        isinstance(observation, np.ndarray) and observation.shape == space.shape
    )  # fmt: skip
    return of_space and all(np.ndim(value) == 0 for value in (reward, terminated, truncated))


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
