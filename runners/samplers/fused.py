"""The inner loop of sampling where environments are compiled: environment, actor and episode ends in one call.

Rows are filled a slice at a time, and between two slices the flag is looked at. What it writes is what `Stepper.fill`
writes with the same actor, up to the rounding of a product; it is taken where the actor is a plain MLP and actions are
choices or numbers clipped to bounds. Free of torch, for workers; Numba is loaded by the environments.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import Environments
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.environments.compiled_agents import CompiledAgents
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.fused_actor import (
    CompiledActor,
    FusedActor,
    FusedDistribution,
    bounds_of,
    can_be_fused,
    is_drawn,
)
from hybridppo.runners.samplers.fused_agents import FusedAgents, actors_of_kinds
from hybridppo.spaces.distributions import Distribution

Array = NDArray[Any]

MOST_ROWS, FEWEST_ROWS, STEPS_AT_ONCE = 64, 16, 4096
"""Of a slice: so many steps, in as many rows as that takes, but within bounds."""


class Fused:
    """Rows of compiled environments with one actor.

    Args:
        environments: compiled.
        distribution: of the action space.
        actor: whose parameters stay as they are until the rollout is filled.
    """

    def __init__(self, environments: CompiledEnvironments, distribution: FusedDistribution, actor: FusedActor) -> None:
        self._environments = environments
        self._actor = CompiledActor(actor, distribution)
        self._low, self._high = bounds_of(distribution)
        per_row = environments.num_envs
        self.num_rows = int(np.clip(STEPS_AT_ONCE // per_row, FEWEST_ROWS, MOST_ROWS))
        """Of a slice."""
        self._finals = np.empty((self.num_rows, per_row, environments.encode.size), np.float32)

    def fill(self, buffer: RolloutBuffer, first: int, end: int) -> FinalObservations:
        """Rows `first` to `end` of a rollout, of which the first observations are there: the final observations.

        Raises:
            EnvError: where an environment fails, or returns what is not finite.
        """
        environments = self._environments
        rows = slice(first, end)
        actions = buffer.actions[rows]
        arrays = (
            buffer.observations[first : end + 1],
            buffer.outputs[rows],
            actions.reshape(*actions.shape[:2], -1) if actions.ndim == 3 else actions[:, :, None],
            buffer.rewards[rows],
            buffer.terminated[rows],
            buffer.truncated[rows],
            buffer.noise[rows],
            self._finals,
        )
        actor = self._actor.moments, self._actor.weights, self._actor.sizes, self._actor.is_tanh
        drawing = self._actor.log_std, self._actor.scale, self._low, self._high
        tile = environments.kernels.rows_of_a_tile, self._actor.weights.shape[2]

        def fill_rows(one: int, other: int) -> None:
            here, there = (np.zeros(tile, np.float32) for _ in range(2))
            scratch = here, there, np.empty(arrays[2].shape[2], actions.dtype)
            environments.kernels.rollout(environments.world, one, other, arrays, actor, drawing, scratch)

        when = f"in the steps of rows {first} to {end - 1}"
        environments.on_threads(fill_rows, when)
        environments.require_finite(buffer.observations[first : end + 1], buffer.rewards[rows], when)
        truncated = buffer.truncated[rows]
        if not truncated.any():
            return []
        found = np.argwhere(truncated & ~buffer.terminated[rows])
        finals = self._finals[found[:, 0], found[:, 1]]
        environments.require_finite_finals(finals, found[:, 1], when)
        return [(first + t, env, final) for (t, env), final in zip(found.tolist(), finals, strict=True)]


Slices = Fused | FusedAgents
"""What fills a rollout slice by slice."""


def fused(environments: Environments, distribution: Distribution, actor: Any) -> Slices | None:
    """The compiled form of a rollout; None where it has none, and steps are taken one by one."""
    if not isinstance(environments, CompiledEnvironments) or not is_drawn(distribution):
        return None
    if isinstance(environments, CompiledAgents):
        actors = actors_of_kinds(environments, actor)
        return FusedAgents(environments, distribution, actors) if actors is not None else None
    return Fused(environments, distribution, actor) if can_be_fused(actor) else None
