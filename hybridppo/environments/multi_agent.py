"""An environment of several agents, like PettingZoo's `ParallelEnv` or `AECEnv`: a row for each agent.

Agents act at the same time in a `ParallelEnvironment`, and one after the other in a `TurnBasedEnvironment`. PettingZoo
is not imported: any object with its methods is such an environment.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from hybridppo.environments.checks import TRUTHS, as_flag
from hybridppo.environments.wrappers import MASK, has_mask, mask_apart, mask_row, masked_row, without_mask
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
    """Whether an object is an environment of several agents that act at the same time."""
    return _has_methods(made, "reset", "step", "observation_space", "action_space") and not hasattr(made, "last")


def takes_turns(made: Any) -> bool:
    """Whether an object is an environment of several agents that take turns."""
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


class _Slot:
    """Writes an agent's observations and masks into its row.

    Args:
        name: the agent.
        row: its row.
        encode: encodes what the agent sees of the row.
        own: encodes the agent's observations, without the mask.
        action: its action space.
        has_mask: whether the row has a mask.
        is_within: whether the mask comes within the observation.
        place: the part of the row with the observation; None for all but the mask.
    """

    def __init__(
        self, name: str, row: Array, encode: ObservationEncoder, own: ObservationEncoder, action: "gym.Space[Any]", *,
        has_mask: bool, is_within: bool, place: slice | None,
    ) -> None:  # fmt: skip
        self.name, self.row, self.encode, self.own, self.is_within = name, row, encode, own, is_within
        self.masked = MaskedObservation(own.space, action) if has_mask else None
        num_numbers = len(row) - (0 if self.masked is None else self.masked.num_actions)
        self.is_apart = has_mask and not encode.layout.images
        """Whether the mask follows the observation; in rows with images, numbers come first."""
        self._part, self._mask_part = row[slice(num_numbers) if place is None else place], row[num_numbers:]
        is_array = isinstance(own.space, Box) and (self.is_apart or not has_mask)
        self._array = self._part.reshape(own.space.shape or ()) if is_array else None
        """A view of the row in the shape of the observation, if the observation is a row already."""
        self._dtype = None if own.image is None else own.dtype

    def write(self, observation: Any, info: Any, needs_choice: bool, *, is_checked: bool, differ: bool) -> Any:
        """Write an observation and the mask in its info; return the mask, None if there is none.

        Args:
            observation: the observation.
            info: the info.
            needs_choice: whether the mask must allow an action.
            is_checked: whether the bounds of the observation are checked.
            differ: whether the rows of the agents differ.

        Raises:
            BadValueError: naming the agent.
        """
        try:
            if self.is_within:
                observation, info = mask_apart(observation)
            if is_checked:
                observation = self.own.checked(observation)
            if self.masked is not None:
                if not self.is_apart:
                    row = masked_row(self.masked, observation, info, not needs_choice)
                    self.row[...] = self.encode.layout.among_others(row) if differ else row
                    return _entry(info, MASK)
                self._mask_part[...] = mask_row(self.masked, info, not needs_choice)
            if self._array is None:
                row = self.own.one_to_copy(observation)
                self._part[...] = self.encode.layout.among_others(row) if differ else row
            else:
                is_of_space = type(observation) is np.ndarray and observation.shape == self._array.shape
                if not is_of_space or (self._dtype is not None and observation.dtype != self._dtype):
                    observation = self.own.checked(observation, bounds=False)
                self._array[...] = observation
            return None if self.masked is None else _entry(info, MASK)
        except BadValueError as error:
            raise BadValueError(f"{self.name}: {error}") from None


class MultiAgentEnvironment:
    """An environment with a slot for each agent: arrays of `A` rows, in the order of `possible_agents`.

    An agent is present from the reset that returns its observation until it is terminated or truncated. Later steps may
    leave it out; its values are ignored.

    Args:
        env: the environment.
        action_masks: whether an agent's observation includes the mask in its `info["action_mask"]`. An agent whose
            actions have no choices, such as a `Box`, needs none.
        critic_observes: what rows have besides an agent's own observation, like `PPOConfig.critic_observes`.

    Raises:
        EnvError: if it has no agents, or a space is not supported.
    """

    takes_turns = False
    """Whether one agent acts in each step: the one in slot `turn`."""
    turn = 0

    def __init__(self, env: Any, action_masks: bool = False, critic_observes: ObservesOfAgents = "own") -> None:
        self.env = env
        self.saved: object = env
        """The object whose state a checkpoint saves."""
        self.agents = tuple(env.possible_agents)
        if not self.agents:
            raise EnvError(f"{type(env).__name__} has no agents: possible_agents must list all that may ever be there")
        observed, acted = _spaces_of(env, self.agents, "observation"), _spaces_of(env, self.agents, "action")
        have_masks = which_have_masks(acted) if action_masks else [False] * len(acted)
        are_within = [has and has_mask(space) for has, space in zip(have_masks, observed, strict=True)]
        pairs = zip(are_within, observed, strict=True)
        observed = [without_mask(space) if is_within else space for is_within, space in pairs]
        self._critic_observes = each_observes(critic_observes, self.agents)
        seen = whole = spaces_with_critics_part(observed, self._critic_observes, env)
        if action_masks:
            each = zip(have_masks, whole, acted, strict=True)
            seen = [MaskedObservation(space, action) if has else space for has, space, action in each]
        self.agent = SimpleNamespace(
            observation_space=joint_space(self.agents, seen), action_space=joint_space(self.agents, acted)
        )
        """The spaces that all agents share, or `SpacesOfAgents`."""
        self.action_space = gym.spaces.Tuple(acted)
        encode = ObservationEncoder(self.agent.observation_space)
        self._differ = isinstance(self.agent.observation_space, SpacesOfAgents)
        num_agents = len(self.agents)
        self._slot_of_agent = {agent: slot for slot, agent in enumerate(self.agents)}
        self.rows: Array = np.zeros((num_agents, *encode.shape), encode.dtype)
        """The rows of all agents."""
        self._of_critics: CriticRows | None = None
        if {*self._critic_observes} != {"own"}:
            self._of_critics = CriticRows(whole, self._critic_observes, self.rows.shape[1])
        self._slots: list[_Slot] = []
        for slot, (own, of_all) in enumerate(zip(encoders_of(observed), encoders_of(seen), strict=True)):
            row = self.rows[slot]
            self._slots.append(
                _Slot(
                    f"agent {self.agents[slot]!r}", row[: of_all.size] if self._differ else row, of_all, own,
                    acted[slot], has_mask=have_masks[slot], is_within=are_within[slot],
                    place=None if self._of_critics is None else self._of_critics.own[slot],
                )
            )  # fmt: skip
        self.masks: list[Any] = [None] * num_agents
        """The last mask of each agent."""
        self.rewards = np.zeros(num_agents, np.float32)
        self.terminated, self.truncated = (np.zeros(num_agents, np.bool_) for _ in range(2))
        self.present = np.zeros(num_agents, np.bool_)
        """Which agents are present."""
        self.is_over = False
        """Whether the last step has ended the episode of the last agent."""
        self.infos: Any = {}
        """The infos of the last reset or step."""
        self.finals: list[tuple[int, Array]] = []
        """Slots that were truncated in the last step, with their final observations."""
        self._checks = 2  # the first reset and the first step are checked fully

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; return rows `[A, obs]`, with zeros for absent agents.

        Raises:
            BadValueError: if the environment returns invalid values.
        """
        self.rows[:] = 0
        self.present[:] = self.is_over = False
        self._begin(seed)
        self._fill_for_critics(self._seen_by_critics())
        self.require_finite()
        self._forget_the_missing()
        self._checks = min(self._checks, 1)
        return self.rows, {}

    def step(self, action: Any) -> Any:
        """Step with an action for each slot; those of absent or waiting agents are ignored.

        Returns:
            `rows [A, obs]`, `rewards`, `terminated`, `truncated`, all `[A]`, and an empty `info`. The values of an
                agent that has left are zero, except for the flags of its last step; its final observation is in
                `finals`.

        Raises:
            BadValueError: if the environment returns invalid values, leaves an agent out, or adds one.
        """
        self.finals, has_lost_one = [], False
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0
        for slot, observation, reward, terminated, truncated, info in self._reports(action):
            agent = self.agents[slot]
            if not isinstance(reward, (float, int, np.generic)):
                name = f"agent {agent!r}: its reward"
                reward = as_scalar(name, as_numbers(name, reward))
            self.rewards[slot] += reward
            if not (isinstance(terminated, TRUTHS) and isinstance(truncated, TRUTHS)):
                terminated = as_flag(f"agent {agent!r}: its terminated", terminated)
                truncated = as_flag(f"agent {agent!r}: its truncated", truncated)
            if not (terminated or truncated):
                if not self.present[slot]:
                    raise self._newcomer(agent)
                self._write(slot, observation, info)
            elif self.present[slot]:
                has_lost_one = True
                self._leave(slot, observation, info, terminated, truncated)
        if self._of_critics is not None:
            self._fill_for_critics(self._seen_by_critics() | self.truncated)
        if has_lost_one:
            for slot in np.flatnonzero(self.truncated).tolist():
                self._require_finite_row(slot, "final observation")
                self.finals.append((slot, self.rows[slot].copy()))
            self.rows[~self.present] = 0
            self.is_over = not self.present.any()
            self._forget_the_missing()
            self._fill_for_critics(self._seen_by_critics())
        self._checks = 0
        return self.rows, self.rewards, self.terminated, self.truncated, {}

    @abstractmethod
    def _begin(self, seed: int | None) -> None:
        """Reset the environment, and write the rows of the agents that are present."""

    @abstractmethod
    def _reports(self, action: Any) -> Iterator[_Report]:
        """Step the environment, and report on the agents that acted or act next."""

    def _seen_by_critics(self) -> Array:
        """Present agents whose rows are written in this step."""
        return self.present

    def require_finite(self) -> None:
        """Refuse rows and rewards that are not finite.

        Raises:
            BadValueError: naming the agent and the number.
        """
        for slot, each in enumerate(self._slots):
            self._require_finite_row(slot, "observation")
            require_finite(f"{each.name}: its reward", self.rewards[slot])

    def rows_of(self, slots: Sequence[int]) -> Array:
        """The rows of agents with the same spaces, as their policy takes them; copied."""
        rows = np.array([self._slots[slot].row for slot in slots])
        return self._slots[slots[0]].encode.layout.own(rows) if self._differ else rows

    def reset_options(self) -> dict[str, Any] | None:
        """The options of the next reset."""
        return None

    def put_present(self, present: Array) -> None:
        """Set which agents are present, after the environment was restored within an episode."""
        self.present[:] = present
        self.rows[~self.present] = 0  # the episode before had other agents, and critics may see all rows
        self._forget_the_missing()

    @property
    def unwrapped(self) -> Any:
        """The environment itself, without wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def close(self) -> None:
        """Close the environment."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def _slot(self, agent: Any) -> int:
        try:
            return self._slot_of_agent[agent]
        except KeyError:
            raise BadValueError(f"its agent {agent!r} is not in its possible_agents") from None

    def _forget_the_missing(self) -> None:
        self._acting = [(slot, self.agents[slot]) for slot in np.flatnonzero(self.present).tolist()]
        self._names = {agent for _, agent in self._acting}

    def _leave(self, slot: int, observation: Any, info: Any, terminated: bool, truncated: bool) -> None:
        self.present[slot] = False
        self.terminated[slot], self.truncated[slot] = terminated, truncated and not terminated
        if terminated:
            self.rows[slot] = 0
        elif observation is None:
            raise BadValueError(
                f"{self._slots[slot].name} was truncated, and its step returned no observation of it: the final one is "
                "what its return is bootstrapped from"
            )
        else:
            self._write(slot, observation, info, needs_choice=False)

    def _write(self, slot: int, observation: Any, info: Any, needs_choice: bool = True) -> None:
        is_checked, own = self._checks > 0, self._slots[slot]
        self.masks[slot] = own.write(observation, info, needs_choice, is_checked=is_checked, differ=self._differ)

    def _fill_for_critics(self, seen: Array) -> None:
        """Write the parts of critics into these rows."""
        if self._of_critics is None:
            return
        state, size = None, self._of_critics.state_size
        if size:
            state = np.asarray(self.env.state(), np.float32).reshape(-1)
            if len(state) != size:
                raise BadValueError(f"its state() has {len(state)} numbers, and its state_space {size}")
        self.rows[seen] = self._of_critics.filled(self.rows, state)[seen]

    def _require_finite_row(self, slot: int, what: str) -> None:
        own = self._slots[slot]
        row = own.encode.layout.own(own.row) if self._differ else own.row
        own.encode.require_finite(f"{own.name}: its {what}", row)

    def _newcomer(self, agent: Any) -> BadValueError:
        """The error for an agent that appears in the middle of an episode."""
        what = "was not in its reset, or has left" if agent in self._slot_of_agent else "is not in its possible_agents"
        return BadValueError(
            f"agent {agent!r} appeared in the middle of an episode, and {what}: agents may leave before its end, and "
            "come with its reset alone"
        )


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

    def _reports(self, action: Any) -> Iterator[_Report]:
        result: Any = self.env.step({agent: action[slot] for slot, agent in self._acting})
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(of, Mapping) for of in result):
            raise BadValueError(f"its step did not return five mappings, as pettingzoo.ParallelEnv: {', '.join(STEP)}")
        observations, rewards, terminations, truncations, infos = result
        self.infos = infos
        for slot, agent in self._acting:
            missing = [name for name, of in zip(STEP[1:4], result[1:4], strict=True) if agent not in of]
            if not missing and agent not in observations and not (terminations[agent] or truncations[agent]):
                missing = ["observation"]
            if missing:
                raise BadValueError(f"its step returned no {missing[0]} of agent {agent!r}, which has not left")
            ends = terminations[agent], truncations[agent]
            yield _Report(slot, observations.get(agent), rewards[agent], *ends, _entry(infos, agent))
        for agent in observations.keys() - self._names:
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

    def _reports(self, action: Any) -> Iterator[_Report]:
        self.infos = {}
        self.env.step(action[self.turn])
        return self._reports_of_turn()

    def _reports_of_turn(self) -> Iterator[_Report]:
        """Report on agents up to the next that acts; agents whose episode has ended leave."""
        game = self._game
        for _ in range(len(self.agents) + 1):
            if not game.agents:
                if self.present.any():
                    name = self._slots[int(np.flatnonzero(self.present)[0])].name
                    raise BadValueError(f"{name} is gone, and was neither terminated nor truncated")
                return
            agent = game.agent_selection
            slot, result = self._slot(agent), self._last()
            if not isinstance(result, tuple) or len(result) != 5:
                raise BadValueError("its last() did not return five values, as pettingzoo.AECEnv")
            _, _, terminated, truncated, self.infos[agent] = result
            has_ended = as_flag(f"agent {agent!r}: its terminated", terminated) or as_flag(
                f"agent {agent!r}: its truncated", truncated
            )
            if not has_ended:
                self.turn = slot
            yield _Report(slot, *result)
            if not has_ended:
                return
            self.env.step(None)  # PettingZoo requires this of agents whose episode has ended
        raise BadValueError("its agents whose episode has ended do not leave when they are stepped with None")

    def put_present(self, present: Any) -> None:  # noqa: D102 - as in the base
        super().put_present(present)
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
        seen: Array = self.present & (np.arange(len(self.agents)) == self.turn)
        return seen

    def _fill_for_critics(self, seen: Any) -> None:
        if "all" in self._critic_observes:
            for slot in np.flatnonzero(self.present).tolist():
                if slot != self.turn:  # the mask of a waiting agent may allow nothing, or be missing
                    agent = self.agents[slot]
                    self._write(slot, self.env.observe(agent), self.env.infos[agent], needs_choice=False)
        super()._fill_for_critics(seen)


def multi_agent_environment(
    make: Callable[[], Any], action_masks: bool = False, critic_observes: ObservesOfAgents = "own"
) -> MultiAgentEnvironment:
    """The environment that `make` makes, as rows."""
    made = make()
    kind = TurnBasedEnvironment if takes_turns(made) else ParallelEnvironment
    return kind(made, action_masks, critic_observes)


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
