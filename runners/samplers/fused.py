"""The inner loop of sampling compiled environments: environments, actor and episode ends in one call.

Rows are filled in slices, and the flag is read between two slices. The result is that of `Stepper.fill` with the same
actor, up to rounding. It is used for plain MLPs, and for actions that are choices or clipped numbers. Each kind of
agents has an actor, which all kinds may share. Workers use this file without torch; the environments load Numba.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hybridppo.compiled.drawing import FusedDistribution, bounds_of, is_drawn
from hybridppo.distributions.base import Distribution
from hybridppo.environments.base import Environments
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.networks.numpy_forms.form import NumpyPoliciesActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.fused_actor import FusedActor, can_be_fused, compiled_actor
from hybridppo.spaces.arrays import Array

MOST_ROWS, STEPS_AT_ONCE = 64, 4096
"""The size of a slice: so many steps, within bounds of its rows."""
FEWEST_ROWS, FEWEST_ROWS_OF_AGENTS = 16, 4


class Fused:
    """Fills rows of compiled environments.

    Args:
        environments: compiled environments.
        distribution: distribution of the actions, which all agents have.
        actors: the actor of each kind of agents; their parameters must not change until the rollout is filled.
    """

    def __init__(
        self, environments: CompiledEnvironments, distribution: FusedDistribution, actors: Sequence[FusedActor]
    ) -> None:
        self._environments = environments
        compiled = {id(actor): compiled_actor(actor, distribution) for actor in actors}
        of_kinds = zip(*(compiled[id(actor)] for actor in actors), strict=True)
        moments, weights, sizes, is_tanh, *scales = of_kinds
        self._actors = environments.kinds, moments, weights, sizes, np.array(is_tanh), *scales
        self._bounds = bounds_of(distribution)
        self._tile = environments.kernels.rows_of_a_tile, max(of_kind.shape[2] for of_kind in weights)
        columns = environments.num_envs
        fewest = FEWEST_ROWS_OF_AGENTS if environments.agents else FEWEST_ROWS
        self.num_rows = min(max(STEPS_AT_ONCE // columns, fewest), MOST_ROWS)
        """The rows of a slice."""
        self._finals = np.empty((self.num_rows, columns, environments.written.size), np.float32)

    def fill(self, buffer: RolloutBuffer, first: int, end: int) -> FinalObservations:
        """Fill rows `first` to `end` of a rollout whose row `first` has observations; return final observations.

        Raises:
            EnvError: if an environment fails, or returns numbers that are not finite.
        """
        environments = self._environments
        rows = slice(first, end)
        observations, actions = self._written(buffer.observations[first : end + 1]), buffer.actions[rows]
        acted = buffer.outputs[rows], actions.reshape(*actions.shape[:2], -1), buffer.noise[rows]
        results = (
            observations, buffer.rewards[rows], buffer.terminated[rows], buffer.truncated[rows], buffer.absent[rows],
            self._finals,
        )  # fmt: skip
        num_agents, num_rows = environments.num_agents, self._tile[0]
        at_once = max(1, num_rows // num_agents) * num_agents

        def fill_rows(one: int, other: int) -> None:
            here, there = (np.zeros(self._tile, np.float32) for _ in range(2))
            for_env = np.zeros((at_once, acted[1].shape[2]), actions.dtype)
            scratch = for_env, here, there, np.empty(num_rows, np.int64), environments.row()
            environments.kernels.rollout(
                environments.world, one, other, results, acted, self._actors, self._bounds, scratch
            )

        when = f"in the steps of rows {first} to {end - 1}"
        environments.on_threads(fill_rows, when)
        environments.require_finite(observations, buffer.rewards[rows], when)
        if environments.whole is not None:
            are_there = ~np.concatenate((buffer.absent[first + 1 : end], ~environments.present.reshape(1, -1)))
            buffer.observations[first + 1 : end + 1] = environments.seen(observations[1:], are_there)
        if not buffer.truncated[rows].any():
            return []
        are_final = buffer.truncated[rows] & ~buffer.terminated[rows]
        finals = environments.finals_of(self._finals[: end - first], are_final, when)
        return [
            (first + t, env, final) for (t, env), final in zip(np.argwhere(are_final).tolist(), finals, strict=True)
        ]

    def _written(self, observations: Array) -> Array:
        """The rows `[T + 1, N, written]` that the loop writes, of which the first is given."""
        whole = self._environments.whole
        if whole is None:
            return observations
        rows = np.empty((*observations.shape[:2], self._finals.shape[2]), np.float32)
        rows[0] = whole.written(observations[0])
        return rows


def fused(environments: Environments, distribution: Distribution, actor: Any) -> Fused | None:
    """The compiled loop; None if there is none for these environments, so that they are stepped one by one."""
    if not isinstance(environments, CompiledEnvironments) or not is_drawn(distribution):
        return None
    actors = actors_of_kinds(environments, actor)
    return Fused(environments, distribution, actors) if actors is not None else None


def actors_of_kinds(environments: CompiledEnvironments, actor: Any) -> list[FusedActor] | None:
    """The actor of each kind of agents; None if one of them is not compiled, or a kind has several policies."""
    kinds = list(pairwise(environments.kinds.tolist()))
    if can_be_fused(actor):
        return [actor] * len(kinds)
    if not isinstance(actor, NumpyPoliciesActor):
        return None
    found: list[FusedActor] = []
    for first, end in kinds:
        kind, policies = {*range(first, end)}, zip(actor.actors, actor.agents, strict=True)
        own = [of_policy for of_policy, agents in policies if kind <= {*agents}]
        if not own or not can_be_fused(own[0]):
            return None
        found.append(own[0])
    return found
