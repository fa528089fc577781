"""Observations with action masks: the mask is the last part of a row's numbers."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError, EnvError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import REMEDY, UnsupportedSpaceError, unsupported
from hybridppo.spaces.kinds import kind_of
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import HoldsRows

MASK = "action_mask"
"""The key of the mask in observations of PettingZoo's classic games."""


def mask_apart(observation: Any) -> tuple[Any, dict[str, Any]]:
    """Split an observation with a mask part into the observation without it, and an info with the mask.

    Raises:
        BadValueError: if it has no mask.
    """
    if not isinstance(observation, (dict, Mapping)) or MASK not in observation:
        raise BadValueError(f"its observation has no part {MASK!r}, as its space has: {shown(observation)}")
    info = {MASK: observation[MASK]}
    if len(observation) == 2:
        return next(part for key, part in observation.items() if key != MASK), info
    return {key: part for key, part in observation.items() if key != MASK}, info


def which_have_masks(actions: Sequence[gym.Space[Any]]) -> list[bool]:
    """For each agent's action space, whether it has choices, which a mask can forbid; all are true if none has."""
    found = []
    for action in actions:
        try:
            found.append(bool(kind_of(action).mask_parts))
        except UnsupportedSpaceError:  # refused with all other actions
            found.append(True)
    return found if any(found) else [True] * len(found)


class MaskedObservation(gym.spaces.Box, HoldsRows):
    """The space of rows that hold an encoded observation and a mask: 1 for each allowed option, 0 for the others.

    A row is float32 `[size + n]`; with images it is bytes (`RowLayout`), and the mask follows the other numbers.

    Args:
        observation: the observation space.
        action: the action space; for a `Discrete` space the number of actions is enough.

    Raises:
        EnvError: if an action has no choice.
    """

    def __init__(self, observation: gym.Space[Any], action: gym.Space[Any] | int) -> None:
        action = action if isinstance(action, gym.Space) else gym.spaces.Discrete(action)
        self._encode = encode = ObservationEncoder(observation)
        try:
            self.choices = kind_of(action)
            """The kind of the actions, which flattens masks."""
        except UnsupportedSpaceError as error:
            raise unsupported("action", action, error, REMEDY) from None
        parts = self.choices.mask_parts
        if not parts:
            raise EnvError(
                "action_masks=True needs a Discrete action space, or another with choices (MultiDiscrete, "
                f"MultiBinary, a Dict or Tuple with such), and this one is {action}: leave it out"
            )
        self.num_actions = sum(size for _, size in parts)
        """Length of a mask."""
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

    def seeing(self, keys: Sequence[str]) -> "MaskedObservation":
        """A copy whose rows have zeros in place of the parts of observations without these keys."""
        other = copy(self)
        other._encode = self._encode.seeing(keys)
        return other

    @property
    def mask_sizes(self) -> list[int]:
        """Number of options of each choice."""
        return [size for _, size in self.choices.mask_parts]

    def row(self, observation: Any, mask: Any) -> Array:
        """The row of an observation and its mask, which has the form that `action_space.sample(mask)` takes.

        Raises:
            BadValueError: if either does not fit its space.
        """
        return self.joined(observation, self.choices.flat_mask(mask))

    def rows(self, observations: Any, masks: Sequence[Any]) -> Array:
        """Rows `[N, *row]` of a batch of observations, as gymnasium's vectors give it, and the mask of each.

        Raises:
            BadValueError: as `row`, and if there are not as many masks as observations.
        """
        self._encode.check_shapes(observations, len(masks))
        pairs = zip(self._encode.each(observations), masks, strict=True)
        return np.stack([self.row(observation, mask) for observation, mask in pairs])

    def joined(self, observation: Any, mask: Array) -> Array:
        """The row of an observation and the numbers of a mask, `[n]`."""
        row = self._encode.one(observation)
        if not self.layout.images:
            return np.concatenate((row, mask))
        # The numbers, the mask, and then the images.
        flat, end = row.reshape(-1), self._encode.layout.end_of_numbers
        return np.concatenate((flat[:end], mask.view(np.uint8), flat[end:]))

    def require_allowed(self, row: Array) -> None:
        """Refuse a row whose mask allows no option of a choice.

        Raises:
            BadValueError: naming the first such choice.
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
            name = self.choices.mask_parts[int(allowed.argmin())][0]
            where = f" for {name}" if name else ""
            raise BadValueError(f"its action mask allows no action{where}, and the episode has not ended")

    def __repr__(self) -> str:
        return f"MaskedObservation({self.observation}, {self._action})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MaskedObservation):
            return False
        return (self.observation, self._action) == (other.observation, other._action)

    @property
    def _action(self) -> Any:
        """The part of the action space that matters for equality."""
        return self.num_actions if isinstance(self.action, gym.spaces.Discrete) else self.action
