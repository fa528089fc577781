"""An environment of several agents that take turns, like PettingZoo's `AECEnv`: a row for each agent.

A step is one agent's turn. The reward of an action is known when the agent's next turn begins: it is the sum over all
turns in between.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridppo.environments.checks import TRUTHS, as_flag
from hybridppo.environments.parallel import ParallelEnvironment, number_of
from hybridppo.errors import BadValueError
from hybridppo.spaces.rows import ObservesOfAgents


def takes_turns(made: Any) -> bool:
    """Whether an object is an environment of several agents that take turns."""
    methods = (getattr(made, name, None) for name in ("reset", "step", "last", "observation_space", "action_space"))
    return hasattr(made, "possible_agents") and all(map(callable, methods))


class TurnEnvironment(ParallelEnvironment):
    """Like its base, but one agent acts in each step; the rows of the others do not change.

    An agent gets its rewards when its turn begins, and at its end: the sum since its last action, like PettingZoo's
    `last()`.
    """

    takes_turns = True

    _game: Any
    """The object within the environment's wrappers that knows the agents and whose turn it is."""
    _last: Callable[[], Any]
    """The environment's `last()`, or a faster equivalent."""

    def _begin(self, seed: int | None) -> None:
        self.infos = {}
        result: Any = self.env.reset(seed=seed)
        self._look_within()
        if result is not None:
            raise BadValueError("its reset returned something, and that of pettingzoo.AECEnv returns None")
        for agent in self.env.agents:
            self.present[self._slot_of(agent)] = True
        if not self.present.any():
            raise BadValueError("its reset left no agents to act")
        self._next_turn()
        self.rewards[:] = 0  # they belong to no action
        if not self.present.any():
            raise BadValueError("its reset ended the episode")

    def step(self, action: Any) -> Any:
        """As in the base; only the action of the agent whose turn it is counts."""
        self.finals, self.infos = [], {}
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0
        self.env.step(action[self.turn])
        self._next_turn()
        self._checks = 0
        return self.rows, self.rewards, self.terminated, self.truncated, {}

    def put_present(self, present: Any) -> None:  # noqa: D102 - as in the base
        super().put_present(present)
        self._look_within()
        if self.present.any():
            self.turn = self._slot_of(self._game.agent_selection)

    def _look_within(self) -> None:
        self._game, self._last = _within_wrappers(self.env), self.env.last
        if self._game is not self.env and self._last.__module__ == "pettingzoo.utils.env":
            self._last = self._last_from_within

    def _last_from_within(self) -> Any:
        """Like PettingZoo's own `last()`, which looks through all wrappers for each of the five values."""
        game = self._game
        agent = game.agent_selection
        observation = self.env.observe(agent)
        return (
            observation,
            game._cumulative_rewards[agent],
            game.terminations[agent],
            game.truncations[agent],
            game.infos[agent],
        )

    def _next_turn(self) -> None:
        """Move on to the next agent that acts; agents whose episode has ended leave."""
        env, game, has_lost_one = self.env, self._game, False
        for _ in range(len(self.agents) + 1):
            if not game.agents:
                self._require_nobody()
                break
            agent = game.agent_selection
            slot = self._slot_of(agent)
            result: Any = self._last()
            if not isinstance(result, tuple) or len(result) != 5:
                raise BadValueError("its last() did not return five values, as pettingzoo.AECEnv")
            observation, reward, terminated, truncated, info = result
            self.rewards[slot] += reward if isinstance(reward, (float, int)) else number_of(agent, reward)
            if not (isinstance(terminated, TRUTHS) and isinstance(truncated, TRUTHS)):
                terminated = as_flag(f"agent {agent!r}: its terminated", terminated)
                truncated = as_flag(f"agent {agent!r}: its truncated", truncated)
            self.infos[agent] = info
            if not (terminated or truncated):
                if not self.present[slot]:
                    raise self._newcomer(agent)
                self._write(slot, observation, info)
                self.turn = slot
                break
            if self.present[slot]:
                has_lost_one = True
                self._leave(slot, observation, info, terminated, truncated)
            env.step(None)  # PettingZoo requires this of agents whose episode has ended
        else:
            raise BadValueError("its agents whose episode has ended do not leave when they are stepped with None")
        if self._of_critics is not None:
            self._fill_for_critics(np.arange(len(self.agents)) == self.turn)
        if has_lost_one:
            self._end_episodes()
            self._fill_critics_parts(self.present & (np.arange(len(self.agents)) == self.turn))

    def _fill_for_critics(self, present: Any) -> None:
        if "all" in self._critic_observes:
            for slot in np.flatnonzero(self.present).tolist():
                if slot != self.turn:  # the mask of a waiting agent may allow nothing, or be missing
                    agent = self.agents[slot]
                    self._write(slot, self.env.observe(agent), self.env.infos[agent], needs_choice=False)
        super()._fill_for_critics(present & self.present)

    def _require_nobody(self) -> None:
        """Refuse an end of the episode that the environment has not reported to some agents."""
        if self.present.any():
            slot = int(np.flatnonzero(self.present)[0])
            raise BadValueError(f"{self._name_of(slot)} is gone, and was neither terminated nor truncated")

    def _slot_of(self, agent: Any) -> int:
        try:
            return self._slots[agent]
        except KeyError:
            raise BadValueError(f"its agent {agent!r} is not in its possible_agents") from None


def _within_wrappers(env: Any) -> Any:
    """The object within PettingZoo's wrappers, each of which asks the next for every attribute."""
    while type(env).__module__.startswith("pettingzoo.utils.wrappers.") and "agent_selection" not in vars(env):
        env = env.env
    return env


def agents_environment(
    make: Callable[[], Any], action_masks: bool = False, critic_observes: ObservesOfAgents = "own"
) -> ParallelEnvironment:
    """The environment that `make` makes, as rows."""
    made = make()
    kind = TurnEnvironment if takes_turns(made) else ParallelEnvironment
    return kind(made, action_masks, critic_observes)
