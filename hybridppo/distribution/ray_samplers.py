"""Samplers over Ray: parameters go out and rollouts come back, once an iteration."""

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import ray
import ray.exceptions
from numpy.typing import NDArray

from hybridppo.distribution.ray_pool import RayPool, explained
from hybridppo.distribution.remote import MOST_BYTES, Fill, RemoteSampler, new_rows, packed
from hybridppo.errors import DistributionError
from hybridppo.runners.samplers.stepping import Flag
from hybridppo.runners.workers.transport import Work, WorkerLostError
from hybridppo.spaces.state_dependent import noise_row

Array = NDArray[Any]


class RaySamplers(RayPool):
    """As `Transport`.

    Args:
        work: what they are started for.
    """

    def __init__(self, work: Work) -> None:
        setup = {**work.setup, "layout": work.layout}
        super().__init__(RemoteSampler, work.shares, setup, work.options.worker_timeout, "sampler")
        self.buffers = [work.allocate() for _ in range(2)]
        self.stop: Flag = bytearray(1)
        self._columns, self._distribution = work.columns, work.setup["distribution"]
        self._memory = work.setup["memory"]
        self._tasks: dict[int, tuple[Fill, int]] = {}
        """What is being filled, and in which buffer."""
        self._stopped: set[int] = set()
        """The attempts that were asked to stop."""
        self._attempt = self._rollout = 0
        self._version = -1
        self._parameters: Any = None

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the protocol
        self._version, self._rollout = version, self._rollout + 1
        self._stopped.clear()
        flat = np.concatenate([parameter.reshape(-1) for parameter in parameters]).astype(np.float32, copy=False)
        with explained():
            self._parameters = flat if flat.nbytes <= MOST_BYTES else ray.put(flat)

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the protocol
        self._attempt += 1
        task = Fill(self._rollout, self._attempt, self._version, first, end)
        noise = parameters = None
        if end is None:
            row = noise_row(self._distribution, first)
            noise = np.ascontiguousarray(self.buffers[turn].noise[row:, self._columns[worker]])
            parameters = self._parameters
        small, stored = (parameters, None) if isinstance(parameters, np.ndarray) else (None, parameters)
        size = sum(array.nbytes for array in (small, noise) if array is not None)
        self.call(worker, "fill_packed", packed((task, small, noise), size), stored)
        self._tasks[worker] = task, turn

    def ask(self, worker: int, kind: str, value: Any) -> None:  # noqa: D102 - as in the protocol
        self._tasks.pop(worker, None)
        self.call(worker, "ask", kind, value)

    def start(self, worker: int, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._tasks.pop(worker, None)
        super().start(worker, env_seed)

    def _look_after(self, workers: Collection[int]) -> None:
        if self.stop[0]:
            self._stop(workers)

    def _stop(self, workers: Collection[int]) -> None:
        for worker in workers:
            task, _ = self._tasks.get(worker, (None, 0))
            # Those that go on to where others have stopped do not stop before.
            if task is not None and task.end is None and task.attempt not in self._stopped:
                self._stopped.add(task.attempt)
                self._handles[worker].stop.remote(task.attempt)

    def _received(self, worker: int) -> tuple[Any, float] | WorkerLostError:
        received = super()._received(worker)
        if isinstance(received, WorkerLostError) or worker not in self._tasks:
            return received
        (expected, turn), ((task, filled, finals, arrays), seconds) = self._tasks.pop(worker), received
        if task != expected:
            raise DistributionError(
                f"{self.name(worker)} answered for {task}, and was asked for {expected}: nothing of it is used"
            )
        part = self.buffers[turn].of(self._columns[worker])
        for name, array in part.arrays.items():
            if name != "noise":
                array[new_rows(name, task.first, filled, self._memory)] = arrays[name]
        return (filled, finals), seconds

    def close(self) -> None:  # noqa: D102 - as in the base
        if ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError):  # those that are lost are gone
                self._stop(self.workers)
        super().close()
