"""Compiled environments of several agents: a column for each agent of each environment, environment by environment.

An agent that leaves ends its episode there; until its environment's next reset, its rows are no steps (`absent`).
"""

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import EnvState
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.errors import EnvStateError

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition

Array = NDArray[Any]


class CompiledAgents(CompiledEnvironments):
    """`E` environments of `A` agents: `N = E * A` columns.

    Args:
        definition: what they are; with kinds of agents.
        num_envs: how many environments.
        first: the number of the first among those of the run, for messages.
        num_threads: among how many they are divided; it changes no bit.
    """

    def __init__(self, definition: "Definition", num_envs: int, first: int = 0, num_threads: int = 1) -> None:
        super().__init__(definition, num_envs, first, num_threads)
        self.kinds: Array = np.array([0, *accumulate(definition.policies.values())], np.int64)
        """`[K + 1]`: the first agent of each kind, and how many there are."""
        self.present: Array = np.zeros((num_envs, len(self.agents)), np.bool_)
        """`[E, A]`: which agents are there."""
        self._absent = np.zeros(self.num_envs, np.bool_)
        self.absent: Array = self._absent
        # The loop writes the row after the one that it acts in: there is one only, seen as two.
        rows = self._observations
        both = np.lib.stride_tricks.as_strided(rows, (2, *rows.shape), (0, *rows.strides))
        of_one_row = (self._rewards, self._terminated, self._truncated, self._absent, self._finals)
        self._next_observations = self.by_kind(both)
        self._results = tuple(self.by_kind(array[None]) for array in of_one_row)

    def by_kind(self, block: Array) -> tuple[Array, ...]:
        """A block `[T, E * A, ...]` as views of each kind's agents, `[T, E, A_k, ...]`."""
        rows = block.reshape(len(block), self._num, self.num_agents, *block.shape[2:])
        return tuple(rows[:, :, first:end] for first, end in zip(self.kinds[:-1], self.kinds[1:], strict=True))

    @property
    def num_environments(self) -> int:
        """`E`."""
        return self._num

    @property
    def world(self) -> tuple[Any, ...]:
        """What every loop takes first, see `compiled/agent_kernels.py`."""
        return self.states, self.randoms, self.lengths, self.present, self.kinds, self.definition.episode_length

    def _begin_all(self) -> None:
        self.kernels.begin_all(self.world, self.by_kind(self._observations[None]), self.row())

    def _stepping(self, actions: Array) -> Callable[[int, int], None]:
        of_agents = actions.reshape(self._num, self.num_agents, -1)
        return lambda first, end: self.kernels.step_all(
            self.world, first, end, of_agents, self._next_observations, self._results, self.row()
        )

    def row(self) -> Array:
        """A new array for an observation, of which each thread needs one."""
        return np.empty(self.encode.size, np.float32)

    def state(self) -> list[EnvState]:
        """Of each environment by itself, with who is there."""
        states = super().state()
        return [{**state, "present": there.tolist()} for state, there in zip(states, self.present, strict=True)]

    def load_state(self, states: list[EnvState]) -> None:  # noqa: D102 - as in the base
        for state in states:
            there = state.get("present")
            if not isinstance(there, list) or len(there) != self.num_agents or {*map(type, there)} != {bool}:
                raise EnvStateError(f"what was saved does not say which of {self.num_agents} agents are there")
        super().load_state(states)
        self.present[:] = [state["present"] for state in states]
