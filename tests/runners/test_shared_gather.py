"""Threads in the place of processes: each gets what all have given, in their order, and none waits for a lost one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from hybridppo.runners.shared_gather import SharedGather

SIZE = 3


def from_all(rank: int) -> Callable[[Any], list[Any]]:
    def gathered(value: Any) -> list[Any]:
        values[rank] = value
        barrier.wait()
        found = list(values)
        barrier.wait()
        return found

    return gathered


values: list[Any] = [None] * SIZE
barrier = threading.Barrier(SIZE, timeout=60.0)


def test_each_gets_the_tensors_of_all_in_order_whatever_their_type_and_size() -> None:
    given = [
        torch.arange(SIZE * 7, dtype=dtype).view(SIZE, *shape)
        for _ in range(100)
        for dtype, shape in ((torch.float32, (7,)), (torch.int64, (1, 7)), (torch.float32, (7, 1)), (torch.uint8, (7,)))
    ]
    given += [torch.rand(SIZE, 5, 100), torch.rand(SIZE, 3), torch.rand(SIZE, 2) > 0.5]  # more needs more memory

    def gather_all(rank: int) -> None:
        shared = SharedGather(rank, SIZE, from_all(rank), lambda waited: None)
        for each in given:
            assert torch.equal(shared.gather(each[rank].contiguous()), each)

    with ThreadPoolExecutor(SIZE) as threads:
        for done in [threads.submit(gather_all, rank) for rank in range(SIZE)]:
            done.result()


def test_a_wait_ends_with_the_error_of_a_lost_process() -> None:
    def lost(waited: float) -> None:
        raise RuntimeError(f"lost after {waited:.1f} s")

    def gather(rank: int) -> None:
        shared = SharedGather(rank, SIZE, from_all(rank), lost)
        shared.gather(torch.zeros(1))
        if rank != 1:
            with pytest.raises(RuntimeError, match=r"lost after \d+\.\d s"):
                shared.gather(torch.ones(1))

    with ThreadPoolExecutor(SIZE) as threads:
        for done in [threads.submit(gather, rank) for rank in range(SIZE)]:
            done.result()
