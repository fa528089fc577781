"""Sub-environments in a process each (`vectorization="async"`), with the words that gymnasium's lack.

Gymnasium's own vector of processes raises what a sub-environment raised without saying which one it was, answers a dead
process with a bare `EOFError`, and waits for a hung one for ever.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from hybridppo.environments.sub_environment import SubEnvironment, in_step
from hybridppo.errors import EnvError
from hybridppo.interruption import requests_to_end


class ProcessVector(AsyncVectorEnv):
    """`num_envs` sub-environments, reset on request: a final observation is copied before it can be overwritten.

    Args:
        make: makes one.
        num_envs: how many.
        first: the number of the first among those of the run, for messages.
        timeout: seconds that a step or a reset may take.
    """

    def __init__(
        self, make: "Callable[[], gym.Env[Any, Any]]", num_envs: int, first: int = 0, timeout: float = 300.0
    ) -> None:
        self._first, self._timeout, self._is_broken = first, timeout, False
        makers = [partial(_make, make, first + i, os.getpid()) for i in range(num_envs)]
        super().__init__(makers, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:  # noqa: D102 - as in the base
        return self._call(partial(self.reset_async, seed, options), self.reset_wait)

    def step(self, actions: Any) -> Any:  # noqa: D102 - as in the base
        return self._call(partial(self.step_async, actions), self.step_wait)

    def _call(self, begin: Callable[[], None], wait: Callable[..., Any]) -> Any:
        try:
            begin()
            return wait(timeout=self._timeout)
        except multiprocessing.TimeoutError:
            self._is_broken = True
            hung = [i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll(0)]
            raise EnvError(
                f"no answer from {self._names(hung)} within {self._timeout:g} s: it hangs, or is slower than "
                "worker_timeout (--worker-timeout) allows"
            ) from None
        except (EOFError, ConnectionError) as error:
            self._is_broken = True
            raise EnvError(self._who_died()) from error
        except Exception:
            self._is_broken = True
            raise

    def _who_died(self) -> str:
        ends: list[str] = []
        for i, process in enumerate(self.processes):
            process.join(timeout=0.0 if ends else 1.0)  # a broken pipe comes before the end of the process
            if process.exitcode is not None:
                code = process.exitcode
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                ends.append(f"the process of {self._names([i])} has died: {how}")
        return "; ".join(ends) or "the connection to one of the processes is broken"

    def _names(self, indices: list[int]) -> str:
        return ", ".join(f"environment {self._first + i}" for i in indices)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments; what is broken is killed, for it would not answer."""
        if not self._is_broken:
            super().close_extras(timeout, terminate)
            return
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()


class _Reporting(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that says which one it is when it fails."""

    def __init__(self, sub_env: SubEnvironment) -> None:
        super().__init__(sub_env.env)
        self._sub_env = sub_env
        self._num_steps = self._episode_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._episode_steps = 0
        return self._sub_env.reset(seed, self._num_steps), {}

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        self._episode_steps += 1
        try:
            return self._sub_env.step(action)
        except Exception as error:
            return self._sub_env.recover(in_step(self._episode_steps, self._num_steps, action), error)  # raises


def _make(make: "Callable[[], gym.Env[Any, Any]]", index: int, parent: int) -> "gym.Env[Any, Any]":
    if os.getpid() != parent:
        # These reach the whole process group; what they mean is the trainer's to decide.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in requests_to_end():
            signal.signal(number, _leave_the_first)
    return _Reporting(SubEnvironment(make, index))


def _leave_the_first(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_DFL)  # who asks twice means this very process
