"""Single environments of a vector: errors name them, and they can be restarted."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np

from hybridppo.environments.base import Environments, EnvState, Steering, closed, latest, warned_of_closing
from hybridppo.environments.checks import as_flag, checked_step, describe_action, describe_error, is_plain
from hybridppo.environments.options import OnEnvError
from hybridppo.environments.replay import digest_of
from hybridppo.environments.state import (
    REMEDY,
    Walk,
    decoded,
    encoded,
    generators_of,
    require_same,
    set_generator,
    state_of_generator,
    write,
)
from hybridppo.errors import ENV_FAILURES, BadValueError, EnvError, EnvStateError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import reshaped
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.system.validation import whole

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
"""Failures in a row after which an environment is still restarted."""
OTHER_ROWS = (
    "the replay of its episode led to another observation: it draws from a global generator, or something that lives "
    "across episodes is not plain data"
)
STEPS_TO_RECOVER = 100
"""After this number of steps, or after a whole episode, failures are counted from 0 again."""


class SubEnvironment:
    """An environment whose first reset and step are checked, and whose errors name it.

    Args:
        make: makes the environment, and makes it again for a restart.
        index: its number among the environments of the run.
        on_error: "raise" an error, or "restart" the environment.
        gives_rows: whether observations of any space but a `Box` are returned as encoded rows.
        has_agents: whether `make` makes a `MultiAgentEnvironment` or a `SelfPlayGame`.
    """

    def __init__(
        self,
        make: Callable[[], "gym.Env[Any, Any]"],
        index: int,
        on_error: OnEnvError = "raise",
        *,
        gives_rows: bool = False,
        has_agents: bool = False,
    ) -> None:
        self.env = make()
        self.index = index
        self._has_agents = has_agents
        self._encode = ObservationEncoder(self.spaces.observation_space)
        self._gives_rows = gives_rows and not self._encode.is_array
        self._row = self._encode.row_maker()
        self.seed: int | None = None
        """The seed of its last seeded reset."""
        self._started: dict[str, Any] = {}
        """The seed and the options of the last reset, and the states of random generators before it."""
        self._began: dict[str, str] = {}
        self._generators: list[tuple[str, Any, Any]] = []
        self._resets = 0
        self.times_restarted = self.restarts_counted = 0
        """How often it was restarted, and how many of these restarts `Environments.restarted` has had."""
        self._make = make
        self.steering: list[Steering] = []
        """Calls of `steer` that are repeated after a restart."""
        self._on_error = on_error
        self._failures = 0
        self._is_checked = False
        self.step: Callable[[Any], Any] = self._first_step
        """Like the environment's `step`; it is that method itself once a first step has needed no cast."""

    def reset(self, seed: int | None = None, num_steps: int = 0) -> Any:
        """Begin an episode; return its first observation. If `reset` fails, the environment may be restarted.

        Args:
            seed: seed of the environment; None continues with its generator.
            num_steps: steps of the environment so far, for messages.

        Raises:
            EnvError: if the reset fails and no restart is allowed.
        """
        self._failures = 0
        self.seed = seed if seed is not None else self.seed
        try:
            return self._reset(seed, cast(Any, self.env).reset_options() if self._has_agents else None)
        except ENV_FAILURES as error:
            return self.recover(f"in a reset, {num_steps} steps after the first", error)

    def recover(self, when: str, error: BaseException, episode_steps: int = 0) -> Any:
        """Raise the error; or restart the environment and return the first observation of a new episode.

        Args:
            when: what the environment was doing, for messages.
            error: the environment's error, or the fault of the values it returned.
            episode_steps: steps of the episode before the error.

        Raises:
            EnvError: if no restart is allowed, or the environment has failed too often in a row. An `EnvError` is
                raised again, because no restart would help, as for self-play's opponents.
        """
        if isinstance(error, EnvError):
            raise error
        if self._on_error == "raise":
            raise self._failure(when, error) from error
        if episode_steps >= STEPS_TO_RECOVER:
            self._failures = 0
        while True:
            self._failures += 1
            failure = self._failure(when, error)
            if self._failures > FAILURES_IN_A_ROW:
                raise EnvError(f"{self._failures} failures in a row, the last: {failure}") from error
            logger.warning("%s\nThe environment is restarted, and its unfinished episode is dropped.", failure)
            try:
                return self._restart()
            except EnvError:  # it cannot be made: another attempt would fail, too
                raise
            except ENV_FAILURES as again:
                when, error = "when restarted", again

    def state(self) -> dict[str, Any]:
        """The data about the environment that are not in its own state, as JSON."""
        counts = {"times_restarted": self.times_restarted, "restarts_counted": self.restarts_counted}
        return {"seed": self.seed, **counts, "failures": self._failures}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.seed = whole(state, "seed") if state["seed"] is not None else None
        self.times_restarted, self._failures = whole(state, "times_restarted"), whole(state, "failures")
        self.restarts_counted = whole(state, "restarts_counted")

    def saved(self) -> dict[str, Any]:
        """The environment's own state for `restore`: its plain data, and the start of its episode."""
        walk = Walk(self.walked)
        return {"leaves": walk.since(self._began), "hidden": walk.hidden[:1], "started": encoded(self._started)}

    def remember(self) -> None:
        """Remember the data after the first reset: `saved` leaves out what has not changed since."""
        self._began = self._began or Walk(self.walked).digests()

    def restore(self, saved: dict[str, Any], actions: Sequence[Any] | None, rows: Any) -> Any:
        """Restore the result of `saved` in a new environment that was reset.

        If all of it is plain data, the data is written. Otherwise, the episode is replayed; the caller must then
        compare the rows, and write the data.

        Args:
            saved: the state.
            actions: the actions of its episode; None if they were not saved.
            rows: the rows of the reset.

        Returns:
            The last rows of a replay; None if there was none.

        Raises:
            EnvStateError: if the state does not fit, or the episode cannot be replayed.
        """
        started, problem = decoded(saved["started"]), "its actions were not saved"
        has_begun = saved["started"] == encoded(self._started)  # with all that no walk finds
        require_same(self.walked, saved["leaves"])
        if not (has_begun and saved["hidden"]):
            has_begun, self._started = False, started
            try:
                write(self.walked, saved["leaves"])
                if not saved["hidden"]:
                    return None
            except EnvStateError as error:  # what it names may come to exist in the replay
                problem = str(error)
        if actions is None:
            raise EnvStateError(problem)
        if saved["hidden"] and not has_begun and started["seed"] is None and not started["random"]:
            raise EnvStateError(
                f"it has no random generator that the library knows, and {saved['hidden'][0]}: {REMEDY}"
            )
        try:
            if not has_begun:
                for path, owner, key in generators_of(self.walked):
                    if path in started["random"]:
                        set_generator(owner[key], started["random"][path])
                rows = self._reset(started["seed"], started["options"])
            step = self.env.step if self._has_agents else self.step
            for action in actions:
                rows = step(action)[0]
        except ENV_FAILURES as error:
            raise EnvStateError(f"its episode cannot be replayed: {describe_error(error)}") from error
        return rows

    def close(self) -> None:
        """Close the environment; a failure is only a warning."""
        with warned_of_closing(f"environment {self.index} (seed {self.seed})"):
            self.env.close()
        self.step = closed

    def _restart(self) -> Any:
        self.times_restarted += 1
        before = self.spaces
        self.close()
        self.env = self._make()
        for steering in self.steering:
            steering.apply(self.env)
        was, found = ((each.observation_space, each.action_space) for each in (before, self.spaces))
        if found != was:
            raise BadValueError(f"its spaces are {found[0]} and {found[1]}, not {was}")
        self._is_checked, self.step, self._resets = False, self._first_step, 0
        # The old seed might lead to the same failure. The new seed follows from the old one alone, so that an episode
        # that is sampled again after a resume is the same.
        self.seed = int(np.random.SeedSequence([self.seed or 0, 1]).generate_state(1)[0] >> 1)
        return self._reset(self.seed)

    @property
    def spaces(self) -> Any:
        """The object that has the observation space and the action space, of one agent if there are several."""
        env: Any = self.env
        return env.agent if self._has_agents else env

    @property
    def walked(self) -> object:
        """The object whose plain data is saved."""
        env: Any = self.env
        return env.saved if self._has_agents else env

    def _note_start(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Note what a replay of the next episode needs."""
        if self._resets < 2:  # gymnasium makes its generator in the first
            self._resets += 1
            with contextlib.suppress(EnvStateError):  # `saved` raises it again
                self._generators = generators_of(self.walked)
        random = {}
        for path, owner, key in self._generators:
            try:
                random[path] = state_of_generator(owner[key])
            except (KeyError, IndexError):  # it has gone
                continue
        self._started = {"seed": seed, "options": options, "random": random}

    def _reset(self, seed: int | None, options: dict[str, Any] | None = None) -> Any:
        self._note_start(seed, options)
        result = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError("its reset did not return two values, as gymnasium.Env.reset: observation, info")
        if self._has_agents:  # rows, which are checked
            return result[0]
        encode = self._encode
        observation: Any
        if not self._is_checked:
            self._is_checked = True
            observation = encode.checked(result[0])
        else:
            observation = self._cast(result[0])
        if self._gives_rows:
            observation = encode.one(observation)
        elif not encode.is_array:  # the encoder checks it later
            return observation
        encode.require_finite(
            "its observation", observation if encode.layout.images else observation.astype(np.float32, copy=False)
        )
        return observation

    def _first_step(self, action: Any) -> Any:
        result = self.env.step(action)
        observation, *others = checked_step(self._encode, result)
        if is_plain(self._encode, result) and self._encode.is_array:
            self.step = self.env.step
        elif is_plain(self._encode, result) and self._gives_rows:
            self.step = self._row_step
        else:
            self.step = self._cast_step
        return (self._encode.one(observation) if self._gives_rows else observation, *others)

    def _row_step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._row(observation), reward, terminated, truncated, info

    def _cast_step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._encode.one(observation) if self._gives_rows else self._cast(observation)
        ends = as_flag("its terminated", terminated), as_flag("its truncated", truncated)
        return observation, np.asarray(reward).item(), *ends, info

    def _cast(self, observation: Any) -> Any:
        """An observation in the type of its space; the bounds of vectors are not checked again."""
        if self._gives_rows:
            return observation
        if self._encode.is_array and self._encode.image is None:
            return reshaped(self._encode.space, observation)
        return self._encode.checked(observation, bounds=False)

    def _failure(self, when: str, error: BaseException) -> EnvError:
        return EnvError(f"environment {self.index} (seed {self.seed}) failed {when}: {describe_error(error)}")


def made_alike(
    makes: Sequence[Callable[[], Any]],
    require_alike: Callable[[Any, Any, str, str, int], None],
    first: int,
    on_error: OnEnvError,
    **options: bool,
) -> list[SubEnvironment]:
    """An environment of each function. If one cannot be made, or differs from the first, those made are closed.

    Args:
        makes: a function for each environment.
        require_alike: raises an error if two environments, named and one of a number of them, differ.
        first: the number of the first environment.
        on_error: as for `SubEnvironment`.
        **options: other arguments of `SubEnvironment`.
    """
    made: list[SubEnvironment] = []
    with contextlib.ExitStack() as stack:
        for index, make in enumerate(makes, first):
            made.append(SubEnvironment(make, index, on_error, **options))
            stack.callback(made[-1].close)
            names = f"environment {index}", f"environment {first}"
            require_alike(made[-1].env, made[0].env, *names, len(makes))
        stack.pop_all()
    return made


class SubEnvironments(Environments):
    """Environments that this process steps one after the other: saving, restarting and closing them.

    A subclass makes the arrays of a step, `_rows`, `_rewards`, `_terminated` and `_truncated`, and divides actions.

    Args:
        sub_environments: one or more, numbered as in the run.
        columns: columns of a rollout for each environment.
        observation_space: the observation space of a column.
        action_space: the action space of a column.
    """

    _rows: Array
    _rewards: Array
    _terminated: Array
    _truncated: Array
    _each_action: Callable[[Any], Any]
    """From a batch of actions to those of the columns."""
    replays = True

    def __init__(
        self,
        sub_environments: list[SubEnvironment],
        columns: int,
        observation_space: "gym.Space[Any]",
        action_space: "gym.Space[Any]",
    ) -> None:
        super().__init__(len(sub_environments) * columns, observation_space, action_space)
        self.sub_environments = sub_environments
        self._columns = [slice(i * columns, (i + 1) * columns) for i in range(len(sub_environments))]
        self._num_steps = 0
        self.episode_seeds: Iterator[int] | None = None
        """The seeds of the next episodes, if each is to have its own."""
        self._started_at = [0] * len(sub_environments)
        """`_num_steps` at the start of each environment's episode."""
        self._loaded: tuple[int, list[str]] = -1, []
        """`_num_steps` when a state was loaded, and the digests of its rows."""

    def state(self) -> list[EnvState]:
        """As in the base, with the data of each `SubEnvironment`."""
        self._remember()
        at, digests = self._loaded
        if at != self._num_steps:  # else rows of environments that were not replayed are not there
            digests = [digest_of(self._rows[columns]) for columns in self._columns]
        states: list[EnvState] = []
        for sub_env, digest, started_at in zip(self.sub_environments, digests, self._started_at, strict=True):
            state = {"num_envs": self.num_agents, "state": sub_env.saved(), "sub_environment": sub_env.state()}
            states.append({**state, "episode_steps": self._num_steps - started_at, "digest": digest})
        return self._states_with_infos(states)

    def load_state(self, states: list[EnvState], actions: Sequence[Any] = ()) -> None:
        """As in the base; the episode of an environment that is not plain data is replayed."""
        self._require_counts(states, [self.num_agents] * len(self.sub_environments))
        self._remember()
        each = [list(self._each_action(batch)) for batch in actions]
        for sub_env, columns, state in zip(self.sub_environments, self._columns, states, strict=True):
            number = whole(state, "episode_steps")
            own = [batch[columns] if self.agents else batch[columns.start] for batch in each[len(each) - number :]]
            is_there = not number or "actions" in state
            try:
                rows = sub_env.restore(state["state"], own if is_there else None, self._rows[columns])
                if rows is not None:
                    self._rows[columns] = np.reshape(rows, self._rows[columns].shape)
                    if digest_of(self._rows[columns]) != state["digest"]:
                        raise EnvStateError(f"{OTHER_ROWS} ({' '.join(state['state']['hidden'])}): {REMEDY}")
                    write(sub_env.walked, state["state"]["leaves"])
            except EnvStateError as error:
                raise EnvStateError(f"environment {sub_env.index}: {error}") from error.__cause__
            sub_env.load_state(state["sub_environment"])
        self._loaded = self._num_steps, [state["digest"] for state in states]
        self._started_at = [self._num_steps - whole(state, "episode_steps") for state in states]
        self._load_infos(states)

    def _remember(self) -> None:
        if not self._num_steps:
            for sub_env in self.sub_environments:
                sub_env.remember()

    @property
    def longest_episode(self) -> int | None:
        """Steps of the longest unfinished episode."""
        return self._num_steps - min(self._started_at)

    def steer(self, steering: Steering) -> list[Any]:  # noqa: D102 - as in the base
        found = [steering.apply(sub_env.env) for sub_env in self.sub_environments]
        for sub_env in self.sub_environments:
            sub_env.steering = latest(sub_env.steering, steering)
        return found

    def _reset(self, i: int, seed: int | None = None) -> None:
        """Begin an episode of the `i`-th environment."""
        if seed is None and self.episode_seeds is not None:
            seed = next(self.episode_seeds)
        self._begin(i, self.sub_environments[i].reset(seed, self._num_steps))

    def _recover(self, i: int, action: Any, error: BaseException) -> None:
        """Raise the error; or begin a new episode in this step, which drops the step's rows of this environment."""
        sub_env = self.sub_environments[i]
        episode_steps = self._num_steps - self._started_at[i]
        when = f"in step {episode_steps} of its episode, {self._num_steps} after the first reset"
        rows = sub_env.recover(f"{when}, action {describe_action(action)}", error, episode_steps)
        columns = self._columns[i]
        self._rewards[columns], self._terminated[columns], self._truncated[columns] = 0.0, False, False
        self._begin(i, rows)

    def _begin(self, i: int, rows: Any) -> None:
        """Write the first rows of an episode, and count restarts.

        Those of the first reset belong to no step: they are counted when the next episode begins.
        """
        columns = self._columns[i]
        self._rows[columns] = rows
        self._started_at[i] = self._num_steps
        sub_env = self.sub_environments[i]
        times = sub_env.times_restarted - sub_env.restarts_counted
        if times and self._num_steps:
            sub_env.restarts_counted = sub_env.times_restarted
            for column in range(columns.start, columns.stop):
                if self._infos is not None:
                    self._infos.break_off(column)
                self.restarted[column] = self.restarted.get(column, 0) + times

    def _close(self) -> None:
        for sub_env in self.sub_environments:
            sub_env.close()
