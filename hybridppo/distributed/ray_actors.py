"""What a Ray actor of a worker holds: environments (`fine`, `environments`), or a sampler (`coarse`). Loads no torch.

A `RemoteLearner` learns, too (`parameter_server.py`).
"""

import os
import platform
import sys
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import ray
import ray.exceptions
from threadpoolctl import threadpool_limits

from hybridppo._version import __version__
from hybridppo.errors import EnvStateError
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.filling import NEVER, Filled
from hybridppo.runners.worker import Worker, environments_of, parameters_of
from hybridppo.spaces.arrays import Array
from hybridppo.system.seeds import seed_globals


class RayWorker:
    """A Ray actor with some of the environments. A second thread runs `rows` and `stop`."""

    seconds = 0.0
    """The seconds of the last answer."""
    heartbeat: Any = (-1,)
    """`[1]`, the number of rows of the rollout, which shows that the worker does not hang; -1 if there are none."""

    def __init__(self) -> None:
        self.flag = bytearray(1)
        """Set to 1 to stop what is being filled."""
        self.stops = 0
        """The number of the trainer's last request to stop."""

    def begin(self, setup: bytes, path: list[str], envs: slice, seed: int) -> tuple[str, str]:
        """Make the environments; return the version of the library, and the process for messages."""
        self._limits = threadpool_limits(1)  # the processes are the parallelism
        self.make(unpacked(setup, path), envs, seed)
        return __version__, f", process {os.getpid()} of {platform.node()}"

    def make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        """Make the environments."""
        raise NotImplementedError

    def answer(self, kind: str, value: Any) -> Any:
        """The answer to a message."""
        raise NotImplementedError

    def ask(self, kind: str, value: Any) -> tuple[Any, float]:
        """The answer to a message, and its seconds."""
        return self.answer(kind, value), self.seconds

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def rows(self) -> int:
        """The present `heartbeat`."""
        return int(self.heartbeat[0])

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def stop(self, number: int) -> None:
        """Stop what is being filled before its next step, and what waits to be filled."""
        self.stops = number
        self.flag[0] = 1

    def close(self) -> None:
        """Release the environments."""


def unpacked(setup: bytes, path: list[str]) -> dict[str, Any]:
    """The setup of an actor; the trainer's `folders` come first from now on."""
    sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
    return cloudpickle.loads(setup)


class RemoteEnvironments(RayWorker):
    """Environments that are stepped with given actions (`fine` and `environments`)."""

    def make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:  # noqa: D102 - as in the base
        self._environments = environments_of(setup, envs, seed)

    def answer(self, kind: str, value: Any) -> Any:
        """Answer "step" with the result of `Environments.step`, and `restarted`, `absent` and `waiting`.

        Answer the name of another method, with its arguments in `value`, with its result or its `EnvStateError`.
        """
        made = self._environments
        if kind == "step":
            return (*made.step(value), made.restarted, made.absent, made.waiting)
        if kind == "reset":
            seed_globals(value[0], "stepping environments")
        try:
            return getattr(made, kind)(*value)
        except EnvStateError as error:
            return error

    def close(self) -> None:  # noqa: D102 - as in the base
        self._environments.close()


class FilledRows(NamedTuple):
    """The answer of a sampler to "fill"."""

    turn: int
    """The number of the buffer of the trainer."""
    first: int
    """The first new row."""
    filled: Filled
    arrays: dict[str, Array]
    """The new rows of each array."""


class RemoteSampler(RayWorker):
    """Environments with an actor, which fill parts of rollouts (`coarse`)."""

    def make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:  # noqa: D102 - as in the base
        self._worker = Worker(setup, envs, seed)
        self.heartbeat = self._worker.stepper.heartbeat
        self._memory, self._distribution, self._shapes = setup["memory"], setup["distribution"], setup["shapes"]
        width = self._worker.columns.stop - self._worker.columns.start
        arrays = {
            name: np.zeros((shape[0], width, *shape[2:]), dtype) for name, (shape, dtype) in setup["layout"].items()
        }
        self._buffer = Rollout(**arrays)

    def answer(self, kind: str, value: Any) -> Any:
        """Answer "fill" with `FilledRows`; others with a list of one, as `Worker.answer`.

        Args:
            kind: "fill", or as in `Worker.answer`.
            value: the number of the buffer; the first row, and the row after the last, None for the whole rollout
                unless it is stopped; the number of requests to stop before this message; the version and the parameters
                of the actor in one array; and the noise from the first row on, or None for the noise from before.
        """
        if kind != "fill":
            self.seconds = 0.0
            return [self._worker.answer(kind, arguments) for arguments in value]
        turn, first, end, stops, version, flat, noise = value
        self.flag[0] = 0
        if self.stops > stops:  # since it was asked for, perhaps in this moment
            self.flag[0] = 1
        if noise is not None:
            self._buffer.noise[self._distribution.noise_row(first) :] = noise
        parameters, stop = parameters_of(flat, self._shapes), self.flag if end is None else NEVER
        filled = self._worker.fill(self._buffer, parameters, version, stop, first, end)
        self.seconds = self._worker.stepper.seconds
        return FilledRows(turn, first, filled, self._buffer.rows(filled.rows, self._memory, slice(0), first))

    def close(self) -> None:  # noqa: D102 - as in the base
        self._worker.close()
