"""Wrappers of environments: action masks in observations, and stacks of observations."""

from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np

from hybridppo.environments.checks import five_of, two_of
from hybridppo.errors import BadValueError, ConfigurationError, MissingEntryError
from hybridppo.spaces.frames import StackedFrames, num_frames_of
from hybridppo.spaces.items import limited, max_items_of
from hybridppo.spaces.kinds import kind_of
from hybridppo.spaces.masks import MASK, MaskedObservation, mask_apart
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.system.validation import require_whole


def has_mask(space: gym.Space[Any]) -> bool:
    """Whether an observation space has a mask part."""
    return isinstance(space, gym.spaces.Dict) and MASK in space.spaces and len(space.spaces) > 1


def without_mask(space: gym.Space[Any]) -> gym.Space[Any]:
    """The space without its mask part; if only one part is left, the space of that part."""
    if not has_mask(space):
        return space
    others = {key: part for key, part in cast("gym.spaces.Dict", space).spaces.items() if key != MASK}
    return next(iter(others.values())) if len(others) == 1 else gym.spaces.Dict(others)


def mask_for_sample(space: gym.Space[Any], mask: Any) -> Any:
    """A valid mask in the form that `space.sample(mask)` takes: of int8, and in tuples for a MultiDiscrete."""
    if mask is None or isinstance(space, gym.spaces.Box):
        return None
    if isinstance(space, gym.spaces.Dict):
        return {key: mask_for_sample(part, mask[key]) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map(mask_for_sample, space.spaces, mask))
    if not isinstance(space, gym.spaces.MultiDiscrete):
        return np.asarray(mask).astype(np.int8)
    parts: Any = np.split(kind_of(space).flat_mask(mask).astype(np.int8), np.cumsum(space.nvec.ravel())[:-1])
    for length in reversed(space.nvec.shape[1:]):
        parts = [tuple(parts[i : i + length]) for i in range(0, len(parts), length)]
    return tuple(parts)


class RowMaker:
    """Makes rows from observations, and from masks if there are any.

    Args:
        own: encodes observations, without masks.
        action: the action space; None for rows without masks.
        is_within: whether the mask comes within the observation, and not in the info.

    Raises:
        EnvError: if actions have no choices, since only choices can be masked.
    """

    def __init__(self, own: ObservationEncoder, action: gym.Space[Any] | None, is_within: bool = False) -> None:
        self._own, self._is_within = own, is_within
        self._masked = None if action is None else MaskedObservation(own.space, action)
        self.space = own.space if self._masked is None else self._masked

    def row(self, observation: Any, info: Any, *, has_ended: bool = False, is_checked: bool = False) -> tuple[Any, Any]:
        """A row, and its mask, None if there is none.

        Args:
            observation: the observation.
            info: the info.
            has_ended: whether the mask may allow no action, or be missing.
            is_checked: whether the shape and the type of the observation are checked.

        Raises:
            BadValueError: if there is no mask, or the mask or the observation is invalid.
        """
        if self._is_within:
            observation, info = mask_apart(observation)
        if is_checked:
            observation = self._own.checked(observation)
        if (space := self._masked) is None:
            return self._own.one(observation), None
        mask = info.get(MASK) if isinstance(info, (dict, Mapping)) else None
        if mask is not None:
            numbers = space.choices.flat_mask(mask)
        elif has_ended:
            numbers = np.zeros(space.num_actions, np.float32)
        else:
            found = f"it has {sorted(map(str, info))}" if info else "it is empty"
            raise MissingEntryError(
                f"its info has no 'action_mask', or None ({found}): put one into every info of reset and step, or "
                "leave action_masks out"
            )
        if not has_ended:
            space.require_choice(numbers)
        return space.joined(observation, numbers), mask


class MaskInObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the mask in `info["action_mask"]` to an environment's observations, which become rows.

    If observations have a part "action_mask", that is the mask; else, without such an info, what the environment's
    method `action_masks` returns.

    Raises:
        EnvError: if its actions have no choices, since only choices can be masked.
    """

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        super().__init__(env)
        own, is_within = without_mask(env.observation_space), has_mask(env.observation_space)
        self._rows = RowMaker(ObservationEncoder(own), env.action_space, is_within)
        self.observation_space = self._rows.space
        method = getattr(env.unwrapped, "action_masks", None)
        self._masks: Any = None if is_within or not callable(method) else method
        self._has_begun = False
        self.mask: Any = None
        """The mask of the last info."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The row of the first observation."""
        observation, info = two_of(self.env.reset(seed=seed, options=options))
        is_checked, self._has_begun = not self._has_begun, True
        row, self.mask = self._rows.row(observation, self._with_mask(info), is_checked=is_checked)
        return row, info

    def step(self, action: Any) -> Any:
        """The row of the next observation."""
        observation, reward, terminated, truncated, info = five_of(self.env.step(action))
        has_ended = bool(np.any(terminated) or np.any(truncated))
        row, self.mask = self._rows.row(observation, self._with_mask(info), has_ended=has_ended)
        return row, reward, terminated, truncated, info

    def _with_mask(self, info: Any) -> Any:
        return info if self._masks is None or MASK in info else {MASK: self._masks()}


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """Stacks an environment's last observations, oldest first, as `train(frame_stack=4)` does.

    At the start of an episode, the stack repeats the first observation. An agent trained with `frame_stack` acts on
    these observations.

    Args:
        env: an environment with observations of a `Box`.
        num_frames: observations in a stack.

    Raises:
        ConfigurationError: if `num_frames` is not at least 1.
        EnvError: if the observation space is not a `Box`, or has images that are too small.
    """

    def __init__(self, env: "gym.Env[Any, Any]", num_frames: int) -> None:
        super().__init__(env)
        self._space = StackedFrames(env.observation_space, require_whole("num_frames", num_frames))
        self.observation_space = self._space
        self._frames: deque[Any] = deque(maxlen=num_frames)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, repeated.

        Raises:
            BadValueError: if its shape is not that of its space.
        """
        observation, info = two_of(self.env.reset(seed=seed, options=options))
        self._frames += [self._checked(observation)] * self._space.num_frames
        return self._space.stack(list(self._frames)), info

    def step(self, action: Any) -> Any:
        """The last observations.

        Raises:
            BadValueError: as for `reset`.
        """
        observation, *others = five_of(self.env.step(action))
        self._frames.append(self._checked(observation))
        return (self._space.stack(list(self._frames)), *others)

    def _checked(self, observation: Any) -> Any:
        array = np.array(observation)  # a copy: the environment may reuse its array
        if array.shape != (shape := self._space.frame.shape):
            raise BadValueError(f"its observation is of shape {array.shape}, and its space has {shape}")
        return array


def stacked(env: Any, num_frames: int) -> Any:
    """An environment with stacked observations; it may have stacked them already."""
    return env if num_frames_of(env.observation_space) == num_frames else FrameStack(env, num_frames)


def with_limit(env: "gym.Env[Any, Any]", max_items: int) -> "gym.Env[Any, Any]":
    """An environment whose observation space says how many items sequences and graphs have at most.

    Raises:
        ConfigurationError: if the space has neither.
    """
    space = limited(env.observation_space, max_items)
    if not max_items_of(space):
        what = f"max_items={max_items} is for observations with a Sequence or a Graph, and these are of {space}"
        raise ConfigurationError(f"{what}: leave it out")
    return gym.wrappers.TransformObservation(env, lambda observation: observation, space)
