"""The fused rollout of environments of several agents: what `fused.py` is for one agent.

Each kind of agents has an actor, which may be the same for all.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.compiled_agents import CompiledAgents
from hybridppo.networks.numpy_forms.form import NumpyPoliciesActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.fused_actor import (
    CompiledActor,
    FusedActor,
    FusedDistribution,
    bounds_of,
    can_be_fused,
)

Array = NDArray[Any]

MOST_ROWS, FEWEST_ROWS, STEPS_AT_ONCE = 64, 4, 4096
"""Of a slice: so many steps of agents, in as many rows as that takes, but within bounds."""


class FusedAgents:
    """Rows of compiled environments of several agents.

    Args:
        environments: compiled.
        distribution: of the action space, which all agents have.
        actors: of each kind of agents; parameters stay as they are until the rollout is filled.
    """

    def __init__(
        self, environments: CompiledAgents, distribution: FusedDistribution, actors: Sequence[FusedActor]
    ) -> None:
        self._environments = environments
        compiled = {id(actor): CompiledActor(actor, distribution) for actor in actors}
        each = [compiled[id(actor)] for actor in actors]
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
        self._finals = np.empty((self.num_rows, environments.num_envs, environments.encode.size), np.float32)

    def fill(self, buffer: RolloutBuffer, first: int, end: int) -> FinalObservations:
        """Rows `first` to `end` of a rollout, of which the first observations are there: the final observations.

        Raises:
            EnvError: where an environment fails, or returns what is not finite.
        """
        environments = self._environments
        rows = slice(first, end)
        observations, actions = buffer.observations[first : end + 1], buffer.actions[rows]
        acted = observations, buffer.outputs[rows], actions.reshape(*actions.shape[:2], -1), buffer.noise[rows]
        results = (
            buffer.rewards[rows], buffer.terminated[rows], buffer.truncated[rows], buffer.absent[rows], self._finals,
        )  # fmt: skip
        groups = tuple(tuple(environments.by_kind(array) for array in group) for group in (acted, results))

        def fill_rows(one: int, other: int) -> None:
            here, there = (np.zeros(self._tile, np.float32) for _ in range(2))
            for_env = np.zeros((environments.num_agents, acted[2].shape[2]), actions.dtype)
            scratch = for_env, here, there, np.empty(len(here), np.int64), environments.row()
            environments.kernels.rollout(environments.world, one, other, *groups, self._actors, self._bounds, scratch)

        when = f"in the steps of rows {first} to {end - 1}"
        environments.on_threads(fill_rows, when)
        environments.require_finite(observations, buffer.rewards[rows], when)
        found = np.argwhere(buffer.truncated[rows])
        finals = self._finals[found[:, 0], found[:, 1]]
        environments.require_finite_finals(finals, found[:, 1], when)
        return [(first + t, env, final) for (t, env), final in zip(found.tolist(), finals, strict=True)]


def actors_of_kinds(environments: CompiledAgents, actor: Any) -> list[FusedActor] | None:
    """The actor of each kind of agents; None if one of them is not compiled, or a kind has several policies."""
    if can_be_fused(actor):
        return [actor] * len(environments.definition.policies)
    if not isinstance(actor, NumpyPoliciesActor):
        return None
    found: list[FusedActor] = []
    for first, end in pairwise(environments.kinds.tolist()):
        kind, policies = {*range(first, end)}, zip(actor.actors, actor.agents, strict=True)
        own = [of_policy for of_policy, agents in policies if kind <= {*agents}]
        if not own or not can_be_fused(own[0]):
            return None
        found.append(own[0])
    return found
