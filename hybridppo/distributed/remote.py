"""The programs of Ray actors: samplers for `coarse`, environments for `fine`; and their messages. Loads no torch."""

import os
import pickle
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import ray
from threadpoolctl import threadpool_limits

from hybridppo._version import __version__
from hybridppo.environments.checks import require_same_spaces
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.processes import text_of_failure
from hybridppo.runners.worker import Worker, parameters_of
from hybridppo.spaces.arrays import Array
from hybridppo.system.seeds import seed_globals

Answer = tuple[str, Any, float]
""""done", the result and its seconds; or "error", a message and 0."""


class Servant:
    """The work of an actor with its share of the environments; made from a setup, the environments and a seed."""

    seconds = 0.0
    """The seconds of the last answer."""

    def answer(self, kind: str, value: Any) -> Any:
        """The answer to a message."""
        raise NotImplementedError

    def tell(self, kind: str, value: Any) -> None:
        """Receive a message without an answer, also while another is answered."""

    def rows(self) -> int:
        """The number of rows of the rollout; -1 if there are none."""
        return -1

    def close(self) -> None:
        """Release the environments."""
        raise NotImplementedError


class RemoteActor:
    """A Ray actor with a servant. A second thread runs `tell` and `rows`."""

    def __init__(self) -> None:
        self._limits = threadpool_limits(1)  # the processes are the parallelism
        self._servant: Servant | None = None

    def begin(self, setup: bytes, path: list[str], envs: slice, seed: int) -> Answer:
        """Make the servant; return the process, the machine and the versions."""

        def make() -> dict[str, Any]:
            # The trainer's folders first, in its order.
            sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
            found = cloudpickle.loads(setup)
            self._servant = found["kind of servant"](found, envs, seed)
            return {"pid": os.getpid(), "host": platform.node(), "versions": versions_here()}

        return answered(make)

    def answer(self, message: Any) -> Any:
        """The servant's answer to a kind and a value; pickled, if they are."""
        servant, is_pickled = self._servant, isinstance(message, bytes)
        assert servant is not None  # `begin` was before
        found = answered(lambda: servant.answer(*(pickle.loads(message) if is_pickled else message)), servant)
        return pickle.dumps(found) if is_pickled else found

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def tell(self, kind: str, value: Any) -> None:
        """As `Servant.tell`."""
        if self._servant is not None:
            self._servant.tell(kind, value)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def rows(self) -> int:
        """As `Servant.rows`; -1 before `begin`."""
        return -1 if self._servant is None else self._servant.rows()

    def close(self) -> None:
        """As `Servant.close`."""
        if self._servant is not None:
            self._servant.close()


