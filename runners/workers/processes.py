"""Workers in processes of this machine, which write straight into a rollout in shared memory."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from hybridppo.environments.pickling import pack
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.page_locking import PageLock
from hybridppo.runners.samplers.stepping import Flag
from hybridppo.runners.workers.pool import WorkerPool
from hybridppo.runners.workers.shared_arrays import PublishedParameters, SharedArrays
from hybridppo.runners.workers.transport import Work
from hybridppo.system.accelerator import accelerator_of

Array = NDArray[Any]


class Processes(WorkerPool):
    """A `Transport` to processes of this machine. `close` ends them and frees the memory.

    Args:
        work: the work of the workers.
    """

    def __init__(self, work: Work) -> None:
        num_workers = len(work.shares)
        numbers = range(work.num_buffers)
        shared = {f"{name}{i}": spec for i in numbers for name, spec in work.layout.items()}
        shared |= {**PublishedParameters.layout(work.num_parameters), "stop": ((1,), "uint8")}
        shared |= {f"heartbeat{worker}": ((1,), "int64") for worker in range(num_workers)}
        self._arrays = SharedArrays(shared)
        self._published = PublishedParameters(self._arrays)
        self.buffers = [RolloutBuffer(**{name: self._arrays[f"{name}{i}"] for name in work.layout}) for i in numbers]
        self.stop: Flag = self._arrays["stop"].data
        self._pin_for, self._restarts = work.pin_for, work.options.restarts
        self._page_lock: PageLock | None = None
        self._has_begun = False
        setup = {**work.setup, "layout": shared, "path": self._arrays.path, "num_buffers": work.num_buffers}
        super().__init__(work.shares, pack(setup), self._rows_filled, work.options.worker_timeout)

    def wait_until_ready(self, workers: Sequence[int]) -> None:  # noqa: D102 - as in the protocol
        super().wait_until_ready(workers)
        if self._has_begun:
            return
        self._has_begun = True
        if not self._restarts:  # else another worker would have to map it
            self._arrays.unlink()
        if self._pin_for is not None:
            assert self._arrays.memory is not None  # not closed yet
            self._page_lock = PageLock(self._arrays.memory, accelerator_of(self._pin_for))

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the protocol
        self._published.write(parameters, version)

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the protocol
        self.send(worker, ("fill", (turn, first, end)))

    def ask(self, worker: int, kind: str, value: Any) -> None:  # noqa: D102 - as in the protocol
        self.send(worker, (kind, value))

    def _rows_filled(self, worker: int) -> int:
        return int(self._arrays[f"heartbeat{worker}"][0])

    def close(self) -> None:  # noqa: D102 - as in the protocol
        super().close()
        if self._page_lock is not None:
            self._page_lock.close()
        self._arrays.close()
