"""How learners exchange rows in an update: all rows are summed, and a few numbers are gathered.

`Wire` is for a learner that is alone, `InSharedMemory` for learners on the CPUs of one machine, and `Collective`, by
torch.distributed, for all others. On the host, a sum also carries whether a learner was asked to stop.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hybridppo.distributed.link import Link
from hybridppo.runners.shared_memory import SharedArrays
from hybridppo.system.signals import Interruption

SECONDS_AWAKE = 0.002
"""Seconds to wait for the others without sleep, because they are about as far, and waking up takes as long as a good
part of a minibatch."""
SECONDS_ASLEEP = 1e-4, 2e-3
"""Seconds of a sleep between checks after that: the first, and the longest."""
SECONDS_BETWEEN_QUESTIONS = 0.2
"""Seconds between checks that the others still run."""
_CACHE_LINE = 8
"""Whole numbers in a cache line. Each learner's turn has a line of its own."""


class Wire:
    """The exchange of a learner that has all the shards.

    Args:
        num_rows: the number of its shards.
        own: the request to stop at this process.
        agreed: the request to stop on which all learners have agreed.
    """

    def __init__(self, num_rows: int, own: Interruption, agreed: Interruption) -> None:
        self._num_rows, self._own, self._agreed = num_rows, own, agreed
        self._mine: Sequence[Tensor] = ()
        self._kept = self._sent = torch.empty(0)
        self.bytes_sent = 0
        """Bytes that this learner has sent in sums."""

    def gather(self, own: Tensor) -> Tensor:
        """Gather this learner's shards `[mine, ...]` to those of all `[shards, ...]`, in order, on its device."""
        return own

    def rows(self, like: Tensor, num_columns: int) -> Sequence[Tensor]:
        """This learner's rows to fill, `[num_columns]` each, with any content, on the device of `like`.

        Their memory is kept, because the passes of a step have rows of different lengths. It has one more number, which
        says whether to stop: another exchange would take as long as that of the rows.
        """
        if not self._mine or len(self._mine[0]) != num_columns:
            size = self._num_rows * num_columns + 1
            if len(self._kept) < size:
                self._kept = like.new_zeros(size)
            self._sent = self._kept[:size]
            self._mine = self._sent[:-1].view(self._num_rows, num_columns).unbind()
        return self._mine

    def total(self) -> Tensor:
        """The sum of all learners' rows, once all have filled theirs. It is valid until the next rows are filled."""
        self._agreed.requested |= self._own.requested
        return sum_in_order(self._mine)

    def close(self) -> None:
        """Release shared memory; a second call does nothing."""


class Collective(Wire):
    """By torch.distributed: NCCL between CUDA devices, else gloo.

    Args:
        link: to the others.
        num_rows: shards of each learner.
        own: as in the base.
        agreed: as in the base.
        in_order: whether rows are summed in their order, which needs all rows in all learners; else the learners' sums
            are reduced, in the fastest order.
    """

    def __init__(self, link: Link, num_rows: int, own: Interruption, agreed: Interruption, *, in_order: bool) -> None:
        super().__init__(num_rows, own, agreed)
        self._link, self._in_order = link, in_order

    def gather(self, own: Tensor) -> Tensor:  # noqa: D102 - as in the base
        return self._link.gather_on_device(own.contiguous()).flatten(0, 1)

    def total(self) -> Tensor:  # noqa: D102 - as in the base
        size, is_on_host = len(self._mine[0]), self._sent.device.type == "cpu"
        if is_on_host:
            self._sent[-1] = self._own.requested
        if self._in_order:
            everything = self._link.gather_on_device(self._sent)
            self.bytes_sent += self._sent.nbytes
            found = sum_in_order(everything[:, :-1].reshape(-1, size).unbind())
            asks = everything[:, -1]
        else:
            if self._num_rows > 1:
                self._mine[0].copy_(sum_in_order(self._mine))
                self._sent[size] = self._sent[-1]
            summed = self._sent[: size + 1]
            self._link.reduce_on_device(summed)
            self.bytes_sent += summed.nbytes
            found, asks = summed[:-1], summed[-1:]
        if is_on_host:
            self._agreed.requested |= bool(asks.any())
        return found


