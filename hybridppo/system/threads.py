"""How many CPU threads a training uses."""

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
    """Within it, CPU operations of torch and NumPy use `count` threads; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with libraries().limit(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Within it, torch works on one thread and NumPy on as many as before.

    Each has threads of its own, which wait for work by spinning, for milliseconds: where both take turns at small
    operations, one's waiting threads hold the cores that the other's, or the update's, need, and all of it takes many
    times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within it, NumPy multiplies on one thread; its others spin likewise, for tens of milliseconds after a product."""
    with libraries().limit(limits=1, user_api="blas"):
        yield
