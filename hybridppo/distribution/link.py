"""What learners say to each other, through torch.distributed; and who is missing where nothing comes."""

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from hybridppo.accelerator import accelerator_of
from hybridppo.errors import ConfigurationError, DistributionError, HybridPPOError, LearnerLostError

SECONDS_TO_EXPLAIN = 5.0
"""How long to wait, where nothing comes any more, for those that are left to say that it is not they."""
INNOCENT = "lost another"
SECONDS_BETWEEN_BEATS = 1.0
"""How often the first shows that it is there, while the others wait for what it does alone."""
TURNS_KEPT = 100
"""How many words of the first stay in the store; none is as many behind, for all meet in every iteration."""


class Link:
    """A group of processes, over gloo; made by all of them at once.

    Args:
        store: that all can reach; the first's.
        rank: which of the processes this is.
        size: how many there are.
        timeout: seconds after which one that does not answer is lost.
        start_timeout: seconds within which all must be there.
        how_it_ended: of one by its rank, where that is known: empty for one that runs, None where nobody knows.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: float,
        start_timeout: float,
        how_it_ended: Callable[[int], str | None] = lambda rank: None,
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._store, self._how_it_ended = store, how_it_ended
        if dist.is_initialized():
            raise ConfigurationError(
                "torch.distributed is in use already in this process, and learners need it: call "
                "torch.distributed.destroy_process_group() first"
            )
        try:
            store.set(f"here/{rank}", "")
            self._wait_for_all(start_timeout)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=min(timeout, 10**6))
            )
        except DistributionError:
            raise
        except RuntimeError as error:
            raise self._explained(error) from error
        self._on_cuda: Any = None
        self._turn, self._closed = 0, threading.Event()
        self._neighbours: dict[int, int] = {}
        if rank == 0:
            threading.Thread(target=self._beat, name="hybridppo-beats", daemon=True).start()

    def _wait_for_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while missing := [rank for rank in range(self.size) if not self._store.check([f"here/{rank}"])]:
            ended = [rank for rank in missing if self._how_it_ended(rank)]
            if ended or any(self._report_of(rank) for rank in missing):
                raise RuntimeError("ended at its start")
            if time.monotonic() > deadline:
                raise DistributionError(
                    f"{_names(missing)} did not come within {seconds:g} s, of {self.size}: look at what they say "
                    "themselves, and whether they reach this machine"
                )
            time.sleep(0.05)

    def gather(self, data: bytes) -> list[bytes]:
        """What each has to say, in the order of their ranks."""
        lengths = self._all_gather(torch.tensor([len(data)])).flatten().tolist()
        own = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        own[: len(data)] = torch.from_numpy(np.frombuffer(data, np.uint8).copy()) if data else own[:0]
        return [row.numpy()[:length].tobytes() for row, length in zip(self._all_gather(own), lengths, strict=True)]

    def from_first(self, data: bytes) -> bytes:
        """What the first has to say; the others' own is not looked at."""
        length = torch.tensor([len(data)])
        self._collective(lambda: dist.broadcast(length, 0))
        everything = torch.zeros(max(1, int(length)), dtype=torch.uint8)
        if self.rank == 0 and data:
            everything[:] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        self._collective(lambda: dist.broadcast(everything, 0))
        return everything.numpy()[: int(length)].tobytes()

    def gather_numbers(self, numbers: Tensor, out: Tensor) -> None:
        """`[K]` of each into `[size, K]`."""
        self._collective(lambda: dist.all_gather(list(out.unbind()), numbers))

    def _all_gather(self, own: Tensor) -> Tensor:
        everything = own.new_empty((self.size, *own.shape))
        self.gather_numbers(own, everything)
        return everything

    def meet_neighbours(self) -> None:
        """Remember the processes of all, where all are on this machine: `look` then sees the end of one."""
        found = [int(number) for number in self.gather(str(os.getpid()).encode())]
        self._neighbours = dict(enumerate(found))

    def look(self, seconds: float) -> None:
        """Whether the others are there, for whom this process has waited so long without a word from `gather`.

        Raises:
            DistributionError: where one is not, or `timeout` seconds are over.
        """
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            is_lost = any(self._end_of(rank) or self._report_of(rank) for rank in others)
        except RuntimeError as error:
            raise self._explained(error) from error
        if is_lost or seconds > self.timeout:
            raise self._explained(TimeoutError())

    def _collective(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except RuntimeError as error:
            raise self._explained(error) from error

    def gather_on_device(self, own: Tensor) -> Tensor:
        """`own` of each to `[size, *own]`, by NCCL where it lies on a CUDA device, and else by gloo."""
        with accelerator_of(own.device).selected():
            if own.is_cuda and self._on_cuda is None:
                # Made by all, for all come here together. (Untested: no machine with two GPUs has run it.)
                self._on_cuda = dist.new_group(backend="nccl", timeout=timedelta(seconds=min(self.timeout, 10**6)))
            everything = own.new_empty((self.size, *own.shape))
            group = self._on_cuda if own.is_cuda else None
            self._collective(lambda: dist.all_gather(list(everything.unbind()), own, group=group))
        return everything

    def tell(self, what: str) -> None:
        """Say what all do next; called by the first alone, which may have taken its time (`Turns`)."""
        self._turn += 1
        self._on_store(lambda: self._store.set(f"turn/{self._turn}", what))
        if self._turn > TURNS_KEPT:
            self._on_store(lambda: self._store.delete_key(f"turn/{self._turn - TURNS_KEPT}"))

    def hear(self) -> str:
        """What the first says next, waited for as long as it is there.

        Raises:
            DistributionError: where it has died, or has shown no sign of life for `timeout` seconds.
        """
        self._turn += 1
        key, seen, since = f"turn/{self._turn}", -1, time.monotonic()
        while True:
            with contextlib.suppress(RuntimeError):  # it takes longer; or the store is gone, which shows below
                self._store.wait([key], timedelta(seconds=min(SECONDS_BETWEEN_BEATS, self.timeout / 4)))
            try:
                if self._store.check([key]):
                    return str(self._store.get(key).decode())
                beats, problem = self._store.add("beats", 0), self._report_of(0)
            except RuntimeError as error:
                raise self._explained(error) from error
            now = time.monotonic()
            if beats != seen:
                seen, since = beats, now
            if problem or now - since > self.timeout:
                raise self._explained(TimeoutError())

    def _beat(self) -> None:
        """Show that this process, the first, is there, whatever it does for itself."""
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it whoever looks
            while not self._closed.wait(min(SECONDS_BETWEEN_BEATS, self.timeout / 4)):
                self._store.add("beats", 1)

    def _on_store(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except RuntimeError as error:
            raise self._explained(error) from error

    def report(self, problem: str) -> None:
        """Tell the others why this process goes."""
        with contextlib.suppress(RuntimeError):  # nobody is there any more to be told
            self._store.set(f"gone/{self.rank}", problem)

    def _end_of(self, rank: int) -> str | None:
        """As `how_it_ended`; of a neighbour whose end nobody else has seen, that it is gone."""
        how = self._how_it_ended(rank)
        if how is None and rank in self._neighbours and is_gone(self._neighbours[rank]):
            return "its process is gone"
        return how

    def _report_of(self, rank: int) -> str:
        return self._store.get(f"gone/{rank}").decode() if self._store.check([f"gone/{rank}"]) else ""

    def _explained(self, error: Exception) -> DistributionError:
        """Who is missing, and why, as far as can be known here."""
        self.report(INNOCENT)
        others = [rank for rank in range(self.size) if rank != self.rank]
        deadline = time.monotonic() + SECONDS_TO_EXPLAIN
        try:
            while True:
                ends = {rank: self._end_of(rank) for rank in others}  # before what they told as they ended
                reports = {rank: self._report_of(rank) for rank in others}
                for rank, problem in reports.items():
                    if problem not in ("", INNOCENT):
                        return DistributionError(f"learner {rank} of {self.size} failed: {problem}")
                silent = [rank for rank in others if not reports[rank]]
                ended = {rank: how for rank in silent if (how := ends[rank])}
                if ended:
                    rank, how = next(iter(ended.items()))
                    return LearnerLostError(f"learner {rank} of {self.size} has died: {how}. {_REMEDY}")
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        except RuntimeError:  # the store is gone, which is the first's
            silent = [0]
        who = _names(silent or others)
        return LearnerLostError(
            f"{who} of {self.size} died, or did not answer for {self.timeout:g} s (worker_timeout). {_REMEDY}"
        )

    def close(self) -> None:
        """Leave the group; a second call does nothing."""
        self._closed.set()
        if dist.is_initialized():
            dist.destroy_process_group()


def is_gone(pid: int) -> bool:
    """Whether there is no such process; where that cannot be asked for (Windows), never."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def told_of(error: BaseException) -> str:
    """What the others are told of an error: the library's own say all there is to say."""
    told = f"{type(error).__name__}: {error}"
    return told if isinstance(error, HybridPPOError) else f"{told}\n{''.join(traceback.format_exception(error))}"


_REMEDY = "Nothing that was saved is lost: resume goes on from the last checkpoint, also with distribution='local'"


def _names(ranks: list[int]) -> str:
    return f"learner{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
