"""Environments with several agents: their spaces, and what their critics see besides.

Agents may have different spaces; rows are then as wide as the widest agent's. Critics may see the observations of all
agents, or the environment's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from hybridppo.errors import EnvError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.observations import ObservationEncoder, encoders_of
from hybridppo.spaces.rows import OWN, CriticObserves, HoldsRows, ObservesOfAgents, RowLayout


class SpacesOfAgents(gym.spaces.Dict, HoldsRows):
    """The observation space, or the action space, of each agent of an environment, by the agent's name.

    An observation is a row of float32: the agent's own row, number by number, and then zeros up to the longest. If it
    has images, its own row is bytes, and each byte is a number here (`RowLayout.own`).
    """

    def __init__(self, spaces: Mapping[str, gym.Space[Any]]) -> None:
        super().__init__(list(spaces.items()))

    def difference(self, agents: Sequence[str]) -> str | None:
        """The end of a sentence that names two of these agents with different spaces; None if all spaces are equal."""
        (first, model), *others = [(name, self.spaces[name]) for name in agents]
        parts = (
            f"of {first!r} is {shown(model)}, that of {name!r} {shown(one)}" for name, one in others if one != model
        )
        return next(parts, None)

    @cached_property
    def layout(self) -> RowLayout:  # type: ignore[override]
        """The layout of the row of any agent."""
        return RowLayout(max(ObservationEncoder(space).size for space in self.spaces.values()))

    @cached_property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """Names for the numbers of a row, whose meaning differs between agents."""
        return [f"[{i}]" for i in range(self.layout.num_numbers)]

    @cached_property
    def bounds(self) -> tuple[Array, Array]:  # type: ignore[override]
        """Infinite bounds: each agent's own bounds are checked when it observes."""
        ends = np.full(self.layout.num_numbers, np.inf, np.float32)
        return -ends, ends

    @cached_property
    def measured(self) -> Array:  # type: ignore[override]
        """True for all numbers, as if they were quantities."""
        return np.ones(self.layout.num_numbers, np.bool_)


def joint_space(names: Iterable[Any], spaces: Sequence[gym.Space[Any]]) -> gym.Space[Any]:
    """The space that all agents of these names share, or `SpacesOfAgents`."""
    if all(space == spaces[0] for space in spaces):
        return spaces[0]
    return SpacesOfAgents({str(name): space for name, space in zip(names, spaces, strict=True)})


def each_space(space: gym.Space[Any]) -> list[gym.Space[Any]]:
    """The space of each agent; the space itself if all agents share it."""
    return [*space.spaces.values()] if isinstance(space, SpacesOfAgents) else [space]


STATE = "state"
"""Key of the part with the environment's state."""


def each_observes(observes: ObservesOfAgents, agents: Iterable[Any]) -> list[CriticObserves]:
    """The `critic_observes` of each agent."""
    if isinstance(observes, str):
        return [observes for _ in agents]
    if isinstance(observes, Mapping):
        return [observes.get(str(agent), "own") for agent in agents]
    return [observes(str(agent)) for agent in agents]


def spaces_with_critics_part(
    observed: Sequence[gym.Space[Any]], observes: Sequence[CriticObserves], env: Any
) -> list[gym.Space[Any]]:
    """The space of each agent's row: its own observation, and the part that its critic sees besides.

    Args:
        observed: observation space of each agent.
        observes: of each agent, as `PPOConfig.critic_observes`.
        env: the environment; for "state" it has a `state_space`.

    Raises:
        EnvError: if agents observe images, or the environment has no state.
    """
    more = next((each for each in observes if each != "own"), None)
    if more is None:
        return list(observed)
    encoders = encoders_of(observed)
    if any(encode.layout.images for encode in encoders):
        raise EnvError(f"critic_observes={more!r} is for agents that observe numbers, and some observe images")
    sizes = [encode.size for encode in encoders]
    found: list[gym.Space[Any]] = []
    for own, size, sees in zip(observed, sizes, observes, strict=True):
        if sees == "own":
            found.append(own)
        elif sees == "all":
            found.append(gym.spaces.Dict({OWN: own, "others": Box(-np.inf, np.inf, (sum(sizes) - size,))}))
        else:
            found.append(gym.spaces.Dict({OWN: own, STATE: Box(-np.inf, np.inf, (_state_size(env),))}))
    return found


