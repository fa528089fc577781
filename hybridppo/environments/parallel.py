"""An environment of several agents that act at the same time, like PettingZoo's `ParallelEnv`: a row for each agent.

PettingZoo is not imported: any object with its methods is such an environment.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from hybridppo.environments.action_masks import MASK, has_mask, mask_apart, mask_row, masked_row, without_mask
from hybridppo.environments.checks import TRUTHS, as_flag
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
    methods = (getattr(made, name, None) for name in ("reset", "step", "observation_space", "action_space"))
    return hasattr(made, "possible_agents") and not hasattr(made, "last") and all(map(callable, methods))


class ParallelEnvironment(gym.Env[Any, Any]):
    """A parallel environment with a slot for each agent: arrays of `A` rows, in the order of `possible_agents`.

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
        self.agents = _agents_of(env)
        observed, acted = _spaces_of(env, self.agents, "observation"), _spaces_of(env, self.agents, "action")
        have_masks = which_have_masks(acted) if action_masks else [False] * len(acted)
        self._has_mask_within = [has and has_mask(space) for has, space in zip(have_masks, observed, strict=True)]
        within = zip(self._has_mask_within, observed, strict=True)
        observed = [without_mask(space) if has else space for has, space in within]
        self._critic_observes = each_observes(critic_observes, self.agents)
        seen = whole = spaces_with_critics_part(observed, self._critic_observes, env)
        if action_masks:
            each = zip(have_masks, whole, acted, strict=True)
            seen = [MaskedObservation(space, action) if has else space for has, space, action in each]
        self.agent = SimpleNamespace(
            observation_space=joint_space(self.agents, seen), action_space=joint_space(self.agents, acted)
        )
        """The spaces that all agents share, or `SpacesOfAgents`."""
        self._unmasked = encoders_of(observed)
        self._encoders = encoders_of(seen)
        encode = ObservationEncoder(self.agent.observation_space)
        self._differ = isinstance(self.agent.observation_space, SpacesOfAgents)
        num_agents = len(self.agents)
        self._slots = {agent: slot for slot, agent in enumerate(self.agents)}
        self.rows: Array = np.zeros((num_agents, *encode.shape), encode.dtype)
        """The rows of all agents."""
        pairs = zip(self.rows, self._encoders, strict=True)
        self.own_rows = [row[: encode.size] if self._differ else row for row, encode in pairs]
        """The part of each row that belongs to the agent."""
        self._masked = [
            MaskedObservation(space, action) if has else None
            for has, space, action in zip(have_masks, observed, acted, strict=True)
        ]
        num_masked = [0 if space is None else space.num_actions for space in self._masked]
        self._places = [slice(0, len(row) - number) for row, number in zip(self.own_rows, num_masked, strict=True)]
        """The part of each row with the agent's own observation."""
        self._of_critics: CriticRows | None = None
        if {*self._critic_observes} != {"own"}:
            self._of_critics = CriticRows(whole, self._critic_observes, self.rows.shape[1])
            self._places = self._of_critics.own
        self._own_parts = [row[place] for row, place in zip(self.own_rows, self._places, strict=True)]
        self.masks: list[Any] = [None] * num_agents
        """The last mask of each agent."""
        self._has_apart = [has and not each.layout.images for has, each in zip(have_masks, self._encoders, strict=True)]
        """Whether masks follow the observations in each row; in rows with images, numbers come first."""
        self._mask_parts = [row[len(row) - number :] for row, number in zip(self.own_rows, num_masked, strict=True)]
        # For observations that are rows already: views of the rows, in the shape of the observation.
        self._arrays = [
            part.reshape(space.shape or ()) if isinstance(space, Box) and (is_apart or not has) else None
            for part, space, is_apart, has in zip(self._own_parts, observed, self._has_apart, have_masks, strict=True)
        ]
        self._dtypes = [None if each.image is None else each.dtype for each in self._encoders]
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
        # The spaces of all rows together, for code that takes this for an environment of one agent. Rows are checked
        # separately, so these have no bounds.
        low, high = (0, 255) if encode.layout.images else (-np.inf, np.inf)
        self.observation_space = Box(low, high, self.rows.shape, dtype=encode.dtype.type)
        self.action_space = gym.spaces.Tuple(acted)
        self._checks = 2  # the first reset and the first step are checked fully

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; return rows `[A, obs]`, with zeros for absent agents.

        Raises:
            BadValueError: if the environment returns invalid values.
        """
        self.rows[:] = 0
        self.present[:] = self.is_over = False
        self._begin(seed)
        self._fill_for_critics(self.present)
        self.require_finite()
        self._forget_the_missing()
        self._checks = min(self._checks, 1)
        return self.rows, {}

    def _begin(self, seed: int | None) -> None:
        """Reset the environment, and write the rows of the agents that are present."""
        result: Any = self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Mapping):
            raise BadValueError("its reset did not return two mappings, as pettingzoo.ParallelEnv: observations, infos")
        observations, infos = result
        self.infos = infos
        for agent, observation in observations.items():
            if agent not in self._slots:
                raise BadValueError(f"its agent {agent!r} is not in its possible_agents")
            slot = self._slots[agent]
            self._write(slot, observation, _entry(infos, agent))
            self.present[slot] = True
        if not self.present.any():
            raise BadValueError("its reset returned no observation of an agent")

    def step(self, action: Any) -> Any:
        """Step with an action for each slot; those of absent agents are ignored.

        Returns:
            `rows [A, obs]`, `rewards`, `terminated`, `truncated`, all `[A]`, and an empty `info`. The values of an
                agent that has left are zero, except for the flags of its last step; its final observation is in
                `finals`.

        Raises:
            BadValueError: if the environment returns invalid values, leaves an agent out, or adds one.
        """
        acting, has_lost_one = self._acting, False
        result: Any = self.env.step({agent: action[slot] for slot, agent in acting})
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(of, Mapping) for of in result):
            raise BadValueError(f"its step did not return five mappings, as pettingzoo.ParallelEnv: {', '.join(STEP)}")
        observations, rewards, terminations, truncations, infos = result
        self.infos = infos
        self.finals = []
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0
        for slot, agent in acting:
            try:
                reward, ends = rewards[agent], (terminations[agent], truncations[agent])
            except KeyError:
                missing = next(name for name, of in zip(STEP[1:4], result[1:4], strict=True) if agent not in of)
                raise BadValueError(f"its step returned no {missing} of agent {agent!r}, which has not left") from None
            self.rewards[slot] = reward if isinstance(reward, (float, int, np.generic)) else number_of(agent, reward)
            terminated, truncated = ends
            if not (isinstance(terminated, TRUTHS) and isinstance(truncated, TRUTHS)):
                names = (f"agent {agent!r}: its {name}" for name in ("terminated", "truncated"))
                terminated, truncated = map(as_flag, names, ends)
            if terminated or truncated:
                has_lost_one = True
                self._leave(slot, observations.get(agent), _entry(infos, agent), terminated, truncated)
            elif agent in observations:
                self._write(slot, observations[agent], _entry(infos, agent))
            else:
                raise BadValueError(f"its step returned no observation of agent {agent!r}, which has not left")
        if not observations.keys() <= self._names:
            self._refuse_newcomers(observations, terminations, truncations)
        self._fill_for_critics(self.present)
        if has_lost_one:
            self._end_episodes()
            self._forget_the_missing()
            self._fill_critics_parts(self.present)
        self._checks = 0
        return self.rows, self.rewards, self.terminated, self.truncated, {}

    def require_finite(self) -> None:
        """Refuse rows and rewards that are not finite.

        Raises:
            BadValueError: naming the agent and the number.
        """
        for slot in range(len(self.own_rows)):
            self._require_finite_row(slot, "observation")
            require_finite(f"{self._name_of(slot)}: its reward", self.rewards[slot])

    def rows_of(self, slots: Sequence[int]) -> Array:
        """The rows of agents with the same spaces, as their policy takes them; copied."""
        rows = np.array([self.own_rows[slot] for slot in slots])
        return self._encoders[slots[0]].layout.own(rows) if self._differ else rows

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

    def _name_of(self, slot: int) -> str:
        return f"agent {self.agents[slot]!r}"

    def _forget_the_missing(self) -> None:
        self._acting = [(slot, self.agents[slot]) for slot in np.flatnonzero(self.present).tolist()]
        self._names = {agent for _, agent in self._acting}

    def _leave(self, slot: int, observation: Any, info: Any, terminated: bool, truncated: bool) -> None:
        self.present[slot] = False
        self.terminated[slot], self.truncated[slot] = terminated, truncated and not terminated
        if not terminated:
            if observation is None:
                raise BadValueError(
                    f"{self._name_of(slot)} was truncated, and its step returned no observation of it: the final one "
                    "is what its return is bootstrapped from"
                )
            self._write(slot, observation, info, needs_choice=False)
        else:
            self.rows[slot] = 0

    def _end_episodes(self) -> None:
        """Keep the final observations of truncated agents, and set the rows of absent agents to zero."""
        for slot in np.flatnonzero(self.truncated).tolist():
            self._require_finite_row(slot, "final observation")
            self.finals.append((slot, self.rows[slot].copy()))
        self.rows[~self.present] = 0
        self.is_over = not self.present.any()

    def _write(self, slot: int, observation: Any, info: Any, needs_choice: bool = True) -> None:
        """Write the row of an agent; with `needs_choice`, its mask must allow an action."""
        try:
            if self._has_mask_within[slot]:
                observation, info = mask_apart(observation)
            if self._checks:
                observation = self._unmasked[slot].checked(observation)
            masked = self._masked[slot]
            if masked is not None:
                self.masks[slot] = _entry(info, MASK)
                if not self._has_apart[slot]:
                    row = masked_row(masked, observation, info, not needs_choice)
                    self._put(slot, self.own_rows[slot], row)
                    return
                self._mask_parts[slot][...] = mask_row(masked, info, not needs_choice)
            array = self._arrays[slot]
            if array is None:
                self._put(slot, self._own_parts[slot], self._unmasked[slot].one_to_copy(observation))
                return
            is_of_space = type(observation) is np.ndarray and observation.shape == array.shape
            if not is_of_space or (self._dtypes[slot] is not None and observation.dtype != self._dtypes[slot]):
                observation = self._unmasked[slot].checked(observation, bounds=False)
            array[...] = observation
        except BadValueError as error:
            raise BadValueError(f"{self._name_of(slot)}: {error}") from None

    def _fill_for_critics(self, present: Array) -> None:
        """Write the parts of critics into the rows of agents that are present or were truncated."""
        self._fill_critics_parts(present | self.truncated)

    def _fill_critics_parts(self, seen: Array) -> None:
        if self._of_critics is None:
            return
        state, size = None, self._of_critics.state_size
        if size:
            state = np.asarray(self.env.state(), np.float32).reshape(-1)
            if len(state) != size:
                raise BadValueError(f"its state() has {len(state)} numbers, and its state_space {size}")
        self.rows[seen] = self._of_critics.filled(self.rows, state)[seen]

    def _require_finite_row(self, slot: int, what: str) -> None:
        encode, row = self._encoders[slot], self.own_rows[slot]
        own = encode.layout.own(row) if self._differ else row
        encode.require_finite(f"{self._name_of(slot)}: its {what}", own)

    def _put(self, slot: int, own: Array, row: Array) -> None:
        own[...] = self._encoders[slot].layout.among_others(row) if self._differ else row

    def _refuse_newcomers(self, observations: Any, *ends: Any) -> None:
        for agent in observations.keys() - self._names:
            if not any(bool(of.get(agent)) for of in ends):  # the environment may still report that an agent has left
                raise self._newcomer(agent)

    def _newcomer(self, agent: Any) -> BadValueError:
        """The error for an agent that appears in the middle of an episode."""
        what = "was not in its reset, or has left" if agent in self._slots else "is not in its possible_agents"
        return BadValueError(
            f"agent {agent!r} appeared in the middle of an episode, and {what}: agents may leave before its end, and "
            "come with its reset alone"
        )


def _agents_of(env: Any) -> tuple[Any, ...]:
    agents = tuple(env.possible_agents)
    if not agents:
        raise EnvError(f"{type(env).__name__} has no agents: possible_agents must list all that may ever be there")
    return agents


def _spaces_of(env: Any, agents: tuple[Any, ...], kind: str) -> list[gym.Space[Any]]:
    """The space of each agent."""
    spaces = [getattr(env, f"{kind}_space")(agent) for agent in agents]
    for agent, space in zip(agents, spaces, strict=True):
        if not isinstance(space, gym.Space):
            raise EnvError(f"the {kind} space of agent {agent!r} is not a gymnasium.spaces.Space: {shown(space)}")
    return spaces


def _entry(infos: Any, key: Any) -> Any:
    return infos.get(key) if isinstance(infos, (dict, Mapping)) else None


def number_of(agent: Any, reward: Any) -> Any:
    """An agent's reward as a number.

    Raises:
        BadValueError: if it is not a number.
    """
    return as_scalar(f"agent {agent!r}: its reward", as_numbers(f"agent {agent!r}: its reward", reward))
