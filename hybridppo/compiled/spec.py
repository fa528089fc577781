"""The data of a compiled environment: its spaces, its state and its functions, as its class has them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

ActionKind = Literal["choice", "choices", "numbers"]


@dataclass(frozen=True, repr=False)
class EnvironmentSpec:
    """What the functions of an environment are, and what they take and write."""

    name: str
    state: np.dtype[Any]
    """A record: the fields by name."""
    observation_space: gym.spaces.Box
    """It has one dimension, float32."""
    action_space: gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box
    """A `Box` is of one dimension, float32; `step` has a number for `Discrete`, and else an array."""
    episode_length: int
    """Steps after which an episode is truncated; 0 for never."""
    functions: dict[str, Callable[..., Any]]
    """As they are in the class: `reset`, `step` and `observe`; of several agents `reset`, phases, `reward`, `end` and
    `observe`."""
    policies: dict[str, int] = field(default_factory=dict)
    """Where it has several agents: the kinds of them, and how many there are of each."""
    phases: tuple[str, ...] = ()
    """Likewise: the names of its phases."""
    draw: Callable[..., Any] | None = None
    """Makes a picture of a state, `[height, width, 3]` of bytes; plain Python, and never compiled."""

    @property
    def action_kind(self) -> ActionKind:
        """What `step` is given."""
        if isinstance(self.action_space, gym.spaces.Box):
            return "numbers"
        return "choice" if isinstance(self.action_space, gym.spaces.Discrete) else "choices"

    @property
    def action_size(self) -> int:
        """How many numbers an action is."""
        return int(np.prod(self.action_space.shape or ()))

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents, kind by kind; none where it has a single one."""
        return tuple(f"{kind}_{number}" for kind, count in self.policies.items() for number in range(count))
