"""A worker that Ray has started, on this machine or another: `Share`, with rollouts that travel. Free of torch."""

import os
import platform
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import ray
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hybridppo._version import __version__
from hybridppo.distribution.messages import packed, unpacked
from hybridppo.errors import EnvError
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.workers.share import Share, parameters_of
from hybridppo.spaces.state_dependent import noise_row

Array = NDArray[Any]

Answer = tuple[str, Any, float]
""""done", what came of it, and the seconds it took; or "error", what is to be said of it, and nothing."""


@dataclass(frozen=True)
class Fill:
    """A part of a rollout that a worker is to fill; it comes back with the part."""

    rollout: int
    """Which one, counted by the trainer."""
    attempt: int
    """Which of all the parts that it ever asked for."""
    version: int
    """Of the parameters that act."""
    first: int
    """Row to begin with."""
    end: int | None
    """Row to end before; None for all of the rollout, unless told to stop."""


class RemoteShare:
    """What Ray makes an actor of. `rows` and `stop` are answered while it fills (`CONTROL`)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempt = self._stopped = 0
        self._flag = bytearray(1)
        self._version: int | None = None
        self._parameters: list[Array] = []
        self._share: Share | None = None
        self._limits = threadpool_limits(1)  # the processes are the parallelism

    def begin(self, setup: bytes, path: list[str], envs: slice, seed: int) -> Answer:
        """Make the environments; which process of which machine this is, and its versions."""

        def make() -> dict[str, Any]:
            import_from(path)
            told = cloudpickle.loads(setup)
            self._share = share = Share(told, envs, seed)
            self._memory: MemoryLayout | None = told["memory"]
            self._distribution, self._shapes = told["distribution"], told["shapes"]
            width = share.columns.stop - share.columns.start
            self._buffer = RolloutBuffer(
                **{
                    name: np.zeros((shape[0], width, *shape[2:]), dtype)
                    for name, (shape, dtype) in told["layout"].items()
                }
            )
            return {"pid": os.getpid(), "host": platform.node(), "versions": versions_here()}

        return answered(make)

    def fill(self, task: Fill, parameters: Array | None, noise: Array | None) -> Answer:
        """Fill a part: how many rows there are then, the final observations, and the new rows of each array.

        Args:
            task: which part.
            parameters: all in one array; None where they are those of before.
            noise: of the rows from `task.first` on; likewise.
        """

        def act() -> Any:
            assert self._share is not None  # `begin` was before
            if parameters is not None:
                self._parameters = parameters_of(np.array(parameters), self._shapes)
                self._version = task.version
            if self._version != task.version:
                raise EnvError(f"it was to act by parameters of version {task.version}, and has {self._version}")
            if noise is not None:
                self._buffer.noise[noise_row(self._distribution, task.first) :] = noise
            with self._lock:
                self._attempt, self._flag = task.attempt, bytearray(1)
                self._flag[0] = task.end is None and task.attempt <= self._stopped
            filled, finals = self._share.fill(self._buffer, self._parameters, self._flag, task.first, task.end)
            rows = {
                name: array[new_rows(name, task.first, filled, self._memory)]
                for name, array in self._buffer.arrays.items()
                if name != "noise"
            }
            return task, filled, finals, rows

        return answered(act, lambda: self._share.stepper.seconds if self._share is not None else 0.0)

    def fill_as(self, message: Any, parameters: Array | None) -> Any:
        """As `fill`, with all that it takes in a message, but for parameters that are too large; packed likewise."""
        task, small, noise = unpacked(message)
        answer = self.fill(task, parameters if small is None else small, noise)
        arrays = answer[1][3].values() if answer[0] == "done" else ()
        return packed(answer, sum(array.nbytes for array in arrays))

    def ask(self, kind: str, value: Any) -> Answer:
        """As `Share.answer`."""
        assert self._share is not None
        return answered(lambda: self._share.answer(kind, value) if self._share is not None else None)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def rows(self) -> int:
        """How many rows the rollout has: whether it goes on."""
        return -1 if self._share is None else int(self._share.stepper.heartbeat[0])

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def stop(self, attempt: int) -> None:
        """Stop before the next step, if it is this attempt that goes on; or when it begins."""
        with self._lock:
            self._stopped = max(self._stopped, attempt)
            if self._attempt <= attempt:
                self._flag[0] = 1

    def close(self) -> None:
        """Release the environments."""
        if self._share is not None:
            self._share.close()


CONTROL = {"control": 1}
"""Ray's name for what is answered meanwhile, and on how many threads; all else is done by one thread, in order."""


def new_rows(name: str, first: int, filled: int, memory: MemoryLayout | None) -> slice:
    """The rows of an array of a rollout that are new where it was filled from `first` to `filled`."""
    if name == "observations":
        return slice(first, filled + 1)
    if name == "history":  # which is written with the first row
        return slice(None) if first == 0 else slice(0)
    if name == "states":
        assert memory is not None
        return slice(memory.num_sequences(first), memory.num_sequences(filled))
    return slice(first, filled)


def path_here() -> list[str]:
    """The folders that this process imports from, as another finds them."""
    return [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]


def import_from(path: list[str]) -> None:
    """Import from the trainer's folders first, in its order; from those of Ray's process after."""
    sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]


def versions_here() -> dict[str, str]:
    """Of what must be the same everywhere."""
    return {"hybridppo": __version__, "numpy": np.__version__}


def answered(act: Callable[[], Any], seconds: Callable[[], float] = lambda: 0.0) -> Answer:
    """What comes of it, or what is to be said of what it raises."""
    try:
        value = act()
    except EnvError as error:  # which says all there is to say
        return "error", str(error), 0.0
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}", 0.0
    return "done", value, seconds()
