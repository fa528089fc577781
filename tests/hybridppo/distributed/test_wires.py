"""Rows that learners sum, in memory or by torch.distributed: always of the same turn, and no wait is endless."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridppo.distributed.link import Link
from hybridppo.distributed.wires import Collective, InSharedMemory, Wire, wait_for
from hybridppo.system.signals import Interruption

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

    def gather_on_device(self, numbers: Tensor) -> Tensor:
        self._rows[self.rank] = numbers.clone()
        self._meet.wait(SECONDS)
        found = torch.stack([self._rows[rank] for rank in range(self.size)])
        self._meet.wait(SECONDS)
        return found

    def reduce_on_device(self, numbers: Tensor) -> None:
        numbers.copy_(self.gather_on_device(numbers).sum(0))

    def meet_neighbours(self) -> None:
        self._meet.wait(SECONDS)

    def require_others(self, seconds: float) -> None:
        assert seconds < SECONDS


WAYS = {
    "in memory": InSharedMemory,
    "in order": partial(Collective, in_order=True),
    "all_reduce": partial(Collective, in_order=False),
}
every_way = pytest.mark.parametrize("way", WAYS)


def at_once(size: int, what: Callable[[Wire, Interruption, Interruption, int], None], way: str) -> None:
    """Let learners of two shards each do the same in threads, with own and common requests to stop."""
    said: list[bytes] = []
    rows: dict[int, Tensor] = {}
    meet = threading.Barrier(size)

    def learner(rank: int) -> None:
        own, agreed = Interruption(), Interruption()
        try:
            wire: Any = WAYS[way](Neighbour(rank, size, said, rows, meet), 2, own, agreed)  # type: ignore[operator]
            what(wire, own, agreed, rank)
            wire.close()
            wire.close()
        except BaseException:
            meet.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        for future in [pool.submit(learner, rank) for rank in range(size)]:
            future.result(SECONDS)


@every_way
@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_of_the_same_turn_and_a_stop_of_one_is_everyones(size: int, way: str) -> None:
    def exchanging(wire: Wire, own: Interruption, agreed: Interruption, rank: int) -> None:
        for turn in range(200):
            for i, row in enumerate(wire.rows(torch.zeros(1), 33)):
                row.fill_(1000 * turn + 10 * rank + i)
            own.requested = turn == 150 and rank == size - 1
            total = wire.total()
            assert agreed.requested is (turn >= 150)
            expected = sum(1000 * turn + 10 * each + i for each in range(size) for i in range(2))
            assert total.shape == (33,)
            assert total.unique().tolist() == [expected]

    at_once(size, exchanging, way)


@every_way
def test_rows_may_become_longer_and_all_get_those_of_all(way: str) -> None:
    def exchanging(wire: Wire, own: Interruption, agreed: Interruption, rank: int) -> None:
        for width in (4, 7):
            for row in wire.rows(torch.zeros(1), width):
                row.fill_(width)
            assert torch.equal(wire.total(), torch.full((width,), 4.0 * width))
        gathered = wire.gather(torch.tensor([[2 * rank], [2 * rank + 1]]))
        assert gathered.tolist() == [[0], [1], [2], [3]]

    at_once(2, exchanging, way)


class Bytes(Link):
    """Gathers bytes over the link of a wire, and counts the messages."""

    def __init__(self, link: Any) -> None:
        self.size, self.rank, self._link, self.messages = link.size, link.rank, link, 0

    def _all_gather(self, own: Tensor) -> Tensor:
        self.messages += 1
        found: Tensor = self._link.gather_on_device(own)
        return found


@pytest.mark.parametrize(
    ("lengths", "messages"), [((0, 0, 0), 1), ((0, 3, 504), 1), ((505, 0, 504), 2), ((0, 70_000, 1), 2)]
)
def test_bytes_of_any_length_come_to_all_and_short_ones_in_one_message(lengths: tuple[int, ...], messages: int) -> None:
    def of(rank: int) -> bytes:
        return bytes((rank + i) % 251 for i in range(lengths[rank]))

    def exchanging(wire: Wire, own: Interruption, agreed: Interruption, rank: int) -> None:
        link = Bytes(wire._link)  # type: ignore[attr-defined]
        assert link.gather(of(rank)) == [of(0), of(1), of(2)]
        assert link.messages == messages

    at_once(3, exchanging, "in order")


def test_sums_in_order_are_those_of_one_learner_and_others_are_not_promised() -> None:
    generator = torch.Generator().manual_seed(0)
    everything = torch.randn(4, 1000, generator=generator) * 10.0 ** torch.arange(4)[:, None]
    alone = Wire(4, Interruption(), Interruption())
    for row, values in zip(alone.rows(torch.zeros(1), 1000), everything, strict=True):
        row.copy_(values)
    expected = alone.total()
    assert torch.equal(expected, ((everything[0] + everything[1]) + everything[2]) + everything[3])

    def exchanging(wire: Wire, own: Interruption, agreed: Interruption, rank: int) -> None:
        for row, values in zip(wire.rows(torch.zeros(1), 1000), everything[2 * rank :], strict=False):
            row.copy_(values)
        found = wire.total()
        assert torch.equal(found, expected) or isinstance(wire, Collective)
        assert torch.allclose(found, expected)
        assert wire.bytes_sent >= found.nbytes

    for way in WAYS:
        at_once(2, exchanging, way)


def test_one_that_does_not_come_is_asked_for() -> None:
    told: list[float] = []

    def look(seconds: float) -> None:
        told.append(seconds)
        if len(told) == 3:
            raise TimeoutError("lost")

    with pytest.raises(TimeoutError, match="lost"):
        wait_for(lambda: False, look)
    assert 0.0 < told[0] < told[1] < told[2]
