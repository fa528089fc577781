"""Workers in processes of this machine, which write straight into a rollout in shared memory."""

from collections.abc import Sequence

from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.page_locking import PageLock
from hybridppo.runners.samplers.stepping import Flag
from hybridppo.runners.workers.local import LocalProcesses
from hybridppo.runners.workers.pool import Transport
from hybridppo.runners.workers.shared_arrays import PublishedParameters
from hybridppo.runners.workers.transport import Work
from hybridppo.spaces.arrays import Array
from hybridppo.system.accelerator import accelerator_of


class Processes(LocalProcesses, Transport):
    """A `Transport` to processes of this machine. `close` ends them and frees the memory.

    Args:
        work: the work of the workers.
    """

    def __init__(self, work: Work) -> None:
        numbers = range(work.num_buffers)
        layout = {f"{name}{i}": spec for i in numbers for name, spec in work.layout.items()}
        super().__init__(
            "hybridppo.runners.workers.process",
            "worker",
            work.shares,
            {**work.setup, "num_buffers": work.num_buffers},
            work.options.worker_timeout,
            layout={**layout, **PublishedParameters.layout(work.num_parameters)},
            restarts=work.options.restarts,
        )
        self._published = PublishedParameters(self.arrays)
        self.buffers = [RolloutBuffer(**{name: self.arrays[f"{name}{i}"] for name in work.layout}) for i in numbers]
        self.stop: Flag = self.arrays["stop"].data
        self._pin_for = work.pin_for
        self._page_lock: PageLock | None = None

    def all_ready(self) -> None:  # noqa: D102 - as in the base
        super().all_ready()
        if self._pin_for is not None and self._page_lock is None:
            assert self.arrays.memory is not None  # not closed yet
            self._page_lock = PageLock(self.arrays.memory, accelerator_of(self._pin_for))

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the base
        self._published.write(parameters, version)

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the base
        self.ask(worker, "fill", (turn, first, end))

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._page_lock is not None:  # before the memory is freed
            self._page_lock.close()
        super().close()
