"""Environments whose true returns are known, for the tests to import."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

Script = Sequence[tuple[int, str]]
"""Length and end of each episode: "terminated", "truncated" or "both". After the last, the first comes again."""

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


def newest(name: str) -> str:
    """The id of the newest version of one of gymnasium's environments, which depends on the release."""
    return max((spec for spec in gym.registry.values() if spec.name == name), key=lambda spec: spec.version or 0).id


def scripted_reward(episode: int, step: int) -> float:
    return float(10 * episode + step + 1)


def scripted_end(script: Script, episode: int, step: int) -> tuple[bool, bool]:
    """Whether step `step` of an episode terminates, and whether it truncates."""
    length, end = script[episode % len(script)]
    is_last = step + 1 == length
    return is_last and end in ("terminated", "both"), is_last and end in ("truncated", "both")


def short_pendulum() -> gym.Env[Any, Any]:
    """Episodes of 20 steps, so that evaluations are short."""
    return gym.make("Pendulum-v1", max_episode_steps=20)


class ScriptedEnv(gym.Env[Any, Any]):
    """Episodes that no action changes. Observations are (episode, steps done), each seen only once.

    `actions` holds every action that `step` was called with.
    """

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, script: Script, action_space: gym.Space[Any] | None = None) -> None:
        self.action_space = Discrete(2) if action_space is None else action_space
        self.actions: list[Any] = []
        self._script = script
        self._episode, self._step = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        reward = scripted_reward(self._episode, self._step)
        terminated, truncated = scripted_end(self._script, self._episode, self._step)
        self._step += 1
        return self._observation(), reward, terminated, truncated, {}

    def _observation(self) -> np.ndarray:
        return np.array((self._episode, self._step), dtype=np.float32)


@dataclass(frozen=True)
class ScriptedRow:
    """What one row of a rollout must hold, for one environment."""

    observation: tuple[int, int]
    following: tuple[int, int]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    is_step: bool = True


def scripted_rows(script: Script, mode: AutoresetMode) -> Iterator[ScriptedRow]:
    """The rows of a `ScriptedEnv`, without end."""
    for episode in count():
        length = script[episode % len(script)][0]
        for step in range(length):
            terminated, truncated = scripted_end(script, episode, step)
            reward = scripted_reward(episode, step)
            yield ScriptedRow((episode, step), (episode, step + 1), reward, terminated, truncated)
        if mode is AutoresetMode.NEXT_STEP:
            yield ScriptedRow((episode, length), (episode + 1, 0), is_step=False)


def scripted_return(script: Script, episode: int) -> float:
    """The undiscounted return of an episode."""
    return sum(scripted_reward(episode, step) for step in range(script[episode % len(script)][0]))


def scripted_vector(scripts: Sequence[Script], mode: AutoresetMode, **options: Any) -> SyncVectorEnv:
    """An environment for each script."""
    return SyncVectorEnv([partial(ScriptedEnv, script, **options) for script in scripts], autoreset_mode=mode)


class UndeclaredVector(VectorEnv[Any, Any, Any]):
    """A vector of scripted environments that resets on the next step, and does not declare it."""

    metadata: dict[str, Any] = {}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.num_envs = len(scripts)
        self.single_observation_space, self.single_action_space = ScriptedEnv.observation_space, Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.times_closed = 0
        self._rows = [scripted_rows(script, AutoresetMode.NEXT_STEP) for script in scripts]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros((self.num_envs, 2), dtype=np.float32), {}

    def step(self, actions: Any) -> Any:
        rows = [next(rows) for rows in self._rows]
        return (
            np.array([row.following for row in rows], dtype=np.float32),
            np.array([row.reward for row in rows]),
            np.array([row.terminated for row in rows]),
            np.array([row.truncated for row in rows]),
            {},
        )

    def close_extras(self, **kwargs: Any) -> None:
        self.times_closed += 1


class IdentityDiscrete(gym.Env[Any, Any]):
    """Reward 1 if the action is the observed number, else 0; the best return is `length`."""

    def __init__(self, n: int = 4, length: int = 8) -> None:
        self.observation_space = self.action_space = Discrete(n)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step, self._wanted = 0, self._draw()
        return self._wanted, {}

    def step(self, action: Any) -> Any:
        reward = self._reward(action)
        self._step, self._wanted = self._step + 1, self._draw()
        return self._wanted, reward, False, self._step == self._length, {}

    def _reward(self, action: Any) -> float:
        return float(action == self._wanted)

    def _draw(self) -> Any:
        return int(self.np_random.integers(self.action_space.n))


class IdentityBox(IdentityDiscrete):
    """Reward `-(action - observation)^2`; the best return is 0."""

    def __init__(self, length: int = 8) -> None:
        super().__init__(length=length)
        self.observation_space = self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def _reward(self, action: Any) -> float:
        return -float(np.square(action - self._wanted).sum())

    def _draw(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, (1,)).astype(np.float32)


