"""The arrays that a rollout is written to. Free of torch, for worker processes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.observations import ObservationEncoder

Array = NDArray[Any]

FinalObservations = list[tuple[int, int, Array]]
"""Step, environment and observation `[obs]` of truncated episodes whose final observation is not the step's next."""


@dataclass(frozen=True)
class RolloutBuffer:
    """The arrays of one rollout, time-major."""

    observations: Array
    """`[T + 1, N, *obs]`, as `ObservationEncoder` gives them."""
    outputs: Array
    """`[T, N, outputs]`, of the actor."""
    actions: Array
    """`[T, N, *action]`, as drawn."""
    rewards: Array
    """`[T, N]`, like the three below."""
    terminated: Array
    truncated: Array
    restarted: Array
    """`[T, N]`: how often the environment was restarted in the step, see `Environments.restarted`."""
    absent: Array
    """`[T, N]` bool: where nobody was there to act, see `Environments.absent`."""
    noise: Array
    """`[T, N, noise]`, drawn beforehand."""

    @staticmethod
    def layout(
        num_steps: int, num_envs: int, encode: ObservationEncoder, distribution: Distribution
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of every array, by name."""
        leading, float32 = (num_steps, num_envs), "float32"
        return {
            "observations": ((num_steps + 1, num_envs, *encode.shape), encode.dtype.name),
            "outputs": ((*leading, distribution.output_size), float32),
            "actions": ((*leading, *distribution.action_shape), np.dtype(distribution.action_dtype).name),
            "rewards": (leading, float32),
            "terminated": (leading, "bool"),
            "truncated": (leading, "bool"),
            "restarted": (leading, "int32"),
            "absent": (leading, "bool"),
            "noise": ((*leading, distribution.noise_size), float32),
        }

    def of(self, envs: slice) -> RolloutBuffer:
        """The part of some environments, a view."""
        return RolloutBuffer(**{field.name: getattr(self, field.name)[:, envs] for field in fields(self)})

    def first(self, num_steps: int) -> RolloutBuffer:
        """The first steps, a view."""
        parts = {field.name: getattr(self, field.name)[:num_steps] for field in fields(self)}
        return RolloutBuffer(**{**parts, "observations": self.observations[: num_steps + 1]})

    def copy_from(self, shorter: RolloutBuffer) -> None:
        """Take over the first rows from a buffer of fewer steps."""
        for field in fields(self):
            rows = getattr(shorter, field.name)
            getattr(self, field.name)[: len(rows)] = rows
