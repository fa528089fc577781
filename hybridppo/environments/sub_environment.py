"""Single environments of a vector: errors name them, and they can be restarted."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.environments.base import Environments, EnvState, closed, warned_of_closing
from hybridppo.environments.checks import as_flag, checked_step, describe_action, describe_error, is_plain
from hybridppo.environments.options import OnEnvError
from hybridppo.environments.steering import Steering, latest
from hybridppo.errors import ENV_FAILURES, BadValueError, EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import reshaped
from hybridppo.spaces.observations import ObservationEncoder
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
        gives_rows: whether observations of any space but a `Box` are returned as encoded rows.
    """

    def __init__(
        self,
        make: Callable[[], "gym.Env[Any, Any]"],
        index: int,
        on_error: OnEnvError = "raise",
        *,
        gives_rows: bool = False,
    ) -> None:
        self.env = make()
        self.index = index
        self._encode = ObservationEncoder(self.env.observation_space)
        self._gives_rows = gives_rows and not self._encode.is_array
        self._row = self._encode.row_maker()
        self.seed: int | None = None
        """The seed of its last seeded reset."""
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
            return self._reset(seed)
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

    def close(self) -> None:
        """Close the environment; a failure is only a warning."""
        with warned_of_closing(f"environment {self.index} (seed {self.seed})"):
            self.env.close()
        self.step = closed

    def _restart(self) -> Any:
        self.times_restarted += 1
        spaces = self.env.observation_space, self.env.action_space
        self.close()
        self.env = self._make()
        for steering in self.steering:
            steering.apply(self.env)
        if (self.env.observation_space, self.env.action_space) != spaces:
            raise BadValueError(
                f"its spaces are {self.env.observation_space} and {self.env.action_space}, not {spaces}"
            )
        self._is_checked, self.step = False, self._first_step
        # The old seed might lead to the same failure. The new seed follows from the old one alone, so that an episode
        # that is sampled again after a resume is the same.
        self.seed = int(np.random.SeedSequence([self.seed or 0, 1]).generate_state(1)[0] >> 1)
        return self._reset(self.seed)

    def _reset(self, seed: int | None) -> Any:
        result = self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError("its reset did not return two values, as gymnasium.Env.reset: observation, info")
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

    A subclass makes the arrays of a step: `_rows`, `_rewards`, `_terminated` and `_truncated`.

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

    def __init__(
        self,
        sub_environments: list[SubEnvironment],
        columns: int,
        observation_space: "gym.Space[Any]",
        action_space: "gym.Space[Any]",
    ) -> None:
        first = sub_environments[0].index
        super().__init__(len(sub_environments) * columns, observation_space, action_space, first)
        self.sub_environments = sub_environments
        self._columns = [slice(i * columns, (i + 1) * columns) for i in range(len(sub_environments))]
        self._num_steps = 0
        self.episode_seeds: Iterator[int] | None = None
        """The seeds of the next episodes, if each is to have its own."""
        self._started_at = [0] * len(sub_environments)
        """`_num_steps` at the start of each environment's episode."""

    def state(self) -> list[EnvState]:
        """As in the base, with the data of each `SubEnvironment`."""
        return [
            {**state, "sub_environment": sub_env.state(), "episode_steps": self._num_steps - started_at}
            for state, sub_env, started_at in zip(super().state(), self.sub_environments, self._started_at, strict=True)
        ]

    def load_state(self, states: list[EnvState]) -> None:  # noqa: D102 - as in the base
        super().load_state(states)
        for sub_env, state in zip(self.sub_environments, states, strict=True):
            sub_env.load_state(state["sub_environment"])
        self._started_at = [self._num_steps - whole(state, "episode_steps") for state in states]

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
