"""A multi-agent environment, like PettingZoo's `ParallelEnv` or `AECEnv`: a row for each agent.

Agents act at the same time in a `ParallelEnvironment`, and one after the other in a `TurnBasedEnvironment`. PettingZoo
is not imported: any object with its methods is such an environment.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from hybridppo.environments.base import Outer
from hybridppo.environments.checks import TRUTHS, as_flag
from hybridppo.environments.wrappers import RowMaker, has_mask, without_mask
from hybridppo.errors import BadValueError, EnvError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import as_numbers, as_scalar, require_finite
from hybridppo.spaces.masks import MaskedObservation, which_have_masks
from hybridppo.spaces.observations import ObservationEncoder, encoders_of
from hybridppo.spaces.of_agents import CriticRows, SpacesOfAgents, each_observes, joint_space, spaces_with_critics_part
from hybridppo.spaces.rows import ObservesOfAgents

STEP = ("observations", "rewards", "terminations", "truncations", "infos")
"""The values that a step returns, each a mapping by agent."""


def is_parallel(made: Any) -> bool:
    """Whether an object is a multi-agent environment that act at the same time."""
    return _has_methods(made, "reset", "step", "observation_space", "action_space") and not hasattr(made, "last")


def takes_turns(made: Any) -> bool:
    """Whether an object is a multi-agent environment that take turns."""
    return _has_methods(made, "reset", "step", "last", "observation_space", "action_space")


def _has_methods(made: Any, *names: str) -> bool:
    return hasattr(made, "possible_agents") and all(callable(getattr(made, name, None)) for name in names)


class _Report(NamedTuple):
    """What a step says about one agent."""

    slot: int
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


class MultiAgentEnvironment(Outer):
    """An environment with a slot for each agent: arrays of `A` rows, in the order of `possible_agents`.

    An agent is present from the reset that returns its observation until it is terminated or truncated. Later steps may
    leave it out; its values are ignored.

    Args:
        env: the environment.
        action_masks: whether an agent's observation includes the mask in its `info["action_mask"]`. An agent whose
            actions have no choices, such as a `Box`, needs none.
        critic_observes: what rows have besides an agent's own observation, like `PPOConfig.critic_observes`.
        keeps_finals: whether `finals` has agents that were terminated, too.

    Raises:
        EnvError: if it has no agents, or a space is not supported.
    """

    takes_turns = False
    """Whether one agent acts in each step: the one in slot `turn`."""
    turn = 0

    def __init__(
        self,
        env: Any,
        action_masks: bool = False,
        critic_observes: ObservesOfAgents = "own",
        keeps_finals: bool = False,
    ) -> None:
        self.env, self._keeps_finals = env, keeps_finals
        self.agents = tuple(env.possible_agents)
        if not self.agents:
            raise EnvError(f"{type(env).__name__} has no agents: possible_agents must list all that may ever be there")
        observed, acted = _spaces_of(env, self.agents, "observation"), _spaces_of(env, self.agents, "action")
        have_masks = which_have_masks(acted) if action_masks else [False] * len(acted)
        are_within = [has and has_mask(space) for has, space in zip(have_masks, observed, strict=True)]
        pairs = zip(are_within, observed, strict=True)
        observed = [without_mask(space) if is_within else space for is_within, space in pairs]
        self._critic_observes = each_observes(critic_observes, self.agents)
        whole = spaces_with_critics_part(observed, self._critic_observes, env)
        of_slots = zip(have_masks, whole, acted, strict=True)
        seen = [MaskedObservation(space, action) if has else space for has, space, action in of_slots]
        self.agent = SimpleNamespace(
            observation_space=joint_space(self.agents, seen), action_space=joint_space(self.agents, acted)
        )
        """The spaces that all agents share, or `SpacesOfAgents`."""
        self.action_space = gym.spaces.Tuple(acted)
        self._slot_of_agent = {agent: slot for slot, agent in enumerate(self.agents)}
        self._names = [f"agent {agent!r}" for agent in self.agents]
        self._encoders = encoders_of(seen)
        """Encoders of what each agent sees of its row."""
        each = zip(encoders_of(observed), acted, have_masks, are_within, strict=True)
        self._makers = [RowMaker(own, action if has else None, within) for own, action, has, within in each]
        encode, num_agents = ObservationEncoder(self.agent.observation_space), len(self.agents)
        self._differ = isinstance(self.agent.observation_space, SpacesOfAgents)
        self.rows: Array = np.zeros((num_agents, *encode.shape), encode.dtype)
        """The rows of all agents."""
        self._own_rows = self.rows
        self._of_critics: CriticRows | None = None
        """Rows with own observations, and what makes whole rows from them if critics see more."""
        if {*self._critic_observes} != {"own"}:
            self._of_critics = CriticRows(whole, self._critic_observes, self.rows.shape[1])
            self._own_rows = np.zeros((num_agents, self._of_critics.size), np.float32)
        self.masks: list[Any] = [None] * num_agents
        """The last mask of each agent."""
        self._given = [_Report(slot, None, 0.0, False, False, None) for slot in range(num_agents)]
        """The last report on each agent, for errors."""
        self.rewards = np.zeros(num_agents, np.float32)
        self.terminated, self.truncated = (np.zeros(num_agents, np.bool_) for _ in range(2))
        self.present = np.zeros(num_agents, np.bool_)
        """Which agents are present."""
        self.saved = {"game": env, "rows": self.rows, "present": self.present, "masks": self.masks}
        """The objects whose plain data a checkpoint saves."""
        self.is_over = False
        """Whether the last step has ended the episode of the last agent."""
        self.infos: Any = {}
        """The infos of the last reset or step."""
        self.finals: list[tuple[int, Array]] = []
        """Slots that were truncated in the last step, or ended if `keeps_finals`, with their final observations."""
        self._checks = 2  # the first reset and the first step are checked fully

    def reset(self, *, seed: int | None = None) -> tuple[Array, Any]:
        """Begin an episode; return rows `[A, obs]`, with zeros for absent agents, and infos.

        Raises:
            BadValueError: if the environment returns invalid values.
        """
        self.rows[:] = self._own_rows[:] = 0
        self.present[:] = self.is_over = False
        self._begin(seed)
        self._fill_for_critics(self._seen_by_critics())
        self.require_finite()
        self._note_present()
        self._checks = min(self._checks, 1)
        return self.rows, self.infos

    def step(self, actions: Any) -> tuple[Array, Array, bool, bool, Any]:
        """Step with an action for each slot; those of absent or waiting agents are ignored.

        Returns:
            `rows [A, obs]` and `rewards [A]`, zeros for agents that have left; whether the episode of an agent has
                ended, as `terminated`, `truncated` and `finals` say; False; and infos.

        Raises:
            BadValueError: if the environment returns invalid values, leaves an agent out, or adds one.
        """
        self.finals, has_lost_one = [], False
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0
        for report in self._reports(actions):
            slot, observation, reward, terminated, truncated, info = report
            self._given[slot], name = report, self._names[slot]
            if not isinstance(reward, (float, int, np.generic)):
                reward = as_scalar(f"{name}: its reward", as_numbers(f"{name}: its reward", reward))
            self.rewards[slot] += reward
            if not (isinstance(terminated, TRUTHS) and isinstance(truncated, TRUTHS)):
                terminated = as_flag(f"{name}: its terminated", terminated)
                truncated = as_flag(f"{name}: its truncated", truncated)
            if not (terminated or truncated):
                if not self.present[slot]:
                    raise self._newcomer(self.agents[slot])
                self._write(slot, observation, info)
            elif self.present[slot]:
                has_lost_one = True
                self._leave(slot, observation, info, terminated, truncated)
        if self._of_critics is not None:
            self._fill_for_critics(self._seen_by_critics() | self.truncated)
        if has_lost_one:
            for slot in np.flatnonzero(self.truncated | (self.terminated & self._keeps_finals)).tolist():
                self._require_finite_row(slot, "final observation")
                self.finals.append((slot, self.rows[slot].copy()))
            self.is_over = not self.present.any()
            self._note_present()
            self._fill_for_critics(self._seen_by_critics())
        self._checks = 0
        return self.rows, self.rewards, has_lost_one, False, self.infos

    @abstractmethod
    def _begin(self, seed: int | None) -> None:
        """Reset the environment, and write the rows of the agents that are present."""

    @abstractmethod
    def _reports(self, actions: Any) -> Iterator[_Report]:
        """Step the environment, and report on the agents that acted or act next."""

    def _seen_by_critics(self) -> Array:
        """Present agents whose rows are written in this step."""
        return self.present

    def require_finite(self) -> None:
        """Refuse rows and rewards that are not finite.

        Raises:
            BadValueError: naming the agent and the number.
        """
        for slot, name in enumerate(self._names):
            self._require_finite_row(slot, "observation")
            require_finite(f"{name}: its reward", self.rewards[slot], self._given[slot].reward)

    def rows_of(self, slots: Sequence[int]) -> Array:
        """The rows of agents with the same spaces, as their policy takes them; copied."""
        rows = self.rows[slots]
        return self._encoders[slots[0]].layout.own(rows) if self._differ else rows

    def take_over(self, before: Any) -> None:
        """Take over what outlives a restart from the environment that this one replaces."""

    def reset_options(self) -> dict[str, Any] | None:
        """The options of the next reset."""
        return None

    def use_saved(self) -> None:
        """Use what a checkpoint has written into `saved`."""
        self.rows[:], self.present[:], self.masks[:] = (self.saved[name] for name in ("rows", "present", "masks"))
        self.saved |= {"rows": self.rows, "present": self.present, "masks": self.masks}
        self._note_present()

    def _slot(self, agent: Any) -> int:
        try:
            return self._slot_of_agent[agent]
        except KeyError:
            raise BadValueError(f"its agent {agent!r} is not in its possible_agents") from None

    def _note_present(self) -> None:
        """Note which agents are present, and clear the rows of the others."""
        self.rows[~self.present] = self._own_rows[~self.present] = 0
        self._acting = {self.agents[slot]: slot for slot in np.flatnonzero(self.present).tolist()}

    def _leave(self, slot: int, observation: Any, info: Any, terminated: bool, truncated: bool) -> None:
        self.present[slot] = False
        self.terminated[slot], self.truncated[slot] = terminated, truncated and not terminated
        if terminated and not self._keeps_finals:
            self.rows[slot] = self._own_rows[slot] = 0
        elif observation is None:
            end = "terminated" if terminated else "truncated"
            raise BadValueError(f"{self._names[slot]} was {end}, and its step returned no final observation")
        else:
            self._write(slot, observation, info, has_ended=True)

    def _write(self, slot: int, observation: Any, info: Any, has_ended: bool = False) -> None:
        try:
            row, self.masks[slot] = self._makers[slot].row(
                observation, info, has_ended=has_ended, is_checked=self._checks > 0
            )
        except BadValueError as error:
            raise type(error)(f"{self._names[slot]}: {error}") from None
        end = self._encoders[slot].size
        if self._of_critics is not None:  # the mask is at the end of a row
            size = self._of_critics.sizes[slot]
            self._own_rows[slot, :size], self.rows[slot, end - len(row) + size : end] = row[:size], row[size:]
        elif self._differ:
            self.rows[slot, :end] = self._encoders[slot].layout.among_others(row)
        else:
            self.rows[slot] = row

    def _fill_for_critics(self, seen: Array) -> None:
        """Write the parts of critics into these rows."""
        if self._of_critics is None:
            return
        if size := self._of_critics.state_size:
            state = np.asarray(self.env.state(), np.float32).reshape(-1)
            if len(state) != size:
                raise BadValueError(f"its state() has {len(state)} numbers, and its state_space {size}")
            self._own_rows[:, -size:] = state
        whole = self._of_critics.whole(self._own_rows, seen)
        np.copyto(self.rows, whole, where=seen[:, None] & ~self._of_critics.beside)

    def _require_finite_row(self, slot: int, what: str) -> None:
        given = self._given[slot].observation
        self._encoders[slot].require_finite(f"{self._names[slot]}: its {what}", self.rows_of([slot])[0], given)

    def _newcomer(self, agent: Any) -> BadValueError:
        """The error for an agent that appears in the middle of an episode."""
        what = "was not in its reset, or has left" if agent in self._slot_of_agent else "is not in its possible_agents"
        return BadValueError(f"agent {agent!r} appeared in the middle of an episode, and {what}")


class ParallelEnvironment(MultiAgentEnvironment):
    """An environment whose agents act at the same time."""

    def _begin(self, seed: int | None) -> None:
        result: Any = self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Mapping):
            raise BadValueError("its reset did not return two mappings, as pettingzoo.ParallelEnv: observations, infos")
        observations, self.infos = result
        for agent, observation in observations.items():
            slot = self._slot(agent)
            self._write(slot, observation, _entry(self.infos, agent))
            self.present[slot] = True
        if not self.present.any():
            raise BadValueError("its reset returned no observation of an agent")

    def _reports(self, actions: Any) -> Iterator[_Report]:
        result: Any = self.env.step({agent: actions[slot] for agent, slot in self._acting.items()})
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(of, Mapping) for of in result):
            raise BadValueError(f"its step did not return five mappings, as pettingzoo.ParallelEnv: {', '.join(STEP)}")
        observations, rewards, terminations, truncations, self.infos = result
        for agent, slot in self._acting.items():
            missing = [name for name, of in zip(STEP[1:4], result[1:4], strict=True) if agent not in of]
            if not missing and agent not in observations and not (terminations[agent] or truncations[agent]):
                missing = ["observation"]
            if missing:
                raise BadValueError(f"its step returned no {missing[0]} of agent {agent!r}, which has not left")
            ends = terminations[agent], truncations[agent]
            yield _Report(slot, observations.get(agent), rewards[agent], *ends, _entry(self.infos, agent))
        for agent in observations.keys() - self._acting.keys():
            # The environment may still report that an agent has left.
            if not (terminations.get(agent) or truncations.get(agent)):
                raise self._newcomer(agent)


class TurnBasedEnvironment(MultiAgentEnvironment):
    """An environment whose agents take turns: one acts in each step, and the rows of the others do not change.

    The reward of an action is known when the agent's next turn begins, or at its end: it is the sum over all turns in
    between, like PettingZoo's `last()`.
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
            self.present[self._slot(agent)] = True
        if not self.present.any():
            raise BadValueError("its reset left no agents to act")
        for slot, observation, _, terminated, truncated, info in self._reports_of_turn():
            if terminated or truncated:
                self.present[slot] = False
            else:
                self._write(slot, observation, info)
        self.rewards[:] = 0  # they belong to no action
        if not self.present.any():
            raise BadValueError("its reset ended the episode")

    def _reports(self, actions: Any) -> Iterator[_Report]:
        self.infos = {}
        self.env.step(actions[self.turn])
        return self._reports_of_turn()

    def _reports_of_turn(self) -> Iterator[_Report]:
        """Report on agents up to the next that acts; agents whose episode has ended leave."""
        game = self._game
        for _ in range(len(self.agents) + 1):
            if not game.agents:
                if self.present.any():
                    name = self._names[int(np.flatnonzero(self.present)[0])]
                    raise BadValueError(f"{name} is gone, and was neither terminated nor truncated")
                return
            agent = game.agent_selection
            slot, result = self._slot(agent), self._last()
            if not isinstance(result, tuple) or len(result) != 5:
                raise BadValueError("its last() did not return five values, as pettingzoo.AECEnv")
            _, _, terminated, truncated, self.infos[agent] = result
            name = self._names[slot]
            has_ended = as_flag(f"{name}: its terminated", terminated) or as_flag(f"{name}: its truncated", truncated)
            if not has_ended:
                self.turn = slot
            yield _Report(slot, *result)
            if not has_ended:
                return
            self.env.step(None)  # PettingZoo requires this of agents whose episode has ended
        raise BadValueError("its agents whose episode has ended do not leave when they are stepped with None")

    def use_saved(self) -> None:  # noqa: D102 - as in the base
        super().use_saved()
        self._look_within()
        if self.present.any():
            self.turn = self._slot(self._game.agent_selection)

    def _look_within(self) -> None:
        self._game, self._last = _within_wrappers(self.env), self.env.last
        if self._game is not self.env and self._last.__module__ == "pettingzoo.utils.env":
            self._last = self._last_from_within

    def _last_from_within(self) -> Any:
        """Like PettingZoo's own `last()`, which looks through all wrappers for each of the five values."""
        game = self._game
        agent = game.agent_selection
        ends = game.terminations[agent], game.truncations[agent]
        return self.env.observe(agent), game._cumulative_rewards[agent], *ends, game.infos[agent]

    def _seen_by_critics(self) -> Array:
        return self.present & (np.arange(len(self.agents)) == self.turn)

    def _fill_for_critics(self, seen: Any) -> None:
        if "all" in self._critic_observes:
            for slot in np.flatnonzero(self.present).tolist():
                if slot != self.turn:  # the mask of a waiting agent may allow nothing, or be missing
                    agent = self.agents[slot]
                    self._write(slot, self.env.observe(agent), self.env.infos[agent], has_ended=True)
        super()._fill_for_critics(seen)


def multi_agent_environment(env: Any, *options: Any) -> MultiAgentEnvironment:
    """An environment as rows; the options are those of `MultiAgentEnvironment`."""
    return (TurnBasedEnvironment if takes_turns(env) else ParallelEnvironment)(env, *options)


def _within_wrappers(env: Any) -> Any:
    """The object within PettingZoo's wrappers, each of which asks the next for every attribute."""
    while type(env).__module__.startswith("pettingzoo.utils.wrappers.") and "agent_selection" not in vars(env):
        env = env.env
    return env


def _spaces_of(env: Any, agents: tuple[Any, ...], kind: str) -> list[gym.Space[Any]]:
    """The space of each agent."""
    spaces = [getattr(env, f"{kind}_space")(agent) for agent in agents]
    for agent, space in zip(agents, spaces, strict=True):
        if not isinstance(space, gym.Space):
            raise EnvError(f"the {kind} space of agent {agent!r} is not a gymnasium.spaces.Space: {shown(space)}")
    return spaces


def _entry(infos: Any, key: Any) -> Any:
    return infos.get(key) if isinstance(infos, (dict, Mapping)) else None
