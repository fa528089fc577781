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


class AgentName(str):
    """An agent's name as text, and the id that the environment has for it, such as a number."""

    id: Any

    def __new__(cls, agent: Any) -> AgentName:
        """The name of an id, or of a name."""
        name = super().__new__(cls, agent)
        name.id = agent.id if isinstance(agent, AgentName) else agent
        return name


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
    def encoders(self) -> dict[str, ObservationEncoder]:
        """An encoder for each agent; equal spaces share one."""
        return dict(zip(self.spaces, encoders_of([*self.spaces.values()]), strict=True))

    @cached_property
    def layout(self) -> RowLayout:  # type: ignore[override]
        """The layout of the row of any agent."""
        return RowLayout(max(encode.size for encode in self.encoders.values()))

    @cached_property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """Names for the numbers of a row, whose meaning differs between agents."""
        return [f"[{i}]" for i in range(self.layout.num_numbers)]

    @cached_property
    def bounds(self) -> tuple[Array, Array]:  # type: ignore[override]
        """Infinite bounds, because those of the agents differ."""
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
    return [observes(AgentName(agent)) for agent in agents]


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
    if any(encode.layout.images or encode.layout.items for encode in encoders):
        raise EnvError(f"critic_observes={more!r} is for agents that observe numbers, and some observe images or items")
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
    """Makes whole rows, which have what critics see besides, from written ones.

    A written row has an agent's own observation, zeros up to the longest one, and then the environment's state, if a
    critic sees it.

    Args:
        spaces: the result of `spaces_with_critics_part`.
        observes: of each agent, as `PPOConfig.critic_observes`.
        width: numbers of a whole row.
    """

    def __init__(self, spaces: Sequence[gym.Space[Any]], observes: Sequence[CriticObserves], width: int) -> None:
        encoders = encoders_of(spaces)
        parts = [{} if sees == "own" else each.by_key for each, sees in zip(encoders, observes, strict=True)]
        ends = [encode.size for encode in encoders]
        places = [part[OWN].numbers if part else slice(0, end) for part, end in zip(parts, ends, strict=True)]
        self.sizes = [place.stop - place.start for place in places]
        """Numbers of each agent's own observation."""
        states = [part[STATE].numbers for part in parts if STATE in part]
        self.state_size = states[0].stop - states[0].start if states else 0
        """Numbers of the environment's state; 0 if no critic sees it."""
        self.size = max(self.sizes) + self.state_size
        """Numbers of a written row."""
        written = np.arange(len(parts) * self.size).reshape(-1, self.size)
        own = [written[slot, :size] for slot, size in enumerate(self.sizes)]
        self.source: Array = np.zeros((len(parts), width), np.int64)
        """`[A, W]`: for each number of a whole row, its place among all written rows of the environment."""
        self.beside: Array = np.ones((len(parts), width), np.bool_)
        """`[A, W]`: other numbers of whole rows, which are zeros."""
        self._own: Array = np.zeros_like(written)
        """`[A, size]`: the places of own observations among all whole rows of an environment."""
        for slot, (place, part) in enumerate(zip(places, parts, strict=True)):
            found = {place.start: own[slot]}
            for key, each in part.items():
                if key == STATE:
                    found[each.numbers.start] = written[slot, self.size - self.state_size :]
                elif key != OWN:
                    found[each.numbers.start] = np.concatenate([*own[:slot], *own[slot + 1 :], written[:0, 0]])
            for start, sources in found.items():
                self.source[slot, start : start + len(sources)] = sources
                self.beside[slot, start : start + len(sources)] = False
            self._own[slot, : self.sizes[slot]] = slot * width + np.arange(width)[place]

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
