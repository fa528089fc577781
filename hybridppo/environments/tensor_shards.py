"""Environments of tensors in several parts, of which each steps by itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import Environments, EnvState, Step
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.errors import EnvStateError

Array = NDArray[Any]


class TensorShards(Environments):
    """Parts beside each other, which samplers of their own step; what is common to them is said of all.

    Args:
        parts: of one kind, closed with this.
    """

    def __init__(self, parts: Sequence[TensorEnvironments]) -> None:
        first = parts[0]
        super().__init__(sum(part.num_envs for part in parts), first.observation_space, first.action_space)
        self.parts = list(parts)
        self.clips_rewards = first.clips_rewards

    def reset(self, seed: int) -> Array:
        """Each part from a seed of its own."""
        return np.concatenate([part.reset(seed + i) for i, part in enumerate(self.parts)])

    def step(self, actions: Any) -> Step:
        """By samplers of their own alone."""
        raise NotImplementedError("each part is stepped by itself")

    def state(self) -> list[EnvState]:
        """Likewise."""
        raise EnvStateError("each part is saved by itself")

    def _parts(self) -> list[tuple[object, int]]:
        raise EnvStateError("each part is saved by itself")

    def _close(self) -> None:
        for part in self.parts:
            part.close()