def _state_size(env: Any) -> int:
    space = getattr(env, "state_space", None)
    if not isinstance(space, Box) or not callable(getattr(env, "state", None)):
        raise EnvError(
            f"critic_observes='state' needs an environment with state() and a state_space that is a Box, and that "
            f"of {type(env).__name__} is {shown(space)}: use critic_observes='all'"
        )
    return int(np.prod(space.shape))


class CriticRows:
    """The places, in the rows of an environment's agents, of own observations and of what critics see besides.

    Args:
        spaces: the result of `spaces_with_critics_part`.
        observes: of each agent, as `PPOConfig.critic_observes`.
        width: numbers of a row.
    """

    def __init__(self, spaces: Sequence[gym.Space[Any]], observes: Sequence[CriticObserves], width: int) -> None:
        encoders = encoders_of(spaces)
        parts = [{} if sees == "own" else each.by_key for each, sees in zip(encoders, observes, strict=True)]
        self.own = [
            part[OWN].numbers if part else slice(0, each.size) for part, each in zip(parts, encoders, strict=True)
        ]
        """The place of each agent's own observation in its row."""
        self.state_size = 0
        """Numbers of the environment's state; 0 if no critic sees it."""
        self.source: Array = np.arange(len(parts) * width).reshape(-1, width)
        """`[A, W]`: for each number of a row, its place among all rows of the environment and then its state."""
        flat = [slot * width + np.arange(width)[own] for slot, own in enumerate(self.own)]
        for slot, each in enumerate(parts):
            if not each:
                continue
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


class WrittenRows:
    """Makes whole rows from written rows, which have an agent's own observation and then the state, if there is one.

    All agents have own observations of the same size.

    Args:
        rows: the places of both parts in whole rows.
        size: numbers of a written row.
    """

    def __init__(self, rows: CriticRows, size: int) -> None:
        num_agents, width = rows.source.shape
        written = np.arange(num_agents * size).reshape(num_agents, size)
        places = np.full(rows.source.size, -1)
        self._own: Array = np.zeros_like(written)
        """`[A, size]`: the places of own observations among all whole rows of an environment."""
        for slot, own in enumerate(rows.own):
            number = own.stop - own.start
            self._own[slot, :number] = slot * width + np.arange(width)[own]
            places[self._own[slot, :number]] = written[slot, :number]
        of_state = written[:, :1] + size - rows.state_size + rows.source - rows.source.size
        found = np.where(rows.source < rows.source.size, places.take(rows.source, mode="clip"), of_state)
        self.beside: Array = found < 0
        """`[A, W]`: the zeros after the rows of agents with shorter ones."""
        self.source: Array = found.clip(0)
        """`[A, W]`: as `CriticRows.source`, among written rows."""

    def whole(self, rows: Array, are_there: Array) -> Array:
        """Whole rows `[..., N, W]` from written ones `[..., N, size]`, with zeros for agents that are not present.

        Args:
            rows: written rows.
            are_there: `[..., N]`, whether each agent is present.
        """
        apart = rows.reshape(*rows.shape[:-2], -1, self._own.size)
        found: Array = apart.take(self.source, axis=-1)
        if self.beside.any():
            found[..., self.beside] = 0
        found = found.reshape(*rows.shape[:-1], -1)
        found[~are_there] = 0
        return found

    def written(self, rows: Array) -> Array:
        """Written rows `[..., N, size]` with the own observations of whole rows `[..., N, W]`; the state is invalid."""
        apart = rows.reshape(*rows.shape[:-2], -1, self.source.size)
        return apart.take(self._own, axis=-1).reshape(*rows.shape[:-1], -1)
