"""Ray for the tests: one small cluster on this machine, and a check for its remains."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import psutil

SMALL: dict[str, Any] = {
    "address": "local",  # whatever other tests have started
    "num_cpus": 6, "include_dashboard": False, "object_store_memory": 200 * 2**20, "logging_level": "ERROR",
    "log_to_driver": False,
}  # fmt: skip


def processes_of_ray(of: int | None = None) -> list[psutil.Process]:
    """Processes below another, by default below this one."""
    found = []
    for child in psutil.Process(of).children(recursive=True):
        try:
            if "ray" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def small_cluster() -> Iterator[Any]:
    """One that this process has joined by itself; what Ray would do at SIGTERM, which is put aside."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    ray.init(**SMALL)
    rays = signal.signal(signal.SIGTERM, before)
    try:
        yield rays
    finally:
        children = processes_of_ray()
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []


class Failing(gym.Wrapper):  # type: ignore[type-arg]
    """CartPole that does something else in its 50th step, once, in any process other than `here`."""

    def __init__(self, here: int, what: Callable[[], object], mark: str) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._here, self._what, self._mark, self._steps = here, what, mark, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 50 and os.getpid() != self._here and self._is_first():
            self._what()
        return super().step(action)

    def _is_first(self) -> bool:
        try:
            with open(self._mark, "x") as file:  # made in one go: two processes may come here at once
                file.write(str(os.getpid()))
        except FileExistsError:
            return False
        return True


def failing(what: Callable[[], object], mark: object) -> Callable[[], "gym.Env[Any, Any]"]:
    """Makes such environments; they write their process's number to `mark` before they do it."""
    here, path = os.getpid(), str(mark)
    return lambda: Failing(here, what, path)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def silent() -> None:
    time.sleep(600.0)


def stopped() -> None:
    """As if the machine hangs or its network is down: nothing of the process answers any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def raising() -> None:
    raise ValueError("no more of this")
