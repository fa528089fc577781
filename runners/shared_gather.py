"""Gathers tensors of processes of one machine in memory that they share, which takes less time than a socket."""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

SECONDS_AWAKE = 0.0002
"""Seconds to wait for the others without sleep, because waking up takes as long as a good part of a minibatch. A longer
wait would take the cores from others of a busy machine, and so from the learners that are waited for."""
SECONDS_ASLEEP = 1e-4, 2e-3
"""Seconds of a sleep between looks after that: the first, and the longest."""
SECONDS_BETWEEN_CHECKS = 0.2
_CACHE_LINE = 64
"""Bytes. The count of each process has a line of its own."""
_let_others_work: Callable[[], None] = getattr(os, "sched_yield", partial(time.sleep, 0.0))
_locks = threading.Lock(), threading.Lock()


class SharedGather:
    """Gathers the tensors of all processes.

    Two blocks of rows take turns: if all have written to one, no process reads the other, which may be written again.

    Args:
        rank: number of this process.
        size: number of processes.
        from_all: returns the value of each process; all call it together.
        check: called from time to time with the seconds of a wait; raises an error if another process is lost.
    """

    def __init__(
        self, rank: int, size: int, from_all: Callable[[Any], list[Any]], check: Callable[[float], None]
    ) -> None:
        self._rank, self._size, self._from_all, self._check = rank, size, from_all, check
        self._capacity = self._count = 0

    def gather(self, own: Tensor) -> Tensor:
        """The tensors of all processes, `[size, *own]`; read them before the next call."""
        if not self._count or own.nbytes > self._capacity:
            self._map(own.nbytes)
        rows = self._rows[self._count % 2, :, : own.nbytes]
        everything = rows.view(own.dtype).view(self._size, *own.shape)
        everything[self._rank] = own
        self._count += 1
        _fence()
        self._counts[self._rank] = self._count
        self._wait()
        _fence()
        return everything

    def _map(self, size: int) -> None:
        """Map a file in memory if possible, whose name is removed as soon as all have mapped it."""
        self._capacity, self._count = -(-size // _CACHE_LINE) * _CACHE_LINE, 0
        folder, own = "/dev/shm", None
        if self._rank == 0:
            descriptor, own = tempfile.mkstemp(prefix="hybridppo-", dir=folder if os.access(folder, os.W_OK) else None)
            os.close(descriptor)
        path = self._from_all(own)[0]
        try:
            num_rows = 2 * self._size * self._capacity
            mapped = torch.from_file(path, True, num_rows + self._size * _CACHE_LINE, dtype=torch.uint8)
            self._from_all(None)
        finally:
            if own is not None:
                with contextlib.suppress(PermissionError):  # Windows, while it is mapped
                    os.unlink(own)
        self._rows = mapped[:num_rows].view(2, self._size, self._capacity)
        self._counts = mapped[num_rows:].view(torch.int64).view(self._size, -1)[:, 0].numpy()

    def _wait(self) -> None:
        """Wait for the other processes: without sleep at first, then with longer and longer sleeps."""
        begun = checked = time.perf_counter()
        asleep, longest = SECONDS_ASLEEP
        while self._counts.min() < self._count:
            now = time.perf_counter()
            if now - begun < SECONDS_AWAKE:
                _let_others_work()
                continue
            if now - checked > SECONDS_BETWEEN_CHECKS:
                self._check(now - begun)
                checked = now
            time.sleep(asleep)
            asleep = min(2.0 * asleep, longest)


def _fence() -> None:
    """Keep the order of writes before and after it for other processes, and likewise of reads.

    Without it, some processors (ARM's) change this order. No write passes a lock that is taken after another was
    released.
    """
    for lock in _locks:
        with lock:
            pass
