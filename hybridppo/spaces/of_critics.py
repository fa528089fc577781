"""Rows of several agents whose critics see more than they do: all agents' observations, or the environment's state."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from hybridppo.errors import EnvError, shown
from hybridppo.spaces.observations import encoders_of
from hybridppo.spaces.rows import OWN, CriticObserves

Array = NDArray[Any]

STATE = "state"
"""Key of the part with the environment's state."""


def spaces_with_critics_part(
    observed: Sequence[gym.Space[Any]], observes: CriticObserves, env: Any
) -> list[gym.Space[Any]]:
    """The space of each agent's row: its own observation, and the part that its critic sees besides.

    Args:
        observed: observation space of each agent.
        observes: as `PPOConfig.critic_observes`.
        env: the environment; for "state" it has a `state_space`.

    Raises:
        EnvError: if agents observe images, or the environment has no state.
    """
    if observes == "own":
        return list(observed)
    encoders = encoders_of(observed)
    if any(encode.layout.images for encode in encoders):
        raise EnvError(f"critic_observes={observes!r} is for agents that observe numbers, and some observe images")
    sizes = [encode.size for encode in encoders]
    if observes == "all":
        return [
            gym.spaces.Dict({OWN: own, "others": Box(-np.inf, np.inf, (sum(sizes) - size,))})
            for own, size in zip(observed, sizes, strict=True)
        ]
    space = getattr(env, "state_space", None)
    if not isinstance(space, Box) or not callable(getattr(env, "state", None)):
        raise EnvError(
            f"critic_observes='state' needs an environment with state() and a state_space that is a Box, and that "
            f"of {type(env).__name__} is {shown(space)}: use critic_observes='all'"
        )
    return [gym.spaces.Dict({OWN: own, STATE: Box(-np.inf, np.inf, (int(np.prod(space.shape)),))}) for own in observed]


class CriticRows:
    """The places of both parts in the rows of an environment's agents.

    Args:
        spaces: the result of `spaces_with_critics_part`, unless critics see what their agents see.
        width: numbers of a row.
    """

    def __init__(self, spaces: Sequence[gym.Space[Any]], width: int) -> None:
        parts = [encode.by_key for encode in encoders_of(spaces)]
        self.own = [each[OWN].numbers for each in parts]
        """The place of each agent's own observation in its row."""
        self.state_size = 0
        """Numbers of the environment's state; 0 if critics see all observations."""
        self.source: Array = np.arange(len(parts) * width).reshape(-1, width)
        """`[A, W]`: for each number of a row, its place among all rows of the environment and then its state."""
        flat = [slot * width + np.arange(width)[own] for slot, own in enumerate(self.own)]
        for slot, each in enumerate(parts):
            others = np.concatenate([*flat[:slot], *flat[slot + 1 :], self.source[:0, 0]])
            if STATE in each:
                self.state_size = each[STATE].numbers.stop - each[STATE].numbers.start
                others = self.source.size + np.arange(self.state_size)
            beside = next(part for key, part in each.items() if key != OWN)
            self.source[slot, beside.numbers] = others

    def filled(self, rows: Array, state: Array | None = None) -> Array:
        """Rows `[..., A, W]` with both parts.

        Args:
            rows: rows with the agents' own observations.
            state: of the environment, `[..., state_size]`, if critics see it.
        """
        flat = rows.reshape(*rows.shape[:-2], -1)
        if state is not None:
            flat = np.concatenate((flat, state), axis=-1)
        return flat.take(self.source, axis=-1)


class OthersInRows:
    """Adds the observations of other agents to rows that are written without them, and takes them away.

    Args:
        spaces: the result of `spaces_with_critics_part` for "all".
        width: numbers of a row.
    """

    def __init__(self, spaces: Sequence[gym.Space[Any]], width: int) -> None:
        rows = CriticRows(spaces, width)
        own = np.concatenate([slot * width + np.arange(width)[part] for slot, part in enumerate(rows.own)])
        self._own: Array = own.reshape(len(spaces), -1)
        """`[A, own]`: the places of the agents' own observations among all rows of an environment."""
        self._source: Array = np.searchsorted(own, rows.source)
        """`[A, W]`: as `CriticRows.source`, among own observations alone."""

    def added(self, rows: Array, are_there: Array) -> Array:
        """Rows `[..., N, W]` of own observations `[..., N, own]`; zeros for agents that are not there, `[..., N]`."""
        apart = rows.reshape(*rows.shape[:-2], -1, self._own.size)
        whole: Array = apart.take(self._source, axis=-1).reshape(*rows.shape[:-1], -1)
        whole[~are_there] = 0
        return whole

    def removed(self, rows: Array) -> Array:
        """Own observations `[..., N, own]` of rows `[..., N, W]`."""
        apart = rows.reshape(*rows.shape[:-2], -1, self._source.size)
        return apart.take(self._own, axis=-1).reshape(*rows.shape[:-1], -1)