class RemoteEnvironments(Servant):
    """Environments that are stepped with given actions (`fine` and `environments`)."""

    def __init__(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        source, options = source_here(setup["source"], setup["options"].imports), setup["options"]
        made = make_environments(source, envs.stop - envs.start, options, first=envs.start, threads=1)
        self._environments = made
        who = f"environments {envs.start} to {envs.stop - 1}, made in a worker process,"
        require_same_spaces(made, setup["spaces"], who, "those made in the trainer", setup["num_envs"])

    def answer(self, kind: str, value: Any) -> Any:
        """Answer "step" with the result of `Environments.step`, and `restarted`, `absent` and `waiting`.

        Answer the name of another method, with its arguments in `value`, with its result and the text of an
        `EnvStateError`.
        """
        made = self._environments
        if kind == "step":
            return (*made.step(value), made.restarted, made.absent, made.waiting)
        if kind == "reset":
            seed_globals(value[0], "stepping environments")
        try:
            return getattr(made, kind)(*value), None
        except EnvStateError as error:
            return None, str(error)

    def close(self) -> None:  # noqa: D102 - as in the base
        self._environments.close()


@dataclass(frozen=True)
class Fill:
    """A part of a rollout for a sampler to fill. The answer repeats it."""

    attempt: int
    """The number of this part among all parts that were asked for."""
    version: int
    """The least version of the parameters that act."""
    first: int
    """The first row."""
    end: int | None
    """The row after the last; None for the whole rollout, unless it is stopped."""


class RemoteSampler(Servant):
    """Environments with an actor, which fill parts of rollouts (`coarse`)."""

    def __init__(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        self._lock = threading.Lock()
        self._attempt = self._stopped = 0
        self._flag = bytearray(1)
        self._newest: tuple[int, Array] | None = None
        """The version and the parameters, in one array."""
        self._worker = Worker(setup, envs, seed)
        self._memory: MemoryLayout | None = setup["memory"]
        self._distribution, self._shapes = setup["distribution"], setup["shapes"]
        width = self._worker.columns.stop - self._worker.columns.start
        arrays = {
            name: np.zeros((shape[0], width, *shape[2:]), dtype) for name, (shape, dtype) in setup["layout"].items()
        }
        self._buffer = RolloutBuffer(**arrays)

    def answer(self, kind: str, value: Any) -> Any:
        """Answer "fill" with the task, a `Filled`, and the new rows of each array; others as `Worker.answer`.

        Args:
            kind: "fill", or as in `Worker.answer`.
            value: the task; the parameters in one array, or None for the newest published ones; the noise of the rows
                from `task.first` on, or None for the noise from before.
        """
        if kind != "fill":
            self.seconds = 0.0
            return self._worker.answer(kind, value)
        task, parameters, noise = value
        if parameters is not None:
            self._publish(task.version, parameters)
        if self._newest is None or self._newest[0] < task.version:
            raise EnvError(f"it was asked to act with parameters of version {task.version}, and does not have them")
        version, flat = self._newest
        if noise is not None:
            self._buffer.noise[self._distribution.noise_row(task.first) :] = noise
        with self._lock:
            self._attempt, self._flag = task.attempt, bytearray(1)
            self._flag[0] = task.end is None and task.attempt <= self._stopped
        acting = parameters_of(flat, self._shapes)
        filled = self._worker.fill(self._buffer, acting, version, self._flag, task.first, task.end)
        self.seconds = self._worker.stepper.seconds
        rows = {
            name: array[new_rows(name, task.first, filled.rows, self._memory)]
            for name, array in self._buffer.arrays.items()
            if name != "noise"
        }
        return task, filled, rows

    def tell(self, kind: str, value: Any) -> None:
        """Act with newer parameters from the next part on; or stop an attempt before its first or next step."""
        if kind == "publish":
            self._publish(*value)
            return
        with self._lock:
            self._stopped = max(self._stopped, value)
            if self._attempt <= value:
                self._flag[0] = 1

    def _publish(self, version: int, parameters: Array) -> None:
        with self._lock:
            if self._newest is None or self._newest[0] < version:
                self._newest = version, np.array(parameters)

    def rows(self) -> int:  # noqa: D102 - as in the base
        return int(self._worker.stepper.heartbeat[0])

    def close(self) -> None:  # noqa: D102 - as in the base
        self._worker.close()


def new_rows(name: str, first: int, filled: int, memory: MemoryLayout | None) -> slice:
    """The new rows of a rollout's array after it was filled from row `first` to `filled`."""
    if name == "observations":
        return slice(first, filled + 1)
    if name == "history":  # it is written with the first row
        return slice(None) if first == 0 else slice(0)
    if name == "states":
        assert memory is not None
        return slice(memory.num_sequences(first), memory.num_sequences(filled))
    return slice(first, filled)


def versions_here() -> dict[str, str]:
    """Versions that must be equal on all machines."""
    return {"hybridppo": __version__, "numpy": np.__version__}


def answered(act: Callable[[], Any], servant: Servant | None = None) -> Answer:
    """The result of a call with the seconds of a servant's answer, or the text of its error."""
    try:
        value = act()
    except Exception as error:
        return "error", text_of_failure(error), 0.0
    return "done", value, servant.seconds if servant is not None else 0.0
