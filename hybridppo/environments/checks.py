"""Checks of what environments return: shapes, types, bounds, and finite numbers.

The check for finite numbers runs at every step, as one dot product (`finite_test`, 0.25 microseconds). Shapes and types
are checked in the first reset and the first step, and bounds after each rollout until there was a warning.
"""

import inspect
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError, EnvError, HybridPPOError, message_of, shown, shown_error
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import as_numbers, as_scalar, require_finite
from hybridppo.spaces.kinds import map_parts
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import are_same

TRUTHS = (bool, np.bool_)


def doubts_about(environments: Any, *, has_own_networks: bool = False) -> Iterator[tuple[str, str]]:
    """Frequent reasons in the environments why learning fails without an error: each fault, and its remedy.

    Args:
        environments: the environments.
        has_own_networks: whether the networks are not the library's, so that they may see images in any form.
    """
    if (wrapper := _normalising_wrapper(environments)) is not None:
        yield (
            f"it has the wrapper {wrapper}, whose statistics are not saved with the agent, and begin anew elsewhere",
            "leave it out: normalize_observations and normalize_rewards of PPOConfig do the same",
        )
    env = _copy_of(environments)
    if env is not None and callable(getattr(env.unwrapped, "action_masks", None)) and not hasattr(env, "mask"):
        yield (
            "it has a method action_masks, and action_masks is False: agents may choose masked actions",
            "action_masks=True (--action-masks) obeys it",
        )
    for part, _ in () if has_own_networks else environments.encode.parts:
        if part.image is not None and (largest := int(part.space.high.max())) < 128:
            yield (
                f"its image{part.path} has bytes up to {largest}, and networks divide bytes by 255",
                f"multiply them by {255 // max(largest, 1)}, and give the space such bounds",
            )
        elif part.image is None and _may_be_image(part.space):
            what = f"its observation{part.path} {part.space.shape} looks like an image of {part.space.dtype}"
            yield (
                f"{what}: networks flatten it, without convolutions",
                "return bytes, 0 to 255, in a Box of uint8 with the shape (height, width, channels), where the "
                "channels of several frames follow one another",
            )


def _copy_of(environments: Any) -> Any:
    """The first of the copies of a gymnasium environment; None if they are no copies of one."""
    environments = getattr(environments, "parts", [environments])[0]  # of several learners
    subs = getattr(environments, "sub_environments", None)
    return subs[0].env if subs and isinstance(subs[0].env, gym.Env) else None


def _normalising_wrapper(environments: Any) -> str | None:
    """The outermost of gymnasium's wrappers that normalise by statistics of their own; None if there is none."""
    env = _copy_of(environments) or getattr(getattr(environments, "parts", [environments])[0], "vector", None)
    while env is not None:
        if type(env).__name__ in ("NormalizeObservation", "NormalizeReward"):
            return type(env).__name__
        env = getattr(env, "env", None)
    return None


def _may_be_image(space: gym.Space[Any]) -> bool:
    """Whether a space has a short axis, first or last, and two longer ones; or has bytes along two or four axes."""
    shape = space.shape or ()
    if len(shape) == 3:
        return min(shape[0], shape[2]) <= 4 and sorted(shape)[1] >= 16
    return len(shape) in (2, 4) and space.dtype == np.uint8 and sorted(shape)[-2] >= 16


def five_of(result: Any, of: str = "gymnasium.Env.step: observation, reward, terminated, truncated, info") -> Any:
    """The result of `step`, which must have five values, as those of the method that is named.

    Raises:
        BadValueError: if it has others.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        size = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise BadValueError(f"its step returned a {type(result).__name__}{size} instead of the five values of {of}")
    return result


def takes_seed(reset: Any) -> bool:
    """Whether a `reset` has a parameter `seed`."""
    try:
        parameters = inspect.signature(reset).parameters
    except (TypeError, ValueError):  # Python cannot inspect it
        return True
    return "seed" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def two_of(result: Any) -> Any:
    """The result of `reset`, which must have two values.

    Raises:
        BadValueError: if it has others.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise BadValueError("its reset did not return two values, as gymnasium.Env.reset: observation, info")
    return result


def checked_step(encode: ObservationEncoder, result: Any) -> tuple[Any, float, bool, bool, Any]:
    """The result of `step`, cast if that loses nothing.

    Raises:
        BadValueError: if it is not an observation of the space, a number, two flags, and infos.
    """
    observation, reward, terminated, truncated, info = five_of(result)
    observation = encode.checked(observation)
    array = as_numbers("its reward", reward)
    if array.size > 1:
        raise BadValueError(
            f"its reward must be one number, and is {shown(reward)}: reward_weights (--reward-weights) makes one of "
            "several; if they are of several agents, wrap it in hybridppo.TupleOfAgents"
        )
    number = float(as_scalar("its reward", array))
    require_finite("its reward", np.asarray(number))
    return observation, number, as_flag("its terminated", terminated), as_flag("its truncated", truncated), info


