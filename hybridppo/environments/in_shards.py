"""The environments of several learners, or of several shards of one."""

from collections.abc import Sequence
from typing import Any, NoReturn

from hybridppo.environments.base import Environments


class EnvironmentShards(Environments):
    """Environments in parts, which have their own samplers; they cannot be stepped together.

    Args:
        parts: of one kind; closed with this.
    """

    def __init__(self, parts: Sequence[Environments]) -> None:
        first = parts[0]
        super().__init__(sum(part.num_envs for part in parts), first.observation_space, first.action_space)
        self.parts = list(parts)
        self.agents, self.device, self.clips_rewards = first.agents, first.device, first.clips_rewards

    def reset(self, seed: int) -> NoReturn:  # noqa: D102 - as in the base
        raise NotImplementedError("each part is reset separately")

    def step(self, actions: Any) -> NoReturn:  # noqa: D102 - as in the base
        raise NotImplementedError("each part is stepped separately")

    def _close(self) -> None:
        for part in self.parts:
            part.close()
