"""Ray's actors: samplers for `coarse`, environments for `fine`; and their messages. Loads no torch."""

import os
import pickle
import platform
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import ray
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hybridppo._version import __version__
from hybridppo.environments.base import Environments
from hybridppo.environments.checks import require_same_spaces
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.workers.share import Share, parameters_of
from hybridppo.spaces.state_dependent import noise_row
from hybridppo.system.seeds import seed_globals

Array = NDArray[Any]

Answer = tuple[str, Any, float]
""""done", the result and its seconds; or "error", a message and 0."""


class RemoteActor:
    """An actor of Ray's with a share of the environments."""

    concurrency_groups: ClassVar[dict[str, int]] = {}
    """Groups of methods that answer at any time, with their numbers of threads; one thread runs all other methods. An
    actor with a group has a method `rows`, which returns its progress."""

    def __init__(self) -> None:
        self._limits = threadpool_limits(1)  # the processes are the parallelism

    def begin(self, setup: bytes, path: list[str], envs: slice, seed: int) -> Answer:
        """Make the environments; the result has the process, the machine and the versions."""

        def make() -> dict[str, Any]:
            # The trainer's folders first, in its order.
            sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
            self._make(cloudpickle.loads(setup), envs, seed)
            return {"pid": os.getpid(), "host": platform.node(), "versions": versions_here()}

        return answered(make)

    def _make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Release the environments."""
        raise NotImplementedError


class RemoteEnvironments(RemoteActor):
    """Environments that are stepped with given actions (`fine` and `environments`)."""

    _environments: Environments | None = None

    def _make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        source, options = source_here(setup["source"], setup["options"].imports), setup["options"]
        made = make_environments(source, envs.stop - envs.start, options, first=envs.start, threads=1)
        self._environments = made
        who = f"environments {envs.start} to {envs.stop - 1}, made in a worker process,"
        require_same_spaces(made, setup["spaces"], who, "those made in the trainer", setup["num_envs"])

    def step(self, actions: bytes) -> bytes:
        """As `Environments.step`, with `restarted`, `absent` and `waiting`; actions and answer are pickled."""

        def step() -> Any:
            assert self._environments is not None  # `begin` was before
            parts = self._environments.step(pickle.loads(actions))
            made = self._environments
            return (*parts, made.restarted, made.absent, made.waiting)

        return pickle.dumps(answered(step))

    def call(self, method: str, *arguments: Any) -> Answer:
        """Call another method of `Environments`; returns its result, and the text of an `EnvStateError`."""

        def act() -> Any:
            if method == "reset":
                seed_globals(arguments[0], "stepping environments")
            try:
                return getattr(self._environments, method)(*arguments), None
            except EnvStateError as error:
                return None, str(error)

        return answered(act)

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._environments is not None:
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


class RemoteSampler(RemoteActor):
    """Environments with an actor, which fill parts of rollouts (`coarse`)."""

    concurrency_groups: ClassVar[dict[str, int]] = {"control": 1}

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._attempt = self._stopped = 0
        self._flag = bytearray(1)
        self._newest: tuple[int, Array] | None = None
        """The version and the parameters, in one array."""
        self._share: Share | None = None

    def _make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        self._share = Share(setup, envs, seed)
        self._memory: MemoryLayout | None = setup["memory"]
        self._distribution, self._shapes = setup["distribution"], setup["shapes"]
        width = self._share.columns.stop - self._share.columns.start
        arrays = {
            name: np.zeros((shape[0], width, *shape[2:]), dtype) for name, (shape, dtype) in setup["layout"].items()
        }
        self._buffer = RolloutBuffer(**arrays)

    def fill(self, message: bytes) -> bytes:
        """Fill a part; the answer is the task, what was filled, and the new rows of each array, pickled.

        Args:
            message: pickled: the task; the parameters in one array, or None for the newest published ones; the noise
                of the rows from `task.first` on, or None for the noise from before.
        """
        task, parameters, noise = pickle.loads(message)

        def act() -> Any:
            assert self._share is not None  # `begin` was before
            if parameters is not None:
                self.publish(task.version, parameters)
            if self._newest is None or self._newest[0] < task.version:
                raise EnvError(f"it was asked to act with parameters of version {task.version}, and does not have them")
            version, flat = self._newest
            if noise is not None:
                self._buffer.noise[noise_row(self._distribution, task.first) :] = noise
            with self._lock:
                self._attempt, self._flag = task.attempt, bytearray(1)
                self._flag[0] = task.end is None and task.attempt <= self._stopped
            acting = parameters_of(flat, self._shapes)
            filled = self._share.fill(self._buffer, acting, version, self._flag, task.first, task.end)
            rows = {
                name: array[new_rows(name, task.first, filled.rows, self._memory)]
                for name, array in self._buffer.arrays.items()
                if name != "noise"
            }
            return task, filled, rows

        return pickle.dumps(answered(act, lambda: self._share.stepper.seconds if self._share is not None else 0.0))

    def ask(self, kind: str, value: Any) -> Answer:
        """As `Share.answer`."""
        return answered(lambda: self._share.answer(kind, value) if self._share is not None else None)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def publish(self, version: int, parameters: Array) -> None:
        """Act with these parameters from the next part on, unless there are newer ones."""
        with self._lock:
            if self._newest is None or self._newest[0] < version:
                self._newest = version, np.array(parameters)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def rows(self) -> int:
        """The number of rows of the rollout; -1 before `begin`."""
        return -1 if self._share is None else int(self._share.stepper.heartbeat[0])

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def stop(self, attempt: int) -> None:
        """Stop this attempt before its next step, or when it begins."""
        with self._lock:
            self._stopped = max(self._stopped, attempt)
            if self._attempt <= attempt:
                self._flag[0] = 1

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._share is not None:
            self._share.close()


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


def answered(act: Callable[[], Any], seconds: Callable[[], float] = lambda: 0.0) -> Answer:
    """The result of a call, or the text of its error."""
    try:
        value = act()
    except EnvError as error:  # its message needs no traceback
        return "error", str(error), 0.0
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}", 0.0
    return "done", value, seconds()
