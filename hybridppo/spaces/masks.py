"""Observations that say which actions are allowed: the mask is the last part of a row."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.checks import checked_observation, reshaped
from hybridppo.spaces.observations import ObservationEncoder

Array = NDArray[Any]


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
