"""Observations as networks take them: rows of float32, or images of bytes.

Where it is asked for, a row tells which actions are allowed: that mask is the last part of it. So wherever an
observation goes, to a worker's memory, to a GPU, to a checkpoint, its mask goes with it, and nothing on the way need
know of masks.
"""

import math
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.env_checks import BadValueError, checked_observation, reshaped
from hybridppo.errors import EnvError
from hybridppo.images import ImageLayout

Array = NDArray[Any]

_FLOAT32 = np.dtype(np.float32)


class ObservationEncoder:
    """Observations of a space: a `Box` flattened, a `Discrete` one-hot, as float32; images (`ImageLayout`) as they are.

    Raises:
        EnvError: for other spaces.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space
        self.image = ImageLayout.of(space)
        """How they are images, if so."""
        self.dtype = np.dtype(np.uint8) if self.image is not None else _FLOAT32
        self._takes_as_it_is = False
        if isinstance(space, gym.spaces.Discrete):
            self.shape: tuple[int, ...] = (int(space.n),)
            """Of one observation, encoded."""
        elif isinstance(space, gym.spaces.Box):
            self.shape = space.shape if self.image is not None else (int(np.prod(space.shape)),)
            self._takes_as_it_is = self.shape == space.shape
        else:
            raise EnvError(
                f"the observation space {space} is not supported: use a Box of vectors or images, or a Discrete "
                "(gymnasium.wrappers.FlattenObservation makes a Box of most others)"
            )
        self.size = math.prod(self.shape)
        """Numbers in it."""

    def __call__(self, observations: Array) -> Array:
        """`[N, *space] -> [N, *shape]`, of `dtype`."""
        if self._takes_as_it_is and observations.dtype is self.dtype:
            return observations
        if isinstance(self._space, gym.spaces.Discrete):
            choices = np.arange(self._space.start, self._space.start + self._space.n)
            one_hot: Array = np.asarray(observations)[..., None] == choices
            return one_hot.astype(np.float32)
        return np.asarray(observations).reshape(len(observations), *self.shape).astype(self.dtype, copy=False)


class MaskedObservation(gym.spaces.Box):
    """Rows `[size + n]` of float32: an observation encoded, then 1 for every action that is allowed, 0 for the others.

    Args:
        observation: the space of the observations.
        num_actions: `n`.
    """

    def __init__(self, observation: gym.Space[Any], num_actions: int) -> None:
        encode = ObservationEncoder(observation)
        if encode.image is not None:
            raise EnvError(f"action_masks=True is not supported beside images, and the observations are {observation}")
        bounds = [np.zeros(encode.size, np.float32), np.ones(encode.size, np.float32)]
        if isinstance(observation, gym.spaces.Box):
            bounds = [encode(bound[None])[0] for bound in (observation.low, observation.high)]
        low, high = (
            np.append(bound, np.full(num_actions, end, np.float32)) for bound, end in zip(bounds, (0, 1), strict=True)
        )
        super().__init__(low, high, dtype=np.float32)
        self.observation, self.num_actions = observation, num_actions
        self._encode = encode

    def row(self, observation: Any, mask: Any) -> Array:
        """`[size + n]`, of an observation and its mask `[n]`.

        Raises:
            BadValueError: where either is not of its space.
        """
        if isinstance(self.observation, gym.spaces.Discrete):
            observation = checked_observation(self.observation, observation)
        else:
            observation = reshaped(self.observation, observation)
        return np.concatenate((self._encode(np.asarray(observation)[None])[0], self._checked(mask)))

    def _checked(self, mask: Any) -> Array:
        array = np.asarray(mask)
        if array.shape != (self.num_actions,) or array.dtype.kind not in "biuf":
            raise BadValueError(
                f"its action mask must be {self.num_actions} truths, one for each action, and is "
                f"{array.tolist() if array.size < 100 else f'of shape {array.shape}'}"
            )
        allowed: Array = (array != 0).astype(np.float32)
        return allowed

    def __repr__(self) -> str:
        return f"MaskedObservation({self.observation}, {self.num_actions})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskedObservation) and (self.observation, self.num_actions) == (
            other.observation, other.num_actions
        )  # fmt: skip


class MaskInObservation(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with the mask that it gives in `info["action_mask"]` as a part of its observations.

    Raises:
        EnvError: where its actions are not choices, which alone can be masked.
    """

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        super().__init__(env)
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise EnvError(
                f"action_masks=True needs a Discrete action space, and this one is {env.action_space}: leave it out"
            )
        self._space = MaskedObservation(env.observation_space, int(env.action_space.n))
        self.observation_space = self._space
        self._has_begun = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The row of the first observation.

        Raises:
            BadValueError: where it has no mask of its actions, or one that allows none.
        """
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            return cast("tuple[Any, dict[str, Any]]", result)  # which is refused as it would be without masks
        observation, info = result
        if not self._has_begun:
            self._has_begun = True
            observation = checked_observation(self._space.observation, observation)
        return self._row(observation, info), info

    def step(self, action: Any) -> Any:
        """The row of the next observation.

        Raises:
            BadValueError: likewise, but where the episode has ended: nothing is to be done there.
        """
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        observation, reward, terminated, truncated, info = result
        has_ended = bool(np.any(terminated) or np.any(truncated))
        return self._row(observation, info, has_ended), reward, terminated, truncated, info

    def _row(self, observation: Any, info: Any, has_ended: bool = False) -> Array:
        mask = info.get("action_mask") if isinstance(info, dict) else None
        if mask is None and has_ended:
            mask = np.zeros(self._space.num_actions, np.int8)
        if mask is None:
            raise BadValueError(
                f"its info has no 'action_mask' ({f'it has {sorted(map(str, info))}' if info else 'it is empty'}): put "
                "it there, or leave action_masks out"
            )
        row = self._space.row(observation, mask)
        if not (has_ended or row[-self._space.num_actions :].any()):
            raise BadValueError("its action mask allows no action, and the episode has not ended")
        return row
