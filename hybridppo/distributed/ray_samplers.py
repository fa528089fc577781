"""Samplers over Ray: in each iteration they receive parameters and send rollouts."""

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import ray.exceptions

from hybridppo.distributed.ray_actors import Actors
from hybridppo.distributed.remote import Fill, RemoteSampler, new_rows
from hybridppo.errors import DistributedError
from hybridppo.runners.filling import Flag
from hybridppo.runners.workers import Transport, Work
from hybridppo.spaces.arrays import Array


class RaySamplers(Actors, Transport):
    """A `Transport` whose workers are Ray actors.

    Args:
        work: the work of the samplers.
    """

    def __init__(self, work: Work) -> None:
        setup = {**work.setup, "layout": work.layout}
        super().__init__(RemoteSampler, "sampler", work.shares, setup, work.options.worker_timeout)
        self.buffers = [work.allocate() for _ in range(work.num_buffers)]
        self.stop: Flag = bytearray(1)
        self._columns, self._distribution = work.columns, work.setup["distribution"]
        self._memory = work.setup["memory"]
        self._tasks: dict[int, deque[tuple[Fill, int]]] = {}
        """Parts under way with the numbers of their buffers, in the order of the calls."""
        self._stopped: dict[int, int] = {}
        """The number of the attempt that each sampler was last asked to stop."""
        self._attempt = 0
        self._version = -1
        self._parameters: Any = None
        self._sent: dict[int, int] = {}
        """The version that each sampler was last sent."""

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the base
        self._version = version
        flat = np.concatenate([parameter.reshape(-1) for parameter in parameters]).astype(np.float32, copy=False)
        self._parameters = flat
        for worker, tasks in self._tasks.items():
            if tasks:  # for parts that it has not begun
                self.tell(worker, "publish", (version, flat))

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the base
        self._attempt += 1
        task = Fill(self._attempt, self._version, first, end)
        noise = parameters = None
        if end is None:
            row = self._distribution.noise_row(first)
            noise = np.ascontiguousarray(self.buffers[turn].noise[row:, self._columns[worker]])
        if self._sent.get(worker) != self._version:
            parameters, self._sent[worker] = self._parameters, self._version
        self.ask(worker, "fill", (task, parameters, noise))
        self._tasks.setdefault(worker, deque()).append((task, turn))

    def start(self, worker: int, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._tasks.pop(worker, None)
        self._sent.pop(worker, None)
        super().start(worker, env_seed)

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:  # noqa: D102 - as in the base
        if self.stop[0]:
            self._stop(workers)
        return super().wait(workers, seconds, together)

    def _stop(self, workers: Sequence[int]) -> None:
        for worker in workers:
            # A part with an end is always filled: other samplers have stopped there.
            attempts = [task.attempt for task, _ in self._tasks.get(worker, ()) if task.end is None]
            if attempts and attempts[-1] > self._stopped.get(worker, 0):
                self._stopped[worker] = attempts[-1]
                self.tell(worker, "stop", attempts[-1])

    def receive(self, worker: int) -> tuple[Any, float]:  # noqa: D102 - as in the base
        received = super().receive(worker)
        if not self._tasks.get(worker):
            return received
        (expected, turn), ((task, filled, arrays), seconds) = self._tasks[worker].popleft(), received
        if task != expected or filled.version < task.version:
            raise DistributedError(
                f"{self.name(worker)} answered for {task}, and was asked for {expected}: the answer is not used"
            )
        part = self.buffers[turn].of(self._columns[worker])
        for name, array in part.arrays.items():
            if name != "noise":
                array[new_rows(name, task.first, filled.rows, self._memory)] = arrays[name]
        return filled, seconds

    def close(self) -> None:  # noqa: D102 - as in the base
        if ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError):  # lost actors have ended
                self._stop(list(self.workers))
        super().close()
