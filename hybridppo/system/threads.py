"""The CPU threads of a training."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hybridppo.system.blas import libraries


def cpu_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """A context in which CPU operations of torch and NumPy use `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with libraries().limit(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """A context in which torch uses one thread, and NumPy as many as before.

    Each has its own threads, which spin for milliseconds while they wait. If both alternate in small operations, the
    waiting threads of one hold the cores that the other, or the update, needs; everything then takes many times as
    long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which NumPy multiplies on one thread: others would spin for tens of milliseconds afterwards."""
    with libraries().limit(limits=1, user_api="blas"):
        yield
