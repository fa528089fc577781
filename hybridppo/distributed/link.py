"""Messages between learners, by torch.distributed. An error names the learner that is missing."""

import contextlib
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from hybridppo.distributed.launching import HOST, SECONDS_BETWEEN_LOOKS, address_towards, in_background
from hybridppo.errors import ConfigurationError, DistributedError, HybridPPOError, LearnerLostError
from hybridppo.system.devices import accelerator_of
from hybridppo.system.signals import give_up_if_stopped

T = TypeVar("T")
SECONDS_TO_EXPLAIN = 5.0
"""Seconds in which the other learners may report before an error names those that are missing."""
SECONDS_TO_STOP = 10.0
"""Seconds that a learner waits for the others after it was asked to stop. Torchrun and schedulers kill it after 30 s,
and it must report why it stops before that."""
_A_WHILE = timedelta(seconds=SECONDS_BETWEEN_LOOKS)
INNOCENT = "lost another"
"""The report of a learner that stops because another is missing."""
SECONDS_BETWEEN_BEATS = 1.0
"""Seconds between the first learner's signs of life, while the others wait for work that it does alone."""
BYTES_OF_SHORT = 512
"""Bytes of the first message of `gather`. Learners with a replay buffer call it in every turn, with about 200 bytes."""
TURNS_KEPT = 100
"""Commands of the first learner that stay in the store. No learner is so far behind: all meet in every iteration."""


def _gloo(made_for: Any, options: Any) -> ProcessGroupGloo:
    return ProcessGroupGloo(made_for.store, made_for.group_rank, made_for.group_size, options)


# Torch's gloo, with options for the address on which it listens.
_GLOO = "hybridppo_gloo"
dist.Backend.register_backend(_GLOO, _gloo, extended_api=True, devices=["cpu"])


