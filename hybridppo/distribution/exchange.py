"""How learners bring the rows of their shards together: in memory that those of one machine share, or over gloo.

Each way has rows to fill, and those of all when all have filled theirs. With them comes whether anybody asks to stop.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from hybridppo.distribution.link import Link
from hybridppo.runners.workers.shared_arrays import SharedArrays
from hybridppo.system.interruption import Interruption

SECONDS_AWAKE = 0.002
"""How long to wait for the others without sleeping: they are about as far, and to be woken takes as long as much of a
minibatch."""
SECONDS_ASLEEP = 1e-4, 2e-3
"""How long to sleep between looks after that: at first, and at most."""
SECONDS_BETWEEN_QUESTIONS = 0.2
"""How often to ask, of others that do not come, whether they are there still."""
_CACHE_LINE = 8
"""Of whole numbers; each learner's turn is in one of its own."""

Rows = Sequence[Tensor]


class Exchange(Protocol):
    """What every way offers."""

    def to_fill(self) -> Rows:
        """This learner's rows, `[K]` each, whatever is in them."""
        ...

    def filled(self, asks: bool) -> tuple[Rows, bool]:
        """All rows in the order of the shards, until the next but one are filled; and whether anybody asks to stop."""
        ...

    def close(self) -> None:
        """Let go of the memory; a second call does nothing."""
        ...


class NoExchange:
    """Of a learner that has all the shards.

    Args:
        num_rows: its shards.
        num_columns: `K`.
    """

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self._rows = torch.zeros(num_rows, num_columns).unbind()

    def to_fill(self) -> Rows:  # noqa: D102 - as in the protocol
        return self._rows

    def filled(self, asks: bool) -> tuple[Rows, bool]:  # noqa: D102 - as in the protocol
        return self._rows, asks

    def close(self) -> None:  # noqa: D102 - as in the protocol
        return


class OverGloo:
    """Of learners on several machines: all rows go to all.

    Args:
        link: to the others.
        num_rows: of each learner.
        num_columns: `K`.
    """

    def __init__(self, link: Link, num_rows: int, num_columns: int) -> None:
        self._link = link
        # One number more, for whether it asks to stop: a second exchange would take as long as the first.
        self._own = torch.zeros(num_rows * num_columns + 1)
        self._everything = torch.zeros(link.size, len(self._own))
        self._mine = self._own[:-1].view(num_rows, num_columns).unbind()
        self._rows = [row for each in self._everything for row in each[:-1].view(num_rows, num_columns)]

    def to_fill(self) -> Rows:  # noqa: D102 - as in the protocol
        return self._mine

    def filled(self, asks: bool) -> tuple[Rows, bool]:  # noqa: D102 - as in the protocol
        self._own[-1] = asks
        self._link.gather_numbers(self._own, self._everything)
        return self._rows, bool(self._everything[:, -1].any())

    def close(self) -> None:  # noqa: D102 - as in the protocol
        return


class InSharedMemory:
    """Of learners on one machine: each writes its rows where all read them, and nothing is copied or sent.

    There are two sets of rows, used by turns. Who has seen that all have come to a turn knows that nobody reads the
    set of the turn before any more, and may fill that one again.

    Args:
        link: to the others; all make theirs at once.
        num_rows: of each learner.
        num_columns: `K`.
    """

    def __init__(self, link: Link, num_rows: int, num_columns: int) -> None:
        layout: dict[str, tuple[tuple[int, ...], str]]
        layout = {f"rows{i}": ((link.size, num_rows, num_columns), "float32") for i in range(2)}
        layout |= {"asks": ((2, link.size), "uint8"), "turns": ((link.size, _CACHE_LINE), "int64")}
        self._arrays = SharedArrays(layout, None if link.rank == 0 else link.from_first(b"").decode())
        if link.rank == 0:
            link.from_first(self._arrays.path.encode())
        link.meet_neighbours()  # all have mapped it
        self._arrays.unlink()
        self._link, self._turn = link, 0
        both = [torch.from_numpy(self._arrays[f"rows{i}"]) for i in range(2)]
        self._mine = [rows[link.rank].unbind() for rows in both]
        self._all = [rows.flatten(0, 1).unbind() for rows in both]
        self._asks, self._turns = self._arrays["asks"], self._arrays["turns"][:, 0]

    def to_fill(self) -> Rows:  # noqa: D102 - as in the protocol
        return self._mine[self._turn % 2]

    def filled(self, asks: bool) -> tuple[Rows, bool]:  # noqa: D102 - as in the protocol
        half = self._turn % 2
        self._asks[half, self._link.rank] = asks
        self._turn += 1
        fence()
        self._turns[self._link.rank] = self._turn
        wait_for(self._have_come, self._link.require_others)
        fence()
        return self._all[half], bool(self._asks[half].any())

    def _have_come(self) -> bool:
        return bool(self._turns.min() >= self._turn)

    def close(self) -> None:  # noqa: D102 - as in the protocol
        self._arrays.close()


class Agreeing:
    """An exchange with which all learn whether one was asked to stop."""

    def __init__(self, way: Exchange, own: Interruption, agreed: Interruption) -> None:
        self.to_fill, self._way, self._own, self._agreed = way.to_fill, way, own, agreed

    def filled(self) -> Rows:
        """The rows of all."""
        rows, is_asked = self._way.filled(self._own.requested)
        self._agreed.requested |= is_asked
        return rows


def wait_for(has_come: Callable[[], bool], require_others: Callable[[float], None]) -> None:
    """Wait for what others are about to do: awake at first, then ever longer asleep.

    Args:
        has_come: whether they have done it.
        require_others: called now and then with the seconds that have passed; raises if one of them is lost.
    """
    begun = time.perf_counter()
    asked, (asleep, longest) = begun, SECONDS_ASLEEP
    while not has_come():
        now = time.perf_counter()
        if now - begun < SECONDS_AWAKE:
            _let_others_work()
            continue
        if now - asked > SECONDS_BETWEEN_QUESTIONS:
            require_others(now - begun)
            asked = now
        time.sleep(asleep)
        asleep = min(2.0 * asleep, longest)


def _sleep_for_nothing() -> None:
    time.sleep(0.0)


_let_others_work: Callable[[], None] = getattr(os, "sched_yield", _sleep_for_nothing)
"""Give the core to who has none: there may be more learners than cores."""
_locks = threading.Lock(), threading.Lock()


def fence() -> None:
    """What was written before is seen by whoever sees what is written after; likewise what is read.

    Some processors (ARM's) change the order otherwise. Nothing passes a lock that is taken after another was let go.
    """
    for lock in _locks:
        with lock:
            pass
