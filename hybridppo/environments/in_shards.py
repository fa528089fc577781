"""Environments in several parts, of which each steps by itself."""

from collections.abc import Sequence
from typing import Any, NoReturn

from hybridppo.environments.base import Environments


class EnvironmentShards(Environments):
    """Parts beside each other, which samplers of their own step; what is common to them is said of all.

    Args:
        parts: of one kind, closed with this.
    """

    def __init__(self, parts: Sequence[Environments]) -> None:
        first = parts[0]
        super().__init__(sum(part.num_envs for part in parts), first.observation_space, first.action_space)
        self.parts = list(parts)
        self.agents, self.device, self.clips_rewards = first.agents, first.device, first.clips_rewards

    def reset(self, seed: int) -> NoReturn:
        """By samplers of their own alone."""
        raise NotImplementedError("each part is reset by itself")

    def step(self, actions: Any) -> NoReturn:
        """Likewise."""
        raise NotImplementedError("each part is stepped by itself")

    def _parts(self) -> NoReturn:
        raise NotImplementedError("each part is saved by itself")

    def _close(self) -> None:
        for part in self.parts:
            part.close()