class Link:
    """A group of processes that communicate by gloo. All processes make it at the same time. Every wait is limited.

    Args:
        store: the store of the first learner, which all can reach.
        rank: number of this process.
        size: number of processes.
        timeout: seconds after which a learner that does not answer is lost.
        start_timeout: seconds within which all must have started.
        store_at: host and port of the store, if there are several machines; None if all processes are on this machine,
            which then listen on its loopback only.
        how_it_ended: says how the process of a rank ended: "" if it runs, None if this is not known.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: float,
        start_timeout: float,
        store_at: tuple[str, int] | None = None,
        how_it_ended: Callable[[int], str | None] = lambda rank: None,
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._others = [other for other in range(size) if other != rank]
        self.should_stop: Callable[[], bool] = lambda: False
        """Whether this process was asked to stop. It then waits for the others for at most `SECONDS_TO_STOP`."""
        self._asked_to_stop: float | None = None
        self._store, self._how_it_ended, self._store_at = store, how_it_ended, store_at
        self._on_cuda: Any = None
        self._turn, self._closed = 0, threading.Event()
        self._neighbours: dict[int, int] = {}
        self._hosts: dict[int, str] = {}
        if dist.is_initialized():
            raise ConfigurationError(
                "torch.distributed is in use already in this process, and learners need it: call "
                "torch.distributed.destroy_process_group() first"
            )
        with self._explaining():
            in_background(lambda: store.set(f"here/{rank}", platform.node()), start_timeout)
            self._wait_for_all(start_timeout)
        self._connect(start_timeout)
        if rank == 0:
            threading.Thread(target=self._beat, name="hybridppo-beats", daemon=True).start()

    def _wait_for_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while missing := in_background(self._missing, seconds):
            ended = [rank for rank in missing if self._how_it_ended(rank)]
            if ended or any(self._reports(seconds).values()):
                raise RuntimeError("ended at its start")
            if time.monotonic() > deadline:
                raise DistributedError(
                    f"{self._names(missing)} did not start within {seconds:g} s: check their output, and whether they "
                    "can reach this machine"
                )
            give_up_if_stopped(self._names(missing))
            time.sleep(0.05)
        if self._store_at is not None:
            keys = [f"here/{rank}" for rank in range(self.size)]
            hosts = in_background(lambda: [self._store.get(key).decode() for key in keys], seconds)
            self._hosts = dict(enumerate(hosts))

    def _missing(self) -> list[int]:
        return [rank for rank in range(self.size) if not self._store.check([f"here/{rank}"])]

    def _connect(self, seconds: float) -> None:
        """Connect to the others by gloo; all do at the same time.

        Raises:
            DistributedError: if this or another process cannot connect.
        """
        longest = timedelta(seconds=min(self.timeout, 10.0**6))

        def connect() -> None:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout, options._devices = longest, self._devices()
            # By another connection to the store, because this one must answer at the same time.
            store = self._store.clone()  # type: ignore[attr-defined]
            excepthook = sys.excepthook
            dist.init_process_group(
                _GLOO, store=store, rank=self.rank, world_size=self.size, timeout=longest, pg_options=options
            )
            sys.excepthook = excepthook  # torch's own would mark tracebacks of the program, also after the training

        try:
            in_background(connect, seconds, lambda passed: self.require_others(0.0))
        except DistributedError:
            raise
        except (RuntimeError, OSError) as error:
            problem = f"cannot connect to the others by gloo ({str(error).splitlines()[0]})"
            if self._store_at is not None:
                problem += f". {_INTERFACE.format(os.environ.get('GLOO_SOCKET_IFNAME', 'not set'))}"
            self.report(problem)
            raise DistributedError(f"{self._names([self.rank])} {problem}") from error

    def _devices(self) -> list[Any]:
        """Where gloo listens. By default it takes the address of the machine's name, which may be wrong."""
        if self._store_at is None:
            return [ProcessGroupGloo.create_device(hostname=HOST)]
        if interfaces := os.environ.get("GLOO_SOCKET_IFNAME"):
            return [ProcessGroupGloo.create_device(interface=name) for name in interfaces.split(",")]
        return [ProcessGroupGloo.create_device(hostname=address_towards(*self._store_at))]

    def gather(self, data: bytes) -> list[bytes]:
        """The data of each process, in the order of their ranks. Short data need one message, other data two."""
        framed = len(data).to_bytes(8, "little") + data
        parts = self._gathered(framed[:BYTES_OF_SHORT], BYTES_OF_SHORT)
        lengths = [8 + int.from_bytes(part[:8], "little") for part in parts]
        if (longest := max(lengths)) > BYTES_OF_SHORT:
            more = self._gathered(framed[BYTES_OF_SHORT:], longest - BYTES_OF_SHORT)
            parts = [part + rest for part, rest in zip(parts, more, strict=True)]
        return [part[8:length] for part, length in zip(parts, lengths, strict=True)]

    def _gathered(self, data: bytes, size: int) -> list[bytes]:
        """The data of each process, with zeros up to this size."""
        own = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        return [row.numpy().tobytes() for row in self._all_gather(own)]

    def from_first(self, data: bytes) -> bytes:
        """The data of the first process; the data of the others are ignored."""
        length = torch.tensor([len(data)])
        self._collective(lambda: dist.broadcast(length, 0, async_op=True))
        everything = torch.zeros(max(1, int(length)), dtype=torch.uint8)
        if self.rank == 0 and data:
            everything[:] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        self._collective(lambda: dist.broadcast(everything, 0, async_op=True))
        return everything.numpy()[: int(length)].tobytes()

    def gather_numbers(self, numbers: Tensor, out: Tensor) -> None:
        """Gather `[K]` numbers of each process into `[size, K]`."""
        self._collective(lambda: dist.all_gather(list(out.unbind()), numbers, async_op=True))

    def _all_gather(self, own: Tensor) -> Tensor:
        everything = own.new_empty((self.size, *own.shape))
        self.gather_numbers(own, everything)
        return everything

    def meet_neighbours(self) -> None:
        """If all processes are on this machine, remember their ids, so that `require_others` notices the end of one."""
        found = [int(number) for number in self.gather(str(os.getpid()).encode())]
        self._neighbours = dict(enumerate(found))

    def require_others(self, seconds: float) -> None:
        """Check that the other processes run, after this process has waited for them for this number of seconds.

        Raises:
            DistributedError: if one has ended, or `timeout` seconds are over.
        """
        with self._explaining():
            if any(self._end_of(rank) for rank in self._others) or any(self._reports(self.timeout).values()):
                raise self._explained()
        self._require_time(seconds)

    def _require_time(self, waited: float, silent: float | None = None) -> None:
        """Raise an error if a wait has taken too long.

        Args:
            waited: seconds since its start.
            silent: seconds without a sign of life; None for `waited`.
        """
        now = time.monotonic()
        if self._asked_to_stop is None and self.should_stop():
            self._asked_to_stop = now
        if (waited if silent is None else silent) > self.timeout:
            raise self._explained()
        if self._asked_to_stop is not None and min(waited, now - self._asked_to_stop) > SECONDS_TO_STOP:
            raise self._explained(f"did not come as far within {SECONDS_TO_STOP:g} s, after this one was asked to stop")

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """A context in which torch's errors become an error that names who is missing."""
        try:
            yield
        except DistributedError:
            raise
        except RuntimeError as error:
            raise self._explained() from error

    def _collective(self, begin: Callable[[], Any]) -> None:
        """Begin a collective and wait for its end in short waits, between which signals are handled."""
        with self._explaining():
            work, begun = begin(), time.monotonic()
            while not _has_ended(work):
                self._require_time(time.monotonic() - begun)

    def gather_on_device(self, own: Tensor) -> Tensor:
        """Gather `own` of each process to `[size, *own]`: by NCCL from CUDA devices, else by gloo."""
        with accelerator_of(own.device).selected():
            everything = own.new_empty((self.size, *own.shape))
            if own.is_cuda:
                with self._explaining():
                    dist.all_gather(list(everything.unbind()), own, group=self._group_on_cuda())
            elif own.device.type == "cpu":
                self.gather_numbers(own, everything)
            else:
                everything.copy_(self._all_gather(host_copy(own)))
        return everything

    def reduce_on_device(self, numbers: Tensor) -> None:
        """Sum the numbers of all in place, by NCCL or gloo as in `gather_on_device`."""
        with accelerator_of(numbers.device).selected():
            if numbers.is_cuda:
                with self._explaining():
                    dist.all_reduce(numbers, group=self._group_on_cuda())
                return
            on_host = numbers if numbers.device.type == "cpu" else host_copy(numbers)
            self._collective(lambda: dist.all_reduce(on_host, async_op=True))
            if on_host is not numbers:
                numbers.copy_(on_host)

    def _group_on_cuda(self) -> Any:
        """The NCCL group, which all processes make at the same time. No machine with two GPUs has run it yet."""
        if self._on_cuda is None:
            if self._store_at is None:  # NCCL listens too; it reads this when its group is made
                os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            self._on_cuda = dist.new_group(backend="nccl", timeout=timedelta(seconds=min(self.timeout, 10**6)))
        return self._on_cuda

    def tell(self, what: str) -> None:
        """Send the next command to all; only the first learner calls it (`Commands`)."""
        self._turn += 1
        self._on_store(lambda: self._store.set(f"turn/{self._turn}", what))
        if self._turn > TURNS_KEPT:
            self._on_store(lambda: self._store.delete_key(f"turn/{self._turn - TURNS_KEPT}"))

    def hear(self) -> str:
        """The first learner's next command.

        Raises:
            DistributedError: if the first learner has died, or has given no sign of life for `timeout` seconds.
        """
        self._turn += 1
        key, seen, begun = f"turn/{self._turn}", -1, time.monotonic()
        since = begun
        while True:
            told, beats, problem = self._on_store(lambda: self._listen(key))
            if told is not None:
                return told
            now = time.monotonic()
            if beats != seen:
                seen, since = beats, now
            if problem:
                raise self._explained()
            self._require_time(now - begun, now - since)

    def _listen(self, key: str) -> tuple[str | None, int, str]:
        """The command if it comes soon, the first learner's count of signs of life, and its problem."""
        with contextlib.suppress(RuntimeError):  # it takes longer; or the store is gone, and the next call raises
            self._store.wait([key], timedelta(seconds=min(SECONDS_BETWEEN_BEATS, self.timeout / 4)))
        told = self._store.get(key).decode() if self._store.check([key]) else None
        return told, self._store.add("beats", 0), self._report_of(0)

    def _beat(self) -> None:
        """Give signs of life as the first learner."""
        with contextlib.suppress(RuntimeError):  # the store is gone, and so are the others
            while not self._closed.wait(min(SECONDS_BETWEEN_BEATS, self.timeout / 4)):
                self._store.add("beats", 1)

    def _on_store(self, call: Callable[[], T]) -> T:
        with self._explaining():
            return in_background(call, self.timeout, self._require_time)

    def report(self, problem: str) -> None:
        """Report to the others why this process ends."""
        with contextlib.suppress(RuntimeError):  # no other process is left
            self._tell_of_end(problem)

    def _tell_of_end(self, problem: str) -> None:
        in_background(lambda: self._store.set(f"gone/{self.rank}", problem), SECONDS_TO_EXPLAIN)

    def _reports(self, seconds: float) -> dict[int, str]:
        """Why other processes end, by rank; "" for those that continue."""
        return in_background(lambda: {rank: self._report_of(rank) for rank in self._others}, seconds)

    def _end_of(self, rank: int) -> str | None:
        """As `how_it_ended`; for a process of this machine, also whether it is gone."""
        how = self._how_it_ended(rank)
        if how is None and rank in self._neighbours and is_gone(self._neighbours[rank]):
            return "its process is gone"
        return how

    def _report_of(self, rank: int) -> str:
        return self._store.get(f"gone/{rank}").decode() if self._store.check([f"gone/{rank}"]) else ""

    def _explained(self, how: str | None = None) -> DistributedError:
        """The error that names who is missing and why; `how` describes a process that reports nothing."""
        deadline = time.monotonic() + SECONDS_TO_EXPLAIN
        try:
            self._tell_of_end(INNOCENT)
            while True:
                ends = {rank: self._end_of(rank) for rank in self._others}  # before reports, written at the end
                reports = self._reports(SECONDS_TO_EXPLAIN)
                for rank, problem in reports.items():
                    if problem not in ("", INNOCENT):
                        return DistributedError(f"{self._names([rank])} failed: {problem}")
                silent = [rank for rank in self._others if not reports[rank]]
                ended = {rank: end for rank in silent if (end := ends[rank])}
                if ended:
                    rank, end = next(iter(ended.items()))
                    return LearnerLostError(f"{self._names([rank])} has died: {end}. {self._remedy}")
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        except RuntimeError:  # the store is gone, and so the first learner
            silent = [0]
        how = how or f"died, or did not answer for {self.timeout:g} s (worker_timeout)"
        return LearnerLostError(f"{self._names(silent or self._others)} {how}. {self._remedy}")

    @property
    def _remedy(self) -> str:
        network = "" if self._store_at is None else "Check the network between the machines. "
        return f"{network}{_REMEDY}"

    def _names(self, ranks: list[int]) -> str:
        """Learners for messages, with their machines if there are several."""
        hosts = [self._hosts[rank] for rank in ranks if rank in self._hosts]
        text = f"learner{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {self.size}"
        return f"{text} (on {', '.join(hosts)})" if hosts else text

    def close(self) -> None:
        """Leave the group; a second call does nothing."""
        self._closed.set()
        if dist.is_initialized():
            # If another process is silent, a collective under way blocks this until gloo gives up.
            with contextlib.suppress(RuntimeError):
                in_background(dist.destroy_process_group, SECONDS_TO_EXPLAIN)


def _has_ended(work: Any) -> bool:
    """Wait a short time for a collective; return whether it has ended. Its errors are raised."""
    try:
        work.wait(_A_WHILE)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait(_A_WHILE)  # it has ended in the meantime, or this raises its error
    return True


def host_copy(tensor: Tensor) -> Tensor:
    """A copy on the host, from any device."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def is_gone(pid: int) -> bool:
    """Whether there is no such process; always False on Windows."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's
        return False
    return False


def text_of(error: BaseException) -> str:
    """An error as a report to the others, with its traceback unless it is one of the library's own."""
    told = f"{type(error).__name__}: {error}"
    return told if isinstance(error, HybridPPOError) else f"{told}\n{''.join(traceback.format_exception(error))}"


_REMEDY = "What was saved is kept: resume goes on from the last checkpoint, also with distributed='local'"

_INTERFACE = (
    "Each learner listens on the network that leads to MASTER_ADDR, or on the interface in GLOO_SOCKET_IFNAME, which "
    "is {}. If the others cannot reach it there, set GLOO_SOCKET_IFNAME on each machine to the interface that leads to "
    "the other machines (eth0, for example). A firewall may also block it"
)