class Catch(gym.Env[Any, Any]):
    """A ball falls, and a paddle as wide as the ball must be below it at the end: reward 1 if it is, else 0.

    Observations are images `[rows, columns, 1]`, or `[1, rows, columns]`.
    """

    def __init__(self, rows: int = 6, columns: int = 6, pixels: int = 1, channels_first: bool = False) -> None:
        sides = (rows * pixels, columns * pixels)
        self.observation_space = Box(0, 255, (1, *sides) if channels_first else (*sides, 1), np.uint8)
        self.action_space = Discrete(3, start=-1)
        self._rows, self._columns, self._pixels = rows, columns, pixels

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._row = 0
        self._ball, self._paddle = self.np_random.integers(self._columns, size=2).tolist()
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._row += 1
        self._paddle = min(max(self._paddle + int(action), 0), self._columns - 1)
        has_ended = self._row == self._rows - 1
        return self._observation(), float(has_ended and self._ball == self._paddle), has_ended, False, {}

    def _observation(self) -> np.ndarray:
        image = np.zeros((self._rows, self._columns), np.uint8)
        image[-1, self._paddle] = 128
        image[self._row, self._ball] = 255
        return image.repeat(self._pixels, 0).repeat(self._pixels, 1).reshape(self.observation_space.shape)


class HighestAllowed(gym.Env[Any, Any]):
    """Reward 1 for the highest of the allowed actions, else 0; the best return is `length`.

    Others are allowed at every step, an action that is not is an error, and none is allowed when the episode has ended.
    Observations say nothing.
    """

    def __init__(self, n: int = 5, length: int = 8, observation_space: gym.Space[Any] | None = None) -> None:
        self.observation_space = Discrete(3, start=1) if observation_space is None else observation_space
        self.action_space = Discrete(n, start=-1)
        self._length, self._step = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {"action_mask": self._draw()}

    def step(self, action: Any) -> Any:
        choice = int(action) + 1
        if not self._mask[choice]:
            raise ValueError(f"action {action} is not allowed")
        reward = float(choice == np.flatnonzero(self._mask).max())
        self._step += 1
        return self._observation(), reward, False, self._step == self._length, {"action_mask": self._draw()}

    def _observation(self) -> Any:
        return 2 if isinstance(self.observation_space, Discrete) else np.full(self.observation_space.shape, 0.5)

    def _draw(self) -> np.ndarray:
        self._mask = self.np_random.integers(0, 2, self.action_space.n, dtype=np.int8)
        self._mask[self.np_random.integers(self.action_space.n)] = 1
        return self._mask if self._step < self._length else np.zeros_like(self._mask)


class FaultyEnv(gym.Env[Any, Any]):
    """Episodes of `length` steps without mistakes, except for those that `fault` makes.

    `fault` is called with the environment and what `reset` or `step` would return, and returns it, or something else,
    or raises. `env.seed` is what the environment was last reset with, `env.steps` counts the steps of its life, and
    `env.episode_steps` those of its episode, both from 1 on; 0 in a reset. It lives in boxes, unless told otherwise.
    """

    def __init__(
        self,
        fault: Callable[["FaultyEnv", Any], Any],
        length: int = 10,
        observation_space: gym.Space[Any] | None = None,
        good: Any = (0.25, -0.25),
    ) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32) if observation_space is None else observation_space
        self.action_space = Discrete(2)
        self.seed: int | None = None
        self.steps = self.episode_steps = 0
        self._fault, self._length, self._good = fault, length, good

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed = seed if seed is not None else self.seed
        self.episode_steps = 0
        return self._fault(self, (self._observation(), {}))

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.episode_steps += 1
        return self._fault(self, (self._observation(), 1.0, False, self.episode_steps == self._length, {}))

    def _observation(self) -> Any:
        return np.array(self._good, np.float32) if isinstance(self._good, tuple) else self._good


class FailingEnv(gym.Env[Any, Any]):
    """Calls `fail` at its `after`-th step."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(2)

    def __init__(self, fail: Any, after: int = 20) -> None:
        self.fail, self.steps_left = fail, after

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps_left -= 1
        if self.steps_left == 0:
            self.fail()
        return np.zeros(2, np.float32), 1.0, False, False, {}


def raise_an_error() -> None:
    raise ValueError("the motor is stuck")


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_forever() -> None:
    signal.pause()


class TMaze(gym.Env[Any, Any]):
    """A corridor: a sign at its start says which way to turn at its end. Reward 1 for this way, else -1.

    Observations are the sign (0 but at the start) and whether this is the junction. What cannot remember gets 0.
    """

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length: int = 10) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._way, self._step = int(self.np_random.integers(2)), 0
        return np.array((2.0 * self._way - 1.0, 0.0), np.float32), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        at_junction = self._step > self._length
        reward = (1.0 if action == self._way else -1.0) if at_junction else 0.0
        return np.array((0.0, float(self._step == self._length)), np.float32), reward, at_junction, False, {}


class DelayedCopy(gym.Env[Any, Any]):
    """A symbol that must be repeated after some blank steps, and not before: reward 1 if it is, else 0."""

    def __init__(self, length: int = 10, symbols: int = 4) -> None:
        self.observation_space, self.action_space = Discrete(symbols + 2), Discrete(symbols)
        self._length, self._symbols = length, symbols

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._symbol, self._step = int(self.np_random.integers(self._symbols)), 0
        return self._symbol, {}

    def step(self, action: Any) -> Any:
        self._step += 1
        is_over = self._step > self._length
        asks = self._symbols + int(self._step == self._length)
        return asks, float(is_over and action == self._symbol), is_over, False, {}
