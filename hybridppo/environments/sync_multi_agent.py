"""Environments of several agents: a column of a rollout for each agent of each environment.

An agent that leaves ends its episode; its rows are not steps (`absent`) until its environment's next reset. An
environment is reset before `step` returns if none of its agents is left.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, cast

import numpy as np

from hybridppo.environments.base import EnvState, Step
from hybridppo.environments.checks import require_same_spaces
from hybridppo.environments.multi_agent import MultiAgentEnvironment, multi_agent_environment
from hybridppo.environments.options import OnEnvError, SelfPlayOptions
from hybridppo.environments.self_play_game import self_play_game
from hybridppo.environments.sub_environment import SubEnvironments, made_alike
from hybridppo.errors import ENV_FAILURES, BadValueError, EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import finite_test
from hybridppo.spaces.kinds import each_of
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.spaces.rows import ObservesOfAgents


class MultiAgentEnvironments(SubEnvironments):
    """Steps environments of several agents one after the other: `N` columns for `N / A` environments of `A` agents.

    Args:
        make: makes one environment.
        num_envs: number of environments.
        first: number of the first environment among those of the run, for messages.
        on_error: for an environment that fails or returns invalid values: "raise" an error, or "restart" it.
        action_masks: whether the infos of agents have action masks.
        critic_observes: what rows have besides an agent's own observation, like `PPOConfig.critic_observes`.
        seats: the options of self-play; None for none.

    Raises:
        EnvError: if environments differ in a space or in their agents.
    """

    _has_infos = True

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        first: int = 0,
        on_error: OnEnvError = "raise",
        *,
        action_masks: bool = False,
        critic_observes: ObservesOfAgents = "own",
        seats: SelfPlayOptions | None = None,
    ) -> None:
        makes: list[Callable[[], Any]] = [
            partial(multi_agent_environment, make, action_masks, critic_observes)
        ] * num_envs
        if seats is not None:
            makes = [partial(self_play_game, make, seats, []) for _ in range(num_envs)]
        sub_environments = made_alike(makes, _require_alike, first, on_error, has_agents=True)
        model = cast(MultiAgentEnvironment, sub_environments[0].env)
        num_agents = len(model.agents)
        super().__init__(sub_environments, num_agents, model.agent.observation_space, model.agent.action_space)
        self.agents = tuple(map(str, model.agents))
        space = model.agent.action_space
        each = None if isinstance(space, SpacesOfAgents) else each_of(space)
        self._each_action = lambda actions: actions if isinstance(actions, list) or each is None else each(actions)
        self._rows = np.zeros((self.num_envs, *self.encode.shape), self.encode.dtype)
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._terminated, self._truncated, self._present, self._absent = (
            np.zeros(self.num_envs, np.bool_) for _ in range(4)
        )
        self.absent: Array = self._absent
        self.waiting = np.zeros(self.num_envs, np.bool_) if model.takes_turns else None
        self._first_columns = np.arange(0, self.num_envs, num_agents)
        self._sum_of_rows, self._sum_of_rewards = self.encode.finite_test(self.num_envs), finite_test(self.num_envs)

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._num_steps = 0
        for i in range(len(self._columns)):
            self._reset(i, seed + i)
        return self._rows.copy()

    def step(self, actions: Any) -> Step:
        """Final observations are those of truncated agents, because the rows of absent agents are zeros."""
        if self.restarted:
            self.restarted = {}
        self._num_steps += 1
        np.logical_not(self._present, out=self._absent)
        if self.waiting is not None:
            self.waiting[:] = True
            self.waiting[self._first_columns + [self._parallel(i).turn for i in range(len(self._columns))]] = False
        # Policies whose observation spaces differ have a list of single actions.
        each = list(self._each_action(actions))
        finals_of: list[int] = []
        finals: list[Array] = []
        for i, (sub_env, columns) in enumerate(zip(self.sub_environments, self._columns, strict=True)):
            parallel = cast(MultiAgentEnvironment, sub_env.env)
            try:
                rows, rewards, terminated, truncated, _ = parallel.step(each[columns])
                if self._infos is not None:
                    self._sum_infos(i, parallel)
            except ENV_FAILURES as error:
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
        for i, sub_env in enumerate(self.sub_environments):
            if cast(MultiAgentEnvironment, sub_env.env).is_over:
                self._reset(i)
        self._terminated |= self._absent
        return self._rows, self._rewards, self._terminated, self._truncated, finals_of, finals

    def state(self) -> list[EnvState]:
        """As in the base, with the agents that are present."""
        return [
            {**state, "present": self._present[columns].tolist()}
            for state, columns in zip(super().state(), self._columns, strict=True)
        ]

    def load_state(self, states: list[EnvState], actions: Sequence[Any] = ()) -> None:  # noqa: D102 - as in the base
        super().load_state(states, actions)
        for i, state in enumerate(states):
            present = state["present"]
            if len(present) != self.num_agents or not all(type(is_there) is bool for is_there in present):
                raise ValueError(f"present must be a list of {self.num_agents} booleans")
            self._present[self._columns[i]] = present
            self._parallel(i).put_present(np.array(present))

    def _sum_infos(self, i: int, parallel: MultiAgentEnvironment) -> None:
        """Sum up the infos of the agents that were present; an agent that takes turns has its info at its next turn."""
        assert self._infos is not None
        columns, infos = self._columns[i], parallel.infos
        for slot, agent in enumerate(parallel.agents):
            if not self._absent[columns.start + slot]:
                info = infos.get(agent) if isinstance(infos, Mapping) else None
                self._infos.step(columns.start + slot, info)
                if parallel.terminated[slot] or parallel.truncated[slot]:
                    self._infos.end(columns.start + slot)

    def _parallel(self, i: int) -> MultiAgentEnvironment:
        return cast(MultiAgentEnvironment, self.sub_environments[i].env)

    def _recover(self, i: int, action: Any, error: BaseException) -> None:
        """As in the base; the error names the actions of the agents that acted."""
        columns = self._columns[i]
        idle = self._absent[columns] if self.waiting is None else self.waiting[columns]
        acting = {agent: action[slot] for slot, agent in enumerate(self.agents) if not idle[slot]}
        super()._recover(i, acting, error)

    def _begin(self, i: int, rows: Array) -> None:
        super()._begin(i, rows)
        self._present[self._columns[i]] = self._parallel(i).present

    def _recover_from_numbers(
        self, actions: list[Any], finals_of: list[int], finals: list[Array]
    ) -> tuple[list[int], list[Array]]:
        """Recover environments whose numbers are not finite; return the final observations of the others."""
        recovered: set[int] = set()
        for i, columns in enumerate(self._columns):
            try:
                self._parallel(i).require_finite()
            except BadValueError as error:
                self._recover(i, actions[columns], error)
                recovered.update(range(columns.start, columns.stop))
        kept = [pair for pair in zip(finals_of, finals, strict=True) if pair[0] not in recovered]
        return [column for column, _ in kept], [final for _, final in kept]


def _require_alike(
    ours: MultiAgentEnvironment, theirs: MultiAgentEnvironment, our_name: str, their_name: str, num_envs: int
) -> None:
    """Refuse environments that differ in their agents or a space, with an `EnvError`."""
    if ours.agents != theirs.agents:
        raise EnvError(
            f"the {num_envs} environments differ: the agents of {our_name} are {list(ours.agents)}, those of "
            f"{their_name} {list(theirs.agents)}: make copies of one environment"
        )
    require_same_spaces(ours.agent, theirs.agent, our_name, their_name, num_envs)
