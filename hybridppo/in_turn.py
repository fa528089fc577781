"""The library's own copies of an environment, stepped in turn in this process."""

import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.envs import Environments, Step
from hybridppo.errors import EnvError

Array = NDArray[Any]


class InTurnEnvironments(Environments):
    """Copies of an environment, each stepped, and reset when its episode has ended, before `step` returns.

    Every row is a step. What `step` returns holds copies of what the environments gave; the next step overwrites
    it, but for final observations.

    Args:
        make: makes one environment.
        num_envs: how many.
        first: the number of the first among those of the run, for messages.

    Raises:
        EnvError: where the copies' spaces differ.
    """

    def __init__(self, make: Callable[[], "gym.Env[Any, Any]"], num_envs: int, first: int = 0) -> None:
        envs = [make() for _ in range(num_envs)]
        space, action_space = envs[0].observation_space, envs[0].action_space
        for i, env in enumerate(envs):
            for name, ours, theirs in (
                ("observation", env.observation_space, space),
                ("action", env.action_space, action_space),
            ):
                if ours != theirs:
                    raise EnvError(
                        f"the {num_envs} environments differ: the {name} space of environment {first} is {theirs}, "
                        f"that of environment {first + i} is {ours}: the function must make copies of one environment"
                    )
        super().__init__(num_envs, space, action_space)
        self.envs: list[gym.Env[Any, Any]] = envs
        self._first = first
        is_box = isinstance(space, gym.spaces.Box)
        shape = (num_envs, *(space.shape or ()))
        self._rows = np.zeros(shape, np.float32 if is_box else np.int64)
        self._shape = space.shape if is_box else None
        self._rewards = np.zeros(num_envs)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._seeds = [0] * num_envs
        self._num_steps = 0
        self._started_at = [0] * num_envs  # what `_num_steps` was when the episode began

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seeds = [seed + i for i in range(self.num_envs)]
        self._num_steps = 0
        for i in range(self.num_envs):
            self._reset(i, seed=self._seeds[i])
        return self.encode(self._rows).copy()

    def step(self, actions: Array) -> Step:
        """Final observations are what `step` of the environment returned."""
        rows, rewards, terminated, truncated = self._rows, self._rewards, self._terminated, self._truncated
        shape = self._shape
        self._num_steps += 1
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            try:
                observation, rewards[i], terminated[i], truncated[i], _ = env.step(action)
                if shape is not None and observation.shape != shape:
                    raise EnvError(f"its observation has shape {observation.shape}, that of its space is {shape}")
                rows[i] = observation
            except Exception as error:
                raise self._failure(i, f"step {self._step_of(i)} of its episode, action {action}", error) from error
        finals_of: list[int] = []
        finals: list[Array] = []
        if terminated.any() or truncated.any():
            for i in np.flatnonzero(terminated | truncated).tolist():
                if not terminated[i]:
                    finals_of.append(i)
                    finals.append(self.encode(rows[i : i + 1])[0].copy())
                self._reset(i)
        return self.encode(rows), rewards, terminated, truncated, finals_of, finals

    def _reset(self, i: int, seed: int | None = None) -> None:
        self._started_at[i] = self._num_steps
        try:
            self._rows[i], _ = self.envs[i].reset(seed=seed)
        except Exception as error:
            raise self._failure(i, "its reset", error) from error

    def _step_of(self, i: int) -> int:
        return self._num_steps - self._started_at[i]

    def _failure(self, i: int, when: str, error: Exception) -> EnvError:
        return failure(self._first + i, self._seeds[i], when, self._num_steps, error)

    def _close(self) -> None:
        for env in self.envs:
            env.close()


def failure(env: int, seed: int, when: str, num_steps: int, error: Exception) -> EnvError:
    """What is said of an environment whose `step` or `reset` failed `num_steps` after it was made."""
    # From the environment's own frames on, where there are any.
    frames = error.__traceback__ and error.__traceback__.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return EnvError(
        f"environment {env} (seed {seed}) failed in {when}, {num_steps} steps after it was made: "
        f"{type(error).__name__}: {error}\n{trace}"
    )
