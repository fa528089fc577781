"""Environments of several agents that share a policy: a column of a rollout for each agent of each environment.

An agent that leaves ends its episode there; until its environment's next reset, its rows are no steps (`absent`). An
environment is reset when none of its agents is left, before `step` returns.
"""

from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import Environments, EnvState, Step
from hybridppo.environments.checks import require_same_spaces
from hybridppo.environments.options import OnEnvError
from hybridppo.environments.parallel import ParallelEnvironment, parallel_environment
from hybridppo.environments.sub_environment import SubEnvironment, in_step
from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.checks import finite_test
from hybridppo.spaces.registry import each_of
from hybridppo.system.validation import whole

Array = NDArray[Any]


class ManyAgents(Environments):
    """Parallel environments, stepped one after the other: `N` columns for `N / A` environments of `A` agents.

    Args:
        make: makes one.
        num_envs: how many environments.
        first: the number of the first among those of the run, for messages.
        on_error: what to do where one fails or returns what cannot be used: "raise", or "restart" it.
        action_masks: whether agents' infos say what each may do.

    Raises:
        EnvError: where agents, or environments, differ in a space, or environments in their agents.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        first: int = 0,
        on_error: OnEnvError = "raise",
        *,
        action_masks: bool = False,
    ) -> None:
        makes = partial(parallel_environment, make, action_masks)
        self.sub_environments = [SubEnvironment(makes, first + i, on_error) for i in range(num_envs)]
        model = self._parallel(0)
        for i, sub_env in enumerate(self.sub_environments):
            _require_alike(self._parallel(i), model, f"environment {sub_env.index}", f"environment {first}", num_envs)
        num_agents = len(model.agents)
        super().__init__(num_envs * num_agents, model.agent.observation_space, model.agent.action_space, first)
        self.agents = tuple(map(str, model.agents))
        self._each_action = each_of(model.agent.action_space)
        # Of each environment, its columns.
        self._columns = [slice(i * num_agents, (i + 1) * num_agents) for i in range(num_envs)]
        self._rows = np.zeros((self.num_envs, *self.encode.shape), self.encode.dtype)
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._terminated, self._truncated, self._present, self._absent = (
            np.zeros(self.num_envs, np.bool_) for _ in range(4)
        )
        self.absent: Array = self._absent
        self._sum_of_rows, self._sum_of_rewards = self.encode.finite_test(self.num_envs), finite_test(self.num_envs)
        self._num_steps = 0
        self._started_at = [0] * num_envs  # what `_num_steps` was when the episode began

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._num_steps = 0
        for i in range(len(self._columns)):
            self._reset(i, seed + i)
        return self._rows.copy()

    def step(self, actions: Any) -> Step:
        """Final observations are those of agents that were truncated: the rows of who has left are zeros."""
        if self.restarted:
            self.restarted = {}
        self._num_steps += 1
        np.logical_not(self._present, out=self._absent)
        each = list(self._each_action(actions))
        finals_of: list[int] = []
        finals: list[Array] = []
        for i, (sub_env, columns) in enumerate(zip(self.sub_environments, self._columns, strict=True)):
            parallel = cast(ParallelEnvironment, sub_env.env)
            try:
                rows, rewards, terminated, truncated, _ = parallel.step(each[columns])
            except Exception as error:
                self._recover(i, each[columns], error)
                continue
            self._rows[columns], self._rewards[columns] = rows, rewards
            self._terminated[columns], self._truncated[columns] = terminated, truncated
            self._present[columns] = parallel.present
            for slot, final in parallel.finals:
                finals_of.append(columns.start + slot)
                finals.append(final)
        if not isfinite(self._sum_of_rows(self._rows.reshape(-1)) + self._sum_of_rewards(self._rewards)):
            finals_of, finals = self._recover_from_numbers(each, finals_of, finals)
        for i, columns in enumerate(self._columns):
            if not self._present[columns].any():
                self._reset(i)
        self._terminated |= self._absent
        return self._rows, self._rewards, self._terminated, self._truncated, finals_of, finals

    def state(self) -> list[EnvState]:
        """As in the base; each with who is there, and what its sub-environment knows of it."""
        return [
            {
                **state,
                "present": self._present[columns].tolist(),
                "sub_environment": sub_env.state(),
                "episode_steps": self._num_steps - started_at,
            }
            for state, columns, sub_env, started_at in zip(
                super().state(), self._columns, self.sub_environments, self._started_at, strict=True
            )
        ]

    def load_state(self, states: list[EnvState]) -> None:  # noqa: D102 - as in the base
        super().load_state(states)
        for i, state in enumerate(states):
            present = state["present"]
            if len(present) != self.num_agents or not all(type(is_there) is bool for is_there in present):
                raise ValueError(f"present is no list of {self.num_agents} truths")
            self._present[self._columns[i]] = present
            self._parallel(i).put_present(np.array(present))
            self.sub_environments[i].load_state(state["sub_environment"])
            self._started_at[i] = self._num_steps - whole(state, "episode_steps")

    def _parts(self) -> list[tuple[object, int]]:
        return [(self._parallel(i).env, self.num_agents) for i in range(len(self.sub_environments))]

    def _parallel(self, i: int) -> ParallelEnvironment:
        return cast(ParallelEnvironment, self.sub_environments[i].env)

    def _reset(self, i: int, seed: int | None = None) -> None:
        sub_env = self.sub_environments[i]
        before = sub_env.times_restarted
        self._begin(i, sub_env.reset(seed, self._num_steps), before)

    def _recover(self, i: int, actions: list[Any], error: Exception) -> None:
        """Raise, or begin a new episode in this step, of which the rows of all its agents are then lost."""
        sub_env, columns = self.sub_environments[i], self._columns[i]
        before, episode_steps = sub_env.times_restarted, self._num_steps - self._started_at[i]
        acting = {agent: actions[slot] for slot, agent in enumerate(self.agents) if not self._absent[columns][slot]}
        rows = sub_env.recover(in_step(episode_steps, self._num_steps, acting), error, episode_steps)
        self._rewards[columns] = 0.0
        self._terminated[columns] = self._truncated[columns] = False
        self._begin(i, rows, before)

    def _recover_from_numbers(
        self, actions: list[Any], finals_of: list[int], finals: list[Array]
    ) -> tuple[list[int], list[Array]]:
        """Recover the environments that gave what is no number; the final observations of the others."""
        recovered: set[int] = set()
        for i, columns in enumerate(self._columns):
            try:
                self._parallel(i).require_finite()
            except BadValueError as error:
                self._recover(i, actions[columns], error)
                recovered.update(range(columns.start, columns.stop))
        kept = [pair for pair in zip(finals_of, finals, strict=True) if pair[0] not in recovered]
        return [column for column, _ in kept], [final for _, final in kept]

    def _begin(self, i: int, rows: Array, times_restarted_before: int) -> None:
        columns = self._columns[i]
        self._rows[columns] = rows
        self._present[columns] = self._parallel(i).present
        self._started_at[i] = self._num_steps
        if times := self.sub_environments[i].times_restarted - times_restarted_before:
            for column in range(columns.start, columns.stop):
                self.restarted[column] = self.restarted.get(column, 0) + times

    def _close(self) -> None:
        for sub_env in self.sub_environments:
            sub_env.close()


def _require_alike(
    ours: ParallelEnvironment, theirs: ParallelEnvironment, our_name: str, their_name: str, num_envs: int
) -> None:
    """Refuse environments that differ in their agents or a space, with an EnvError."""
    if ours.agents != theirs.agents:
        raise EnvError(
            f"the {num_envs} environments differ: the agents of {our_name} are {list(ours.agents)}, those of "
            f"{their_name} {list(theirs.agents)}: make copies of one environment"
        )
    require_same_spaces(ours.agent, theirs.agent, our_name, their_name, num_envs)
