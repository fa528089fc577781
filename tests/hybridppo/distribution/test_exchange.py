"""Rows that learners share, in memory or over gloo: of the same turn; none is waited for without end."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridppo.distribution.exchange import InSharedMemory, OverGloo, fence, wait_for

SECONDS = 60


class Neighbour:
    """A link between threads of this process."""

    def __init__(
        self, rank: int, size: int, said: list[bytes], rows: dict[int, Tensor], meet: threading.Barrier
    ) -> None:
        self.rank, self.size, self._said, self._rows, self._meet = rank, size, said, rows, meet

    def from_first(self, data: bytes) -> bytes:
        if self.rank == 0:
            self._said[:] = [data]
        self._meet.wait(SECONDS)
        return self._said[0]

    def gather_numbers(self, numbers: Tensor, out: Tensor) -> None:
        self._rows[self.rank] = numbers.clone()
        self._meet.wait(SECONDS)
        out.copy_(torch.stack([self._rows[rank] for rank in range(self.size)]))
        self._meet.wait(SECONDS)

    def meet_neighbours(self) -> None:
        self._meet.wait(SECONDS)

    def require_others(self, seconds: float) -> None:
        assert seconds < SECONDS


Way = type[InSharedMemory] | type[OverGloo]
both_ways = pytest.mark.parametrize("way", [InSharedMemory, OverGloo])


def at_once(size: int, what: Callable[[Any, int], None], way: Way, num_rows: int = 2, num_columns: int = 33) -> None:
    said: list[bytes] = []
    rows: dict[int, Tensor] = {}
    meet = threading.Barrier(size)

    def learner(rank: int) -> None:
        try:
            exchange = way(Neighbour(rank, size, said, rows, meet), num_rows, num_columns)  # type: ignore[arg-type]
            what(exchange, rank)
            exchange.close()
            exchange.close()
        except BaseException:
            meet.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        for future in [pool.submit(learner, rank) for rank in range(size)]:
            future.result(SECONDS)


@both_ways
@pytest.mark.parametrize("size", [2, 3])
def test_all_have_the_rows_of_all_of_the_same_turn_and_a_stop_of_one_is_everyones(size: int, way: Way) -> None:
    def exchanging(exchange: Any, rank: int) -> None:
        for turn in range(200):
            for i, row in enumerate(exchange.to_fill()):
                row.fill_(1000 * turn + 10 * rank + i)
            rows, is_asked = exchange.filled(asks=turn == 150 and rank == size - 1)
            assert is_asked == (turn == 150)
            expected = [1000 * turn + 10 * each + i for each in range(size) for i in range(2)]
            assert [row.unique().tolist() for row in rows] == [[value] for value in expected]

    at_once(size, exchanging, way)


@both_ways
def test_rows_stay_as_they_are_while_the_next_ones_are_filled(way: Way) -> None:
    def exchanging(exchange: Any, rank: int) -> None:
        for turn in range(200):
            exchange.to_fill()[0].fill_(turn)
            rows, _ = exchange.filled(asks=False)
            exchange.to_fill()[0].fill_(-1.0)
            fence()
            assert all(torch.equal(row, torch.full((4,), float(turn))) for row in rows)

    at_once(2, exchanging, way, num_rows=1, num_columns=4)


def test_one_that_does_not_come_is_asked_for() -> None:
    told: list[float] = []

    def look(seconds: float) -> None:
        told.append(seconds)
        if len(told) == 3:
            raise TimeoutError("lost")

    with pytest.raises(TimeoutError, match="lost"):
        wait_for(lambda: False, look)
    assert 0.0 < told[0] < told[1] < told[2]
