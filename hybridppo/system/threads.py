"""The CPU threads of a training."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import torch

from hybridppo.system.blas import libraries

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
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _blas_threads(count: int) -> Iterator[None]:
    """A context in which NumPy multiplies on `count` threads.

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
    with _torch_threads(count), _blas_threads(count):
        yield


def one_torch_thread() -> AbstractContextManager[None]:
    """A context in which torch uses one thread, and NumPy as many as before.

    Each has its own threads, which spin for milliseconds while they wait. If both alternate in small operations, the
    waiting threads of one hold the cores that the other, or the update, needs; everything then takes many times as
    long.
    """
    return _torch_threads(1)


def one_blas_thread() -> AbstractContextManager[None]:
    """A context in which NumPy multiplies on one thread: others would spin for tens of milliseconds afterwards."""
    return _blas_threads(1)
