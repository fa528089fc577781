"""The fused rollout of environments of several agents: what `fused.py` is for one agent.

Agents may share an actor and a rollout, or have one for each kind of them; the compiled loop sees no difference.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import Environments
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
from hybridppo.spaces.distributions import Distribution

Array = NDArray[Any]

MOST_ROWS, FEWEST_ROWS, STEPS_AT_ONCE = 64, 4, 4096
"""Of a slice: so many steps of agents, in as many rows as that takes, but within bounds."""


class FusedAgents:
    """Rows of compiled environments of several agents.

    Args:
        environments: compiled.
        distribution: of the action space, which all agents have.
        actors: one for all agents, or one for each kind; parameters stay as they are until the rollouts are filled.
    """

    def __init__(
        self, environments: CompiledAgents, distribution: FusedDistribution, actors: Sequence[FusedActor]
    ) -> None:
        self._environments = environments
        num_kinds = len(environments.kinds) - 1
        compiled = [CompiledActor(actor, distribution) for actor in actors]
        each = compiled * num_kinds if len(compiled) == 1 else compiled
        self._actors = (
            tuple(actor.moments for actor in each),
            tuple(actor.weights for actor in each),
            tuple(actor.sizes for actor in each),
            np.array([actor.is_tanh for actor in each]),
            tuple(actor.log_std for actor in each),
            tuple(actor.scale for actor in each),
        )
        self._bounds = bounds_of(distribution)
        self._tile = environments.kernels.rows_of_a_tile, max(actor.weights.shape[2] for actor in each)
        self.num_rows = int(np.clip(STEPS_AT_ONCE // environments.num_envs, FEWEST_ROWS, MOST_ROWS))
        """Of a slice."""
        self._columns = environments.columns_of_kinds if len(actors) > 1 else [np.arange(environments.num_envs)]
        size = environments.encode.size
        self._finals = [np.empty((self.num_rows, len(columns), size), np.float32) for columns in self._columns]

    def fill(self, buffers: Sequence[RolloutBuffer], first: int, end: int) -> list[FinalObservations]:
        """Rows `first` to `end` of rollouts, one for each actor, of which the first observations are there.

        Returns:
            The final observations of each.

        Raises:
            EnvError: where an environment fails, or returns what is not finite.
        """
        environments = self._environments
        rows = slice(first, end)
        observations = [buffer.observations[first : end + 1] for buffer in buffers]
        actions = [buffer.actions[rows] for buffer in buffers]
        acted = (
            observations,
            [buffer.outputs[rows] for buffer in buffers],
            [array.reshape(*array.shape[:2], -1) for array in actions],
            [buffer.noise[rows] for buffer in buffers],
        )
        results = (
            [buffer.rewards[rows] for buffer in buffers],
            [buffer.terminated[rows] for buffer in buffers],
            [buffer.truncated[rows] for buffer in buffers],
            [buffer.absent[rows] for buffer in buffers],
            self._finals,
        )
        groups = tuple(tuple(self._by_kind(arrays) for arrays in group) for group in (acted, results))

        def fill_rows(one: int, other: int) -> None:
            here, there = (np.zeros(self._tile, np.float32) for _ in range(2))
            for_env = np.zeros((environments.num_agents, groups[0][2][0].shape[3]), actions[0].dtype)
            scratch = for_env, here, there, np.empty(len(here), np.int64), environments.row()
            environments.kernels.rollout(environments.world, one, other, *groups, self._actors, self._bounds, scratch)

        when = f"in the steps of rows {first} to {end - 1}"
        environments.on_threads(fill_rows, when)
        finals: list[FinalObservations] = []
        for buffer, seen, last, columns in zip(buffers, observations, self._finals, self._columns, strict=True):
            environments.require_finite(seen, buffer.rewards[rows], when, columns)
            found = np.argwhere(buffer.truncated[rows])
            of_found = last[found[:, 0], found[:, 1]]
            environments.require_finite_finals(of_found, columns[found[:, 1]], when)
            finals.append([(first + t, env, final) for (t, env), final in zip(found.tolist(), of_found, strict=True)])
        return finals

    def _by_kind(self, arrays: list[Array]) -> tuple[Array, ...]:
        """`[T, E, A_k, ...]` of each kind, views of rollouts."""
        if len(self._columns) == 1:
            return self._environments.by_kind(arrays[0])
        num = self._environments.num_environments
        return tuple(array.reshape(len(array), num, -1, *array.shape[2:]) for array in arrays)


class FusedTogether:
    """The same where all agents share an actor and a rollout, as a `Stepper` has it."""

    def __init__(self, environments: CompiledAgents, distribution: FusedDistribution, actor: FusedActor) -> None:
        self._fused = FusedAgents(environments, distribution, [actor])
        self.num_rows = self._fused.num_rows

    def fill(self, buffer: RolloutBuffer, first: int, end: int) -> FinalObservations:
        """Rows `first` to `end` of a rollout, as `Fused.fill`."""
        [finals] = self._fused.fill([buffer], first, end)
        return finals


def fused_agents(environments: Environments, distribution: Distribution, actors: Sequence[Any]) -> FusedAgents | None:
    """The compiled form of rollouts of several policies; None where they have none."""
    if not isinstance(environments, CompiledAgents) or not all(map(can_be_fused, actors)):
        return None
    if not is_drawn(distribution):
        return None
    return FusedAgents(environments, distribution, actors)
