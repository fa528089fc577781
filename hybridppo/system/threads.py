"""The CPU threads of a training, and the kernels of NumPy's matrix products."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@cache
def libraries() -> "ThreadpoolController":
    """The loaded libraries with their own threads; cached, because finding them takes longer than setting threads."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def kernels_taken() -> str:
    """OpenBLAS's name of the loaded kernels; "" if it has none."""
    names = {each.get("architecture") for each in libraries().info() if each["internal_api"] == "openblas"}
    return ", ".join(sorted(filter(None, names)))


_lock = threading.Lock()
_of_blas: dict[object, int] = {}
"""The threads of NumPy that each context asks for which has begun and not ended, in their order."""
_before = ExitStack()
"""Restores the number from before these contexts."""
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""The limit of a container (control groups, version 2): microseconds of all cores in a period, and the period."""


def cpu_cores() -> int:
    """CPU cores that this process may use, by the system and by the container; a part of a core counts as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _cores_of_container()))


def _cores_of_container() -> int:
    try:
        quota, period = map(int, CPU_MAX.read_text().split())
        return -(-quota // period)
    except (OSError, ValueError):  # no such group, or "max": no limit
        return sys.maxsize


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """A context in which torch uses `count` threads, and NumPy as many as before.

    Each has its own threads, which spin for milliseconds while they wait. If both alternate in small operations, the
    waiting threads of one hold the cores that the other, or the update, needs; everything then takes many times as
    long.
    """
    import torch  # not above: processes that only step environments do without it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """A context in which NumPy multiplies on `count` threads; more than one spin for tens of milliseconds afterwards.

    The number is the process's, and contexts of several threads end in any order.
    """
    mine = object()
    with _lock:
        limited = libraries().limit(limits=count, user_api="blas")
        if not _of_blas:
            _before.callback(limited.restore_original_limits)
        _of_blas[mine] = count
    try:
        yield
    finally:
        with _lock:
            del _of_blas[mine]
            if _of_blas:
                libraries().limit(limits=next(reversed(_of_blas.values())), user_api="blas")
            else:
                _before.close()


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """A context in which CPU operations of torch and NumPy use `count` threads."""
    with torch_threads(count), blas_threads(count):
        yield


class SideBySide:
    """Threads for parts of some work, created if there are several parts.

    Args:
        name: name of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[int], None], count: int) -> None:
        """Call `work` with the numbers of `count` parts: the first in this thread, the others in theirs."""
        if count == 1:
            work(0)
            return
        if self._pool is None or count > self._count:
            self.close()
            self._count, self._pool = count, ThreadPoolExecutor(count - 1, thread_name_prefix=self._name)
        others = [self._pool.submit(work, number) for number in range(1, count)]
        try:
            work(0)
        finally:
            wait(others)  # no thread may write afterwards
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