class InSharedMemory(Collective):
    """In memory that all learners of a machine share; only numbers that are gathered go by torch.distributed.

    Two sets of rows take turns. When all have come to a turn, no learner reads the rows of the turn before, which may
    be filled again.

    Args:
        link: to the others; all make their wires at the same time.
        num_rows: shards of each learner.
        own: as in the base.
        agreed: as in the base.
    """

    def __init__(self, link: Link, num_rows: int, own: Interruption, agreed: Interruption) -> None:
        super().__init__(link, num_rows, own, agreed, in_order=True)
        self._turn = 0
        self._arrays: SharedArrays | None = None

    def rows(self, like: Tensor, num_columns: int) -> Sequence[Tensor]:
        """As in the base; the first call maps the memory, by all at the same time."""
        if self._arrays is None or self._sets[0].shape[-1] < num_columns:
            self._map(num_columns)
        self._num_columns = num_columns
        return self._sets[self._turn % 2][self._link.rank, :, :num_columns].unbind()

    def _map(self, num_columns: int) -> None:
        self.close()
        link, self._turn = self._link, 0
        layout: dict[str, tuple[tuple[int, ...], str]]
        layout = {f"rows{i}": ((link.size, self._num_rows, num_columns), "float32") for i in range(2)}
        layout |= {"asks": ((2, link.size), "uint8"), "turns": ((link.size, _CACHE_LINE), "int64")}
        self._arrays = SharedArrays(layout, None if link.rank == 0 else link.from_first(b"").decode())
        if link.rank == 0:
            link.from_first(self._arrays.path.encode())
        link.meet_neighbours()  # all have mapped it
        self._arrays.unlink()
        self._sets = [torch.from_numpy(self._arrays[f"rows{i}"]) for i in range(2)]
        self._asks, self._turns = self._arrays["asks"], self._arrays["turns"][:, 0]

    def total(self) -> Tensor:  # noqa: D102 - as in the base
        half, rank = self._turn % 2, self._link.rank
        self._asks[half, rank] = self._own.requested
        self._turn += 1
        self.bytes_sent += self._sets[half][rank, :, : self._num_columns].nbytes
        fence()
        self._turns[rank] = self._turn
        wait_for(lambda: bool(self._turns.min() >= self._turn), self._link.require_others)
        fence()
        self._agreed.requested |= bool(self._asks[half].any())
        return sum_in_order(self._sets[half].flatten(0, 1)[:, : self._num_columns].unbind())

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._arrays is not None:
            self._sets = []
            self._arrays.close()
            self._arrays = None


def sum_in_order(rows: Sequence[Tensor]) -> Tensor:
    """The sum of rows from the first to the last."""
    if len(rows) == 1:
        return rows[0]
    found = rows[0] + rows[1]
    for row in rows[2:]:
        found.add_(row)
    return found


def wait_for(has_come: Callable[[], bool], require_others: Callable[[float], None]) -> None:
    """Wait for the other learners: without sleep at first, then with longer and longer sleeps.

    Args:
        has_come: returns whether all have come.
        require_others: called from time to time with the seconds that have passed; raises an error if one is lost.
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


_let_others_work: Callable[[], None] = getattr(os, "sched_yield", partial(time.sleep, 0.0))
"""Gives the core to another process: there may be more learners than cores."""
_locks = threading.Lock(), threading.Lock()


def fence() -> None:
    """Keep the order of writes before and after it for other processes, and likewise of reads.

    Without it, some processors (ARM's) change this order. No write passes a lock that is taken after another was
    released.
    """
    for lock in _locks:
        with lock:
            pass
