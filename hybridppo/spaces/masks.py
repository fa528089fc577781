"""Observations that say which actions are allowed: the mask is the last part of a row's numbers."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.distributions import REMEDY
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.registry import kind_of, unsupported

Array = NDArray[Any]


class MaskedObservation(gym.spaces.Box):
    """Rows: an observation encoded, and of every choice in an action 1 for what is allowed, 0 for the rest.

    `[size + n]` of float32; with images, bytes (`RowLayout`), where the mask follows the other numbers.

    Args:
        observation: the space of the observations.
        action: that of the actions; of a `Discrete`, how many there are will do.

    Raises:
        EnvError: where there is nothing to choose in an action.
    """

    def __init__(self, observation: gym.Space[Any], action: gym.Space[Any] | int) -> None:
        action = action if isinstance(action, gym.Space) else gym.spaces.Discrete(action)
        self._encode = encode = ObservationEncoder(observation)
        try:
            self._choices = kind_of(action)
        except UnsupportedSpaceError as error:
            raise unsupported("action", action, error, REMEDY) from None
        parts = self._choices.mask_parts
        if not parts:
            raise EnvError(
                "action_masks=True needs a Discrete action space, or another with choices (MultiDiscrete, "
                f"MultiBinary, a Dict or Tuple with such), and this one is {action}: leave it out"
            )
        self.num_actions = sum(size for _, size in parts)
        """Numbers in a mask."""
        nothing, everything = (np.full(self.num_actions, truth, np.float32) for truth in (0, 1))
        low, high = (np.append(bound, end) for bound, end in zip(encode.bounds, (nothing, everything), strict=True))
        self.layout = encode.layout.with_numbers(self.num_actions)
        if self.layout.images:
            super().__init__(0, 255, self.layout.shape, np.uint8)
        else:
            super().__init__(low, high, dtype=np.float32)
        self.bounds = low, high
        self.measured = np.append(encode.measured, np.zeros(self.num_actions, np.bool_))
        self.names = [*encode.names, *(f" (action mask{name}[{i}])" for name, size in parts for i in range(size))]
        self.observation, self.action = observation, action
        self._starts = np.cumsum([0, *(size for _, size in parts[:-1])])

    @property
    def mask_sizes(self) -> list[int]:
        """Among how many each choice is."""
        return [size for _, size in self._choices.mask_parts]

    def row(self, observation: Any, mask: Any) -> Array:
        """A row, of an observation and its mask, in the form that `sample` of the action space takes.

        Raises:
            BadValueError: where either is not of its space.
        """
        return self.joined(observation, self._choices.flat_mask(mask))

    def mask_row(self, mask: Any) -> Array:
        """The mask of a row, `[n]`.

        Raises:
            BadValueError: if it is not of its space.
        """
        return self._choices.flat_mask(mask)

    def joined(self, observation: Any, mask: Array) -> Array:
        """A row, of an observation and the numbers of a mask, `[n]`."""
        row = self._encode.one(observation)
        if not self.layout.images:
            return np.concatenate((row, mask))
        # The numbers, those of the mask, and what was after the numbers.
        flat, end = row.reshape(-1), self._encode.layout.end_of_numbers
        return np.concatenate((flat[:end], mask.view(np.uint8), flat[end:]))

    def require_allowed(self, row: Array) -> None:
        """Refuse a row in which a choice has nothing that is allowed.

        Raises:
            BadValueError: naming the first.
        """
        self.require_choice(self.layout.numbers(row)[-self.num_actions :])

    def require_choice(self, mask: Array) -> None:
        """The same of the numbers of a mask, `[n]`.

        Raises:
            BadValueError: naming the first choice in which nothing is allowed.
        """
        if len(self._starts) == 1 and np.count_nonzero(mask):  # ten times as fast as a sum
            return
        allowed = np.add.reduceat(mask, self._starts)
        if not allowed.all():
            name = self._choices.mask_parts[int(np.flatnonzero(allowed == 0.0)[0])][0]
            where = f" for {name}" if name else ""
            raise BadValueError(f"its action mask allows no action{where}, and the episode has not ended")

    def __repr__(self) -> str:
        return f"MaskedObservation({self.observation}, {self._action})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskedObservation) and (self.observation, self._action) == (
            other.observation, other._action
        )  # fmt: skip

    @property
    def _action(self) -> Any:
        """What of the action space matters."""
        return self.num_actions if isinstance(self.action, gym.spaces.Discrete) else self.action
