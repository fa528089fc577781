"""Copies of an environment that this process steps one after the other: its agents are columns, one or several."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isfinite
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.environments.base import (
    Environments,
    EnvState,
    Steering,
    Step,
    closed,
    closed_if_refused,
    latest,
    warned_of_closing,
)
from hybridppo.environments.checks import (
    as_flag,
    checked_step,
    describe_action,
    describe_error,
    require_same_spaces,
    two_of,
)
from hybridppo.environments.options import OnEnvError
from hybridppo.environments.state import EpisodeStart, encoded_globals, restore_globals
from hybridppo.errors import BadValueError, EnvError, EnvStateError, MissingEntryError, failures
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import finite_test, require_finite, reshaped
from hybridppo.spaces.kinds import each_of
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import AgentName, SpacesOfAgents
from hybridppo.system.validation import whole

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
"""Failures in a row after which an environment is still restarted."""
STEPS_TO_RECOVER = 100
"""After this number of steps, or after a whole episode, failures are counted from 0 again."""


class SubEnvironment:
    """An environment whose first reset and step are checked, and whose errors name it.

    Args:
        make: makes the environment, and makes it again for a restart.
        index: its number among the environments of the run.
        on_error: "raise" an error, or "restart" the environment.
        has_agents: whether `make` makes a `MultiAgentEnvironment` or a `SelfPlayGame`, which check their values.
    """

    def __init__(
        self, make: Callable[[], Any], index: int, on_error: OnEnvError = "raise", *, has_agents: bool = False
    ) -> None:
        self.env = make()
        self.index = index
        self._make, self._on_error, self._has_agents = make, on_error, has_agents
        with closed_if_refused(self.env):
            self.encode = ObservationEncoder(self.spaces.observation_space)
        self._row = self.encode.one
        self.given: Any = None
        """The last observation that the environment returned, if `step` returns another form of it."""
        self.seed: int | None = None
        """The seed of its last seeded reset."""
        self.episode = EpisodeStart()
        self.times_restarted = self.restarts_counted = 0
        """How often it was restarted, and how many of these restarts `Environments.restarted` has had."""
        self.failures = 0
        """Failures in a row."""
        self.steering: list[Steering] = []
        """Calls of `steer` that are repeated after a restart."""
        self._begin()

    def _begin(self) -> None:
        self._is_checked = self._has_agents
        self.step: Callable[[Any], Any] = self.env.step if self._has_agents else self._first_step
        """Like the environment's `step`; after a first step it is that method itself, if nothing is changed."""

    def reset(self, seed: int | None = None, num_steps: int = 0) -> Any:
        """Begin an episode; return its first observation. If `reset` fails, the environment may be restarted.

        Args:
            seed: seed of the environment; None continues with its generator.
            num_steps: steps of the environment so far, for messages.

        Raises:
            EnvError: if the reset fails and no restart is allowed.
        """
        self.failures = 0
        self.seed = seed if seed is not None else self.seed
        try:
            return self.begin_episode(seed, self.env.reset_options() if self._has_agents else None)
        except failures() as error:
            return self.recover(f"in a reset, {num_steps} steps after the first", error)

    def recover(self, when: str, error: BaseException, episode_steps: int = 0) -> Any:
        """Raise the error; or restart the environment and return the first observation of a new episode.

        Args:
            when: what the environment was doing, for messages.
            error: the environment's error, or the fault of the values it returned.
            episode_steps: steps of the episode before the error.

        Raises:
            EnvError: if no restart is allowed or could help, or the environment has failed too often in a row. An
                `EnvError` is raised again, as of self-play's opponents.
        """
        if isinstance(error, EnvError):
            raise error
        if self._on_error == "raise" or isinstance(error, MissingEntryError):
            raise self._failure(when, error) from error
        if episode_steps >= STEPS_TO_RECOVER:
            self.failures = 0
        while True:
            self.failures += 1
            failure = self._failure(when, error)
            if self.failures > FAILURES_IN_A_ROW:
                raise EnvError(f"{self.failures} failures in a row, the last: {failure}") from error
            logger.warning("%s\nThe environment is restarted, and its unfinished episode is dropped.", failure)
            try:
                return self._restart()
            except EnvError:  # it cannot be made: another attempt would fail, too
                raise
            except failures() as again:
                when, error = "when restarted", again

    def _restart(self) -> Any:
        self.times_restarted += 1
        old, before = self.env, self.spaces
        self.close()
        self.env = self._make()
        if self._has_agents:
            self.env.take_over(old)
        for steering in self.steering:
            steering.apply(self.env)
        was, found = ((each.observation_space, each.action_space) for each in (before, self.spaces))
        if found != was:
            raise BadValueError(f"its spaces are {found[0]} and {found[1]}, not {was}")
        self.episode = EpisodeStart()
        self._begin()
        # The old seed might lead to the same failure. The new seed follows from the old one alone, so that an episode
        # that is sampled again after a resume is the same.
        self.seed = int(np.random.SeedSequence([self.seed or 0, 1]).generate_state(1)[0] >> 1)
        return self.begin_episode(self.seed)

    def begin_episode(self, seed: int | None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; return its first observation, or its rows."""
        self.episode.note(self.saved, seed, options)
        result = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        observation, _ = two_of(result)
        if self._has_agents:
            return observation
        self.given = observation
        observation = self._cast(observation if self._is_checked else self.encode.checked(observation))
        self._is_checked = True
        row = observation if self.encode.layout.images else observation.astype(np.float32, copy=False)
        self.encode.require_finite("its observation", row, self.given)
        return observation

    def state(self) -> dict[str, Any]:
        """The counts and the seed, as JSON."""
        return {name: getattr(self, name) for name in ("seed", "times_restarted", "restarts_counted", "failures")}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.seed = None if state["seed"] is None else whole(state, "seed")
        for name in ("times_restarted", "restarts_counted", "failures"):
            setattr(self, name, whole(state, name))

    def close(self) -> None:
        """Close the environment; a failure is only a warning."""
        with warned_of_closing(f"environment {self.index} (seed {self.seed})"):
            self.env.close()
        self.step = closed

    @property
    def spaces(self) -> Any:
        """The object that has the observation space and the action space, of one agent if there are several."""
        return self.env.agent if self._has_agents else self.env

    @property
    def saved(self) -> object:
        """The object whose plain data is saved."""
        return self.env.saved if self._has_agents else self.env

    def _first_step(self, action: Any) -> Any:
        result = self.env.step(action)
        observation, *others = checked_step(self.encode, result)
        self.given = result[0]
        self.step = self.env.step if self.encode.is_array else self._row_step
        if np.ndim(result[1]):
            self.step = partial(self._step_with_number, self.step)
        return (observation if self.encode.is_array else self.encode.one(observation), *others)

    def _row_step(self, action: Any) -> Any:
        self.given, reward, terminated, truncated, info = self.env.step(action)
        return self._row(self.given), reward, terminated, truncated, info

    def _step_with_number(self, step: Callable[[Any], Any], action: Any) -> Any:
        """A step whose reward is a number, if the environment returns an array with one."""
        observation, reward, *others = step(action)
        return observation, np.asarray(reward).item(), *others

    def _cast(self, observation: Any) -> Any:
        """An observation in the type of its `Box`, or as an encoded row."""
        if not self.encode.is_array:
            return self.encode.one(observation)
        if self.encode.image is None:
            return reshaped(observation, self.encode.space.shape)
        return self.encode.checked(observation)

    def _failure(self, when: str, error: BaseException) -> EnvError:
        return EnvError(f"environment {self.index} (seed {self.seed}) failed {when}: {describe_error(error)}")


class SubEnvironments(Environments):
    """Steps each copy; a copy whose episode has ended is reset before `step` returns.

    An agent that leaves ends its episode; its rows are not steps (`absent`) until its environment's next reset, which
    comes when none of its agents is left. Without several agents, every row is a step, unless an environment was
    restarted. The next step overwrites all that `step` returns but the final observations.

    Args:
        make: makes one environment.
        num_envs: number of environments.
        first: number of the first environment among those of the run, for messages.
        on_error: for an environment that fails or returns invalid values: "raise" an error, or "restart" it.
        has_agents: whether `make` makes a `MultiAgentEnvironment` or a `SelfPlayGame`.

    Raises:
        EnvError: if the environments' agents or spaces differ.
    """

    _has_infos = True
    replays = True

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        first: int = 0,
        on_error: OnEnvError = "raise",
        *,
        has_agents: bool = False,
    ) -> None:
        self.sub_environments = _made_alike(make, num_envs, first, on_error, has_agents)
        model = self.sub_environments[0]
        space, actions = model.spaces.observation_space, model.spaces.action_space
        agents = tuple(map(AgentName, model.env.agents)) if has_agents else ()
        super().__init__(num_envs * max(1, len(agents)), space, actions)
        self.encode = model.encode  # which says what it ignored
        self.agents = agents
        self._each_action = _by_environment(actions, len(agents)) if agents else each_of(actions)
        is_array = isinstance(space, gym.spaces.Box) and not agents
        self._shape = space.shape if is_array else None
        """The shape of an observation that is copied as it is; None for rows that are encoded already."""
        self._dtype = self.encode.dtype if is_array and self.encode.image is not None else None
        """The type of images, which other numbers would be cut to."""
        # Rows [N, *obs] and rewards [N] share one array, so that one test finds numbers that are not finite. Bytes have
        # a separate array, and a test of the numbers among them.
        shape = (self.num_envs, *self.encode.shape)
        is_float = not self.encode.layout.images
        size = int(np.prod(shape)) if is_float else 0
        self._numbers = np.zeros(size + self.num_envs, np.float32)
        rows = self._numbers[:size].reshape(shape) if is_float else np.zeros(shape, np.uint8)
        flags = [np.zeros(self.num_envs, np.bool_) for _ in range(2)]
        self._columns: tuple[Array, ...] = rows, self._numbers[size:], *flags
        """Rows, rewards, terminated and truncated of all columns."""
        each = (num_envs, len(agents)) if agents else (num_envs,)
        self._rows: Array = rows.reshape(*each, *(space.shape if is_array else self.encode.shape))
        self._rewards, self._terminated, self._truncated = (array.reshape(each) for array in self._columns[1:])
        """The same arrays by environment; rows in the shape of observations, if these are arrays."""
        self._sum = finite_test(self._numbers.size)
        if not is_float and self.encode.layout.num_numbers:
            self._sum = self._sum_with_bytes(self._sum, self.encode.finite_test(self.num_envs))
        self._given: list[Any] = [(None, None)] * num_envs
        """The last results of the environments' steps, for errors: columns have infinity for numbers beyond float32."""
        self._ended: list[int] = []
        """The environments in which an episode ended in the last step."""
        if agents:
            self._present = np.zeros(each, np.bool_)
            self.absent = np.zeros(self.num_envs, np.bool_)
            self.waiting = np.zeros(self.num_envs, np.bool_) if model.env.takes_turns else None
        self._num_steps = 0
        self.episode_seeds: Iterator[int] | None = None
        """The seeds of the next episodes, if each is to have its own."""
        self._started_at = [0] * num_envs
        """`_num_steps` at the start of each environment's episode."""
        self._globals: Any = None
        """The states of the global generators before the first reset, with which they are saved if they differ."""

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._num_steps, self._globals = 0, encoded_globals()
        for i in range(len(self.sub_environments)):
            self._reset(i, seed + i)
        return self._columns[0].copy()

    def step(self, actions: Any) -> Step:
        """Final observations are the environments' own results of `step`, those of agents that were truncated."""
        rows, rewards, terminated, truncated = self._rows, self._rewards, self._terminated, self._truncated
        shape, dtype, infos, sub_environments = self._shape, self._dtype, self._infos, self.sub_environments
        given = self._given
        for i in self._ended:  # in the last step
            terminated[i] = truncated[i] = False
        self._ended = ended = list[int]()
        if self.restarted:
            self.restarted = {}
        self._num_steps += 1
        if self.agents:
            self._note_who_acts()
        for i, action in enumerate(self._each_action(actions)):
            try:
                given[i] = result = sub_environments[i].step(action)
                observation, rewards[i], is_terminated, is_truncated, info = result
                if shape is not None and getattr(observation, "shape", None) != shape:  # a list has none
                    observation = reshaped(observation, shape)
                if dtype is not None and observation.dtype != dtype:
                    observation = self.encode.checked(observation)
                rows[i] = observation
                if infos is not None:
                    self._take_infos(i, info)
                if is_terminated or is_truncated:
                    self._note_end(i, is_terminated, is_truncated)
                    ended.append(i)
            except failures() as error:
                self._recover(i, action, error)
        if infos is not None:
            infos.rows += 1
        if not isfinite(self._sum(self._numbers)):
            self._recover_from_numbers(actions)
        finals_of, finals = self._end_episodes() if ended else ([], [])
        rows, rewards, terminated, truncated = self._columns
        if self.absent is not None:
            terminated = terminated | self.absent
        return rows, rewards, terminated, truncated, finals_of, finals

    def _end_episodes(self) -> tuple[list[int], list[Array]]:
        """Begin new episodes where one has ended; return the columns of final observations, and these."""
        finals_of: list[int] = []
        finals: list[Array] = []
        for i in self._ended:
            first = i * self.num_agents
            if first in self.restarted:
                continue  # its last numbers were not finite
            for slot, final in self._finals_of(i):
                finals_of.append(first + slot)
                finals.append(final)
            if self._infos is not None:
                for slot in np.flatnonzero(self._terminated[i] | self._truncated[i]).tolist():
                    self._infos.end(first + slot)
            if not self.agents or self.sub_environments[i].env.is_over:
                self._reset(i)
        return finals_of, finals

    def _note_who_acts(self) -> None:
        assert self.absent is not None
        np.logical_not(self._present.reshape(-1), out=self.absent)
        if self.waiting is not None:
            self.waiting[:] = True
            for i, sub_env in enumerate(self.sub_environments):
                self.waiting[i * self.num_agents + sub_env.env.turn] = False

    def _note_end(self, i: int, is_terminated: Any, is_truncated: Any) -> None:
        """Write the flags of an environment in which an episode has ended."""
        if self.agents:
            env = self.sub_environments[i].env
            is_terminated, is_truncated, self._present[i] = env.terminated, env.truncated, env.present
        else:
            is_terminated = as_flag("its terminated", is_terminated)
            is_truncated = as_flag("its truncated", is_truncated)
        self._terminated[i], self._truncated[i] = is_terminated, is_truncated

    def _finals_of(self, i: int) -> Sequence[tuple[int, Array]]:
        """The final observations of the agents of an environment that were truncated, by their number."""
        if self.agents:
            return self.sub_environments[i].env.finals
        is_kept = not self._terminated[i] or self.keeps_finals
        return [(0, self._columns[0][i].copy())] if is_kept else []

    def _take_infos(self, i: int, info: Any) -> None:
        """Take the numbers of the agents that were present; an agent that takes turns has its info at its next turn."""
        assert self._infos is not None
        if not self.agents:
            self._infos.step(i, info)
            return
        assert self.absent is not None
        for slot, agent in enumerate(self.sub_environments[i].env.agents):
            column = i * self.num_agents + slot
            if not self.absent[column]:
                try:
                    self._infos.step(column, info.get(agent), may_lack=self.waiting is not None)
                except BadValueError as error:
                    raise type(error)(f"agent {agent!r}: {error}") from None

    def _sum_with_bytes(self, of_rewards: Callable[[Array], Any], of_rows: Callable[[Array], Any]) -> Any:
        """A test of rewards, and of the numbers among the bytes of rows."""
        flat = self._columns[0].reshape(-1)
        return lambda numbers: of_rewards(numbers) + of_rows(flat)

    def _recover_from_numbers(self, actions: Any) -> None:
        for i, action in enumerate(self._each_action(actions)):
            try:
                if self.agents:
                    self.sub_environments[i].env.require_finite()
                else:
                    observation, reward, *_ = self._given[i]
                    given = observation if self._shape is not None else self.sub_environments[i].given
                    self.encode.require_finite("its observation", self._rows[i], given)
                    require_finite("its reward", self._rewards[i], reward)
            except BadValueError as error:
                self._recover(i, action, error)

    def _recover(self, i: int, action: Any, error: BaseException) -> None:
        """Raise the error; or begin a new episode in this step, which drops the step's rows of this environment."""
        if self.agents:  # name those that acted
            idle = self.absent if self.waiting is None else self.waiting
            assert idle is not None
            pairs = zip(self.agents, action, idle[i * self.num_agents :], strict=False)
            action = {agent: own for agent, own, is_idle in pairs if not is_idle}
        episode_steps = self._num_steps - self._started_at[i]
        when = f"in step {episode_steps} of its episode, {self._num_steps} after the first reset"
        rows = self.sub_environments[i].recover(f"{when}, action {describe_action(action)}", error, episode_steps)
        self._rewards[i], self._terminated[i], self._truncated[i] = 0.0, False, False
        self._begin(i, rows)

    def _reset(self, i: int, seed: int | None = None) -> None:
        """Begin an episode of the `i`-th environment."""
        if seed is None and self.episode_seeds is not None:
            seed = next(self.episode_seeds)
        self._begin(i, self.sub_environments[i].reset(seed, self._num_steps))

    def _begin(self, i: int, rows: Any) -> None:
        """Write the first rows of an episode, and count restarts.

        Those of the first reset belong to no step: they are counted when the next episode begins.
        """
        sub_env = self.sub_environments[i]
        self._rows[i] = rows
        self._started_at[i] = self._num_steps
        if self.agents:
            self._present[i] = sub_env.env.present
        times = sub_env.times_restarted - sub_env.restarts_counted
        if times and self._num_steps:
            sub_env.restarts_counted = sub_env.times_restarted
            for column in range(i * self.num_agents, (i + 1) * self.num_agents):
                if self._infos is not None:
                    self._infos.break_off(column)
                self.restarted[column] = self.restarted.get(column, 0) + times

    def state(self) -> list[EnvState]:
        """As in the base, with the plain data of each environment, and the start of its episode."""
        self._remember()
        states: list[EnvState] = []
        for i, sub_env in enumerate(self.sub_environments):
            state = {"num_envs": self.num_agents, "state": sub_env.episode.state(sub_env.saved)}
            state |= {"sub_environment": sub_env.state(), "episode_steps": self._num_steps - self._started_at[i]}
            states.append(state)
        if self._globals is not None and (found := encoded_globals()) != self._globals:  # environments draw from them
            for state in states:
                state["globals"] = found if state is states[0] else "of another"
        return self._states_with_infos(states)

    def load_state(self, states: list[EnvState], rows: Array | None = None, actions: Sequence[Any] = ()) -> None:
        """As in the base; the episode of an environment that is not plain data is replayed."""
        assert rows is not None
        self._require_counts(states, [self.num_agents] * len(self.sub_environments))
        self._remember()
        each = [list(self._each_action(batch)) for batch in actions]
        seen = rows.reshape(self._rows.shape)
        for i, (sub_env, state) in enumerate(zip(self.sub_environments, states, strict=True)):
            number = whole(state, "episode_steps")
            own = [batch[i] for batch in each[len(each) - number :]] if not number or "actions" in state else None
            try:
                sub_env.episode.restore(
                    sub_env.saved, state["state"], own, sub_env.begin_episode, sub_env.step,
                    partial(self._is_as_saved, i, seen[i]),
                )  # fmt: skip
            except EnvStateError as error:
                raise EnvStateError(f"environment {sub_env.index}: {error}") from error.__cause__
            sub_env.load_state(state["sub_environment"])
            self._started_at[i] = self._num_steps - number
            if self.agents:
                sub_env.env.use_saved()
                self._present[i] = sub_env.env.present
        self._rows[:] = seen
        self._load_infos(states)
        if (found := states[0].get("globals")) is not None:
            if isinstance(found, str):
                what = "environments draw from Python's or NumPy's global generator"
                raise EnvStateError(f"{what}, and are divided among processes in another way than when they were saved")
            restore_globals(found)

    def _is_as_saved(self, i: int, saved: Array, found: Any) -> bool:
        if found is not None:
            self._rows[i] = np.reshape(found, self._rows[i].shape)
        return bool(self._rows[i].tobytes() == saved.tobytes())

    def _remember(self) -> None:
        for sub_env in self.sub_environments if not self._num_steps else ():
            sub_env.episode.remember(sub_env.saved)

    @property
    def longest_episode(self) -> int | None:
        """Steps of the longest unfinished episode."""
        return self._num_steps - min(self._started_at)

    def steer(self, steering: Steering) -> list[Any]:  # noqa: D102 - as in the base
        found = [steering.apply(sub_env.env) for sub_env in self.sub_environments]
        for sub_env in self.sub_environments:
            sub_env.steering = latest(sub_env.steering, steering)
        return found

    def _close(self) -> None:
        for sub_env in self.sub_environments:
            sub_env.close()


def _by_environment(space: gym.Space[Any], num_agents: int) -> Callable[[Any], list[list[Any]]]:
    """A function from a batch, or a list of the actions of all columns, to the actions of each environment's agents."""
    each = iter if isinstance(space, SpacesOfAgents) else each_of(space)

    def divided(actions: Any) -> list[list[Any]]:
        found = actions if isinstance(actions, list) else list(each(actions))
        return [found[first : first + num_agents] for first in range(0, len(found), num_agents)]

    return divided


def _made_alike(
    make: Callable[[], Any], num_envs: int, first: int, on_error: OnEnvError, has_agents: bool
) -> list[SubEnvironment]:
    """Environments with the same agents and spaces. If one cannot be made, or differs, those made are closed."""
    made: list[SubEnvironment] = []
    with contextlib.ExitStack() as stack:
        for index in range(first, first + num_envs):
            made.append(SubEnvironment(make, index, on_error, has_agents=has_agents))
            stack.callback(made[-1].close)
            names = f"environment {index}", f"environment {first}"
            ours, theirs = ((list(each.env.agents) if has_agents else []) for each in (made[-1], made[0]))
            if ours != theirs:
                raise EnvError(
                    f"the {num_envs} environments differ: the agents of {names[0]} are {ours}, those of {names[1]} "
                    f"{theirs}: make copies of one environment"
                )
            require_same_spaces(made[-1].spaces, made[0].spaces, *names, num_envs)
        stack.pop_all()
    return made
