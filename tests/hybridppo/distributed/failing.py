"""Environments and losses that do something else, once, in a process that a test started."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym


class Failing(gym.Wrapper):  # type: ignore[type-arg]
    """CartPole that does something else in one of its steps, in any process other than `here`; with a mark, once."""

    def __init__(self, here: int, what: Callable[[], object], mark: str | None, step: int) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._here, self._what, self._mark, self._left = here, what, mark, step

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left == 0 and os.getpid() != self._here and is_first(self._mark):
            self._what()
        return super().step(action)


def is_first(mark: str | None) -> bool:
    """Whether no process has come here with this mark before; it has this one's number from now on."""
    if mark is None:
        return True
    try:
        with open(mark, "x") as file:  # made in one go: two processes may come here at once
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def failing(what: Callable[[], object], mark: object = None, step: int = 50) -> Callable[[], "gym.Env[Any, Any]"]:
    """Makes such environments; they write their process's number to `mark`, a path, before they do it."""
    here, path = os.getpid(), None if mark is None else str(mark)
    return lambda: Failing(here, what, path, step)


def failing_loss(what: Callable[[], object], number: int, mark: object = None) -> Any:
    """PPO's loss, which does something else at this gradient, as such environments do at a step."""
    from hybridppo.agents.ppo.loss import ppo_loss

    here, path, calls = os.getpid(), None if mark is None else str(mark), list[int]()

    def loss(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == number and os.getpid() != here and is_first(path):
            what()
        return ppo_loss(*arguments)

    return loss


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def silent() -> None:
    threading.Event().wait()


def stopped() -> None:
    """As if the machine hangs or its network is down: nothing of the process answers any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def raising() -> None:
    raise ValueError("no more of this")
