"""Environments whose agents have different spaces: rows and actions as wide as the widest agent's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import HoldsRows, RowLayout

if TYPE_CHECKING:
    pass


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
