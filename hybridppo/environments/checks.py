"""What environments return, checked: shapes, types, bounds, and that numbers are finite.

Whether numbers are finite is asked at every step, so it takes one dot product (`finite_test`, a quarter of a
microsecond); the other checks are made on the first reset and the first step.
"""

import traceback
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, EnvError, HybridPPOError, shown
from hybridppo.spaces.checks import as_numbers, as_scalar, require_finite
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import are_same

Array = NDArray[Any]

TRUTHS = (bool, np.bool_)


def checked_step(encode: ObservationEncoder, result: Any, *, bounds: bool = True) -> tuple[Any, float, bool, bool, Any]:
    """What `step` returned, cast where nothing is lost by it; within the bounds of its space, if so asked.

    Raises:
        BadValueError: if it is no observation of the space, number, two flags, and infos.
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
    return observation, number, as_flag("its terminated", terminated), as_flag("its truncated", truncated), info


def as_flag(name: str, value: Any) -> bool:
    """A flag that an environment gave, perhaps as a number.

    Raises:
        BadValueError: if it is neither true nor false.
    """
    if isinstance(value, TRUTHS):
        return bool(value)
    return bool(as_truth(name, np.asarray(as_scalar(name, as_numbers(name, value)))))


def as_truth(name: str, values: Array) -> Array:
    """An array of flags that may be numbers, as truths.

    Raises:
        BadValueError: if one is neither 0 nor 1.
    """
    if values.dtype == np.bool_:
        return values
    truths: Array = values == 1
    wrong = ~truths & (values != 0)
    if wrong.any():
        raise BadValueError(f"{name} is {values[wrong].ravel()[0]}, which is neither true nor false")
    return truths


def is_plain(encode: ObservationEncoder, result: tuple[Any, ...]) -> bool:
    """Whether a step that was checked needs no casting, so that those like it can be taken as they are."""
    observation, reward, terminated, truncated, _ = result
    of_space = not encode.is_array or (
        isinstance(observation, np.ndarray)
        and observation.shape == encode.space.shape
        and (encode.image is None or observation.dtype == encode.dtype)
    )
    are_truths = all(isinstance(flag, TRUTHS) for flag in (terminated, truncated))
    return of_space and are_truths and np.ndim(reward) == 0


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


def require_spaces_of(
    agent: Any, environment: Any, *, masks_apart: bool = False, error: type[HybridPPOError] = EnvError
) -> None:
    """Refuse an environment whose spaces are not those that an agent was trained in.

    Args:
        agent: has an `observation_space` and an `action_space`, as the settings of a run do.
        environment: likewise.
        masks_apart: whether action masks are not in its observations, but in its infos.
        error: what to raise.

    Raises:
        error: naming each space that differs, as it was and as it is.
    """
    differences = []
    for name in ("observation_space", "action_space"):
        was, found = getattr(agent, name), getattr(environment, name)
        if masks_apart and isinstance(was, MaskedObservation):
            was = was.observation
        if not are_same(was, found):
            was, found = shown(was), shown(found)
            differences.append(f"{name} was {was} and is {found if found != was else 'one of other numbers'}")
    if differences:
        raise error(f"the environment is not the one that was trained in: {'; '.join(differences)}")
