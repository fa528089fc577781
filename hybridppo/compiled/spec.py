"""The data of a compiled environment: spaces, state and functions, as in its class."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

ActionKind = Literal["choice", "choices", "numbers"]


@dataclass(frozen=True, repr=False)
class EnvironmentSpec:
    """The functions of an environment, and their arguments."""

    name: str
    state: np.dtype[Any]
    """A record type: the fields by name."""
    observation_space: gym.spaces.Box
    """One-dimensional, float32."""
    action_space: gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box
    """A `Box` is one-dimensional; `step` takes a number for `Discrete`, else an array."""
    episode_length: int
    """Steps after which an episode is truncated; 0 for never."""
    functions: dict[str, Callable[..., Any]]
    """As in the class: `reset`, `step` and `observe`; with several agents `reset`, phases, `reward`, `end` and
    `observe`."""
    policies: dict[str, int] = field(default_factory=dict)
    """With several agents, their kinds and the number of agents of each."""
    phases: tuple[str, ...] = ()
    """With several agents, the names of the phases."""
    state_space: gym.spaces.Box | None = None
    """With several agents, the space of what critics may see: what `observe_state` writes. One-dimensional, float32."""
    draw: Callable[..., Any] | None = None
    """Makes a picture of a state, `[height, width, 3]` of bytes; plain Python that is never compiled."""

    @property
    def action_kind(self) -> ActionKind:
        """The kind of the action space."""
        if isinstance(self.action_space, gym.spaces.Box):
            return "numbers"
        return "choice" if isinstance(self.action_space, gym.spaces.Discrete) else "choices"

    @property
    def action_size(self) -> int:
        """Numbers in an action."""
        return int(np.prod(self.action_space.shape or ()))

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, kind by kind; empty for a single agent."""
        return tuple(f"{kind}_{number}" for kind, count in self.policies.items() for number in range(count))
