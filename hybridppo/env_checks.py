"""What environments return, checked: shapes, types, bounds, and that numbers are finite.

Whether numbers are finite is asked at every step, so it takes one dot product (`finite_test`, a quarter of a
microsecond); the other checks are made on the first reset and the first step.
"""

import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class BadValueError(Exception):
    """What an environment returned cannot be used; the message says what it was."""


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
    array = _as_numbers("its observation", observation)
    require_finite("its observation", array)
    if isinstance(space, gym.spaces.Discrete):
        number = _as_scalar("its observation", array)
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


def checked_step(space: gym.Space[Any], result: Any) -> tuple[Any, float, bool, bool, Any]:
    """What `step` returned, cast where nothing is lost by it.

    Raises:
        BadValueError: where it is no observation of the space, number, two flags, and infos.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        size = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise BadValueError(
            f"its step returned a {type(result).__name__}{size}, and not the five of gymnasium.Env.step: "
            "observation, reward, terminated, truncated, info"
        )
    observation, reward, terminated, truncated, info = result
    observation = checked_observation(space, observation)
    number = float(_as_scalar("its reward", _as_numbers("its reward", reward)))
    require_finite("its reward", np.asarray(number))
    ends = [_as_scalar(f"its {name}", _as_numbers(f"its {name}", flag)) for name, flag in
            (("terminated", terminated), ("truncated", truncated))]  # fmt: skip
    return observation, number, bool(ends[0]), bool(ends[1]), info


def is_plain(space: gym.Space[Any], result: tuple[Any, ...]) -> bool:
    """Whether a step that was checked needs no casting, so that those like it can be taken as they are."""
    observation, reward, terminated, truncated, _ = result
    of_space = np.ndim(observation) == 0 if isinstance(space, gym.spaces.Discrete) else (
        isinstance(observation, np.ndarray) and observation.shape == space.shape
    )  # fmt: skip
    return of_space and all(np.ndim(value) == 0 for value in (reward, terminated, truncated))


def check_vector_observations(space: gym.Space[Any], num_envs: int, observations: Any) -> None:
    """Refuse what a vector environment returned as the observations of its `num_envs` environments.

    Raises:
        BadValueError: naming the environment where one of them is wrong.
    """
    found, expected = np.shape(observations), (num_envs, *(space.shape or ()))
    if found != expected:
        raise BadValueError(f"the observations of {num_envs} environments must be of shape {expected}, not {found}")
    for i, observation in enumerate(observations):
        try:
            checked_observation(space, observation)
        except BadValueError as error:
            raise BadValueError(f"environment {i} of the vector: {error}") from None


def check_vector_step(space: gym.Space[Any], num_envs: int, result: Any) -> None:
    """Likewise, for what a vector environment's first `step` returned."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise BadValueError(f"step must return five values, as gymnasium.vector.VectorEnv does, not {_short(result)}")
    observations, *arrays, _ = result
    check_vector_observations(space, num_envs, observations)
    for name, array in zip(("rewards", "terminated", "truncated"), arrays, strict=True):
        if not isinstance(array, np.ndarray) or array.shape != (num_envs,) or array.dtype.kind not in "biuf":
            kind = f"of {array.dtype} and shape {array.shape}" if isinstance(array, np.ndarray) else _short(array)
            raise BadValueError(f"{name} must be an array of {num_envs} numbers, and is {kind}")


def describe_error(error: Exception) -> str:
    """An environment's error, with its traceback from the environment's own frames on."""
    if isinstance(error, BadValueError):
        return str(error)
    frames = error.__traceback__ and error.__traceback__.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return f"{type(error).__name__}: {error}\n{trace}"


def describe_action(action: Any) -> str:
    """An action, or those of a vector, in one line."""
    return _short(np.asarray(action).tolist())


def _as_numbers(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BadValueError(f"{name} is no array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise BadValueError(f"{name} is no number, or array of numbers: {_short(value)}")
    return array


def _as_scalar(name: str, array: Array) -> Any:
    if array.size != 1:
        raise BadValueError(f"{name} must be one number, and is of shape {array.shape}")
    return array.item()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