def as_flag(name: str, value: Any) -> bool:
    """A flag of an environment, which may be a number.

    Raises:
        BadValueError: if it is neither true nor false.
    """
    if isinstance(value, TRUTHS):
        return bool(value)
    return bool(as_truth(name, np.asarray(as_scalar(name, as_numbers(name, value)))))


def as_truth(name: str, values: Array) -> Array:
    """An array of flags, which may be numbers, as booleans.

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


def check_vector_observations(encode: ObservationEncoder, envs: Any, observations: Any) -> None:
    """Refuse invalid observations of a vector's environments, whose numbers are given.

    Raises:
        BadValueError: naming the environment.
    """
    encode.check_shapes(observations, len(envs))
    for env, observation in zip(envs, encode.each(observations), strict=True):
        try:
            encode.checked(observation)
        except BadValueError as error:
            raise BadValueError(f"environment {env} of the vector: {error}") from None


def check_vector_step(encode: ObservationEncoder, envs: Any, result: Any) -> None:
    """Refuse an invalid result of a vector environment's first `step`, or of the first part of its environments."""
    observations, *arrays, _ = five_of(result, "gymnasium.vector.VectorEnv")
    check_vector_observations(encode, envs, observations)
    for name, array in zip(("rewards", "terminated", "truncated"), arrays, strict=True):
        if not isinstance(array, np.ndarray) or array.shape != (len(envs),) or array.dtype.kind not in "biuf":
            kind = f"of {array.dtype} and shape {array.shape}" if isinstance(array, np.ndarray) else shown(array)
            raise BadValueError(f"{name} must be an array of {len(envs)} numbers, and is {kind}")


def describe_error(error: BaseException) -> str:
    """An environment's error, with the part of its traceback that lies in the environment."""
    if isinstance(error, (BadValueError, gym.error.DependencyNotInstalled)):  # the latter says what to install
        return message_of(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_of_library(frames):
        frames = frames.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    remedy = ""
    if isinstance(error, TypeError) and "unexpected keyword argument 'seed'" in message_of(error):
        remedy = " (write reset(self, *, seed=None, options=None), as gymnasium does)"
    elif isinstance(error, SystemExit):
        remedy = " (it called sys.exit() or quit(): return terminated=True to end an episode)"
    return f"{shown_error(error)}{remedy}\n{trace}"


BETWEEN = "hybridppo.", "gymnasium.wrappers.", "gymnasium.core", "gymnasium.utils.", "gymnasium.envs.registration"
"""The modules between a training and what an environment does itself."""


def _is_of_library(frame: TracebackType) -> bool:
    return str(frame.tb_frame.f_globals.get("__name__")).startswith(BETWEEN)


def describe_action(action: Any) -> str:
    """An action, or the actions of a vector, in one line."""
    return shown(map_parts(lambda part: np.asarray(part).tolist(), action))


def require_spaces(env: Any, prefix: str = "", remedy: str = "set self.{} in its __init__") -> None:
    """Refuse an environment that lacks a space, or has something else in its place; a vector has it as `single_...`.

    Raises:
        EnvError: naming the environment and the space.
    """
    for name in (f"{prefix}observation_space", f"{prefix}action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            found = "has none" if space is None else f"has {shown(space)} of {type(space).__module__}"
            kind = type(getattr(env, "unwrapped", env)).__name__
            what = f"the environment {kind} must have a space of gymnasium as its {name}, and {found}"
            raise EnvError(f"{what}: {remedy.format(name)}")


def require_same_spaces(ours: Any, theirs: Any, our_name: str, their_name: str, num_envs: int) -> None:
    """Refuse environments of one vector with different spaces.

    Raises:
        EnvError: naming both environments and the space.
    """
    for name in ("observation", "action"):
        space, other = (getattr(environment, f"{name}_space") for environment in (ours, theirs))
        if space != other:
            raise EnvError(
                f"the {num_envs} environments differ: the {name} space of {their_name} is {other}, that of {our_name} "
                f"is {space}: make copies of one environment"
            )


def require_spaces_of(
    agent: Any, environment: Any, *, error: type[HybridPPOError] = EnvError, remedy: str = ""
) -> None:
    """Refuse an environment whose spaces differ from those of training.

    Args:
        agent: an object with `observation_space` and `action_space`, such as the settings of a run.
        environment: an object with the same attributes.
        error: the type of error to raise.
        remedy: the end of its message, unless only bounds of observations differ.

    Raises:
        error: naming each space that differs, before and now.
    """
    differences = []
    for name in ("observation_space", "action_space"):
        was, found = getattr(agent, name), getattr(environment, name)
        if not are_same(was, found):
            if name == "observation_space" and _differ_by_bounds(was, found):
                remedy = (
                    ": if its numbers mean the same, give it the bounds of before, as "
                    "gymnasium.wrappers.TransformObservation(env, lambda o: o, agent.observation_space) does"
                )
            was, found = shown(was), shown(found)
            differences.append(f"{name} was {was} and is {found if found != was else 'one of other numbers'}")
    if differences:
        raise error(f"the environment is not the one that was trained in: {'; '.join(differences)}{remedy}")


def _differ_by_bounds(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    are_boxes = isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box)
    return are_boxes and (one.shape, one.dtype) == (other.shape, other.dtype)
