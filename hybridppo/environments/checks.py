"""What environments return, checked: shapes, types, bounds, and that numbers are finite.

Whether numbers are finite is asked at every step, so it takes one dot product (`finite_test`, a quarter of a
microsecond); the other checks are made on the first reset and the first step.
"""

import traceback
from typing import Any

import numpy as np

from hybridppo.errors import BadValueError, EnvError, shown
from hybridppo.spaces.checks import as_numbers, as_scalar, require_finite
from hybridppo.spaces.observations import ObservationEncoder


def checked_step(encode: ObservationEncoder, result: Any, *, bounds: bool = True) -> tuple[Any, float, bool, bool, Any]:
    """What `step` returned, cast where nothing is lost by it; within the bounds of its space, if so asked.

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
    observation = encode.checked(observation, bounds=bounds)
    number = float(as_scalar("its reward", as_numbers("its reward", reward)))
    require_finite("its reward", np.asarray(number))
    ends = [as_scalar(f"its {name}", as_numbers(f"its {name}", flag)) for name, flag in
            (("terminated", terminated), ("truncated", truncated))]  # fmt: skip
    return observation, number, bool(ends[0]), bool(ends[1]), info


def is_plain(encode: ObservationEncoder, result: tuple[Any, ...]) -> bool:
    """Whether a step that was checked needs no casting, so that those like it can be taken as they are."""
    observation, reward, terminated, truncated, _ = result
    of_space = not encode.is_array or (
        isinstance(observation, np.ndarray)
        and observation.shape == encode.space.shape
        and (encode.image is None or observation.dtype == encode.dtype)
    )
    return of_space and all(np.ndim(value) == 0 for value in (reward, terminated, truncated))


def check_vector_observations(encode: ObservationEncoder, num_envs: int, observations: Any) -> None:
    """Refuse what a vector environment returned as the observations of its `num_envs` environments.

    Raises:
        BadValueError: naming the environment where one of them is wrong.
    """
    encode.check_shapes(observations, num_envs)
    for i, observation in enumerate(encode.each(observations)):
        try:
            encode.checked(observation)
        except BadValueError as error:
            raise BadValueError(f"environment {i} of the vector: {error}") from None


def check_vector_step(encode: ObservationEncoder, num_envs: int, result: Any) -> None:
    """Likewise, for what a vector environment's first `step` returned."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise BadValueError(f"step must return five values, as gymnasium.vector.VectorEnv does, not {shown(result)}")
    observations, *arrays, _ = result
    check_vector_observations(encode, num_envs, observations)
    for name, array in zip(("rewards", "terminated", "truncated"), arrays, strict=True):
        if not isinstance(array, np.ndarray) or array.shape != (num_envs,) or array.dtype.kind not in "biuf":
            kind = f"of {array.dtype} and shape {array.shape}" if isinstance(array, np.ndarray) else shown(array)
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
    return shown(_plain(action))


def _plain(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _plain(part) for key, part in action.items()}
    return tuple(map(_plain, action)) if isinstance(action, tuple) else np.asarray(action).tolist()


def require_same_spaces(ours: Any, theirs: Any, our_name: str, their_name: str, num_envs: int) -> None:
    """Refuse environments of one vector that differ in a space.

    Raises:
        EnvError: naming both, and the space.
    """
    for name in ("observation", "action"):
        space, other = (getattr(environment, f"{name}_space") for environment in (ours, theirs))
        if space != other:
            raise EnvError(
                f"the {num_envs} environments differ: the {name} space of {their_name} is {other}, that of {our_name} "
                f"is {space}: make copies of one environment"
            )
