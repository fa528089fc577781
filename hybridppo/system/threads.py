"""The CPU threads of a training."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from hybridppo.system.blas import libraries


def cpu_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """A context in which CPU operations of torch and NumPy use `count` threads."""
    with _torch_threads(count), libraries().limit(limits=count, user_api="blas"):
        yield


def one_torch_thread() -> AbstractContextManager[None]:
    """A context in which torch uses one thread, and NumPy as many as before.

    Each has its own threads, which spin for milliseconds while they wait. If both alternate in small operations, the
    waiting threads of one hold the cores that the other, or the update, needs; everything then takes many times as
    long.
    """
    return _torch_threads(1)


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which NumPy multiplies on one thread: others would spin for tens of milliseconds afterwards."""
    limited: AbstractContextManager[Any] = libraries().limit(limits=1, user_api="blas")
    return limited
