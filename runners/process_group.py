"""The processes of a training: what they exchange, and the work that only the first of them does.

All processes make the same calls in the same order. Evaluations, callbacks and files are the first one's alone, and may
take any time: meanwhile the others wait, and make the calls that the first one requests of all.
"""

import contextlib
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from hybridppo.errors import ConfigurationError, DistributedError, LearnerLostError
from hybridppo.interfaces import agents_of
from hybridppo.reporting.callbacks import TrainingRun
from hybridppo.rollouts.rollout import Rollout, in_parts, joined
from hybridppo.runners.processes import text_of_failure
from hybridppo.runners.shared_gather import SharedGather
from hybridppo.system.devices import num_cuda_devices
from hybridppo.system.signals import Interruption, give_up_if_stopped
from hybridppo.system.validation import part_of

SECONDS_TO_EXPLAIN = 5.0
"""Seconds in which other processes may report why they end, before an error names those that are silent."""
LOOPBACK = {"darwin": "lo0", "win32": "Loopback Pseudo-Interface 1"}.get(sys.platform, "lo")
"""The network interface that no other machine reaches."""
GLOO = "GLOO_SOCKET_IFNAME"
"""The variable with the network interface of torch's processes on CPUs."""
ENDED_WITH_ANOTHER = "ended with another"
"""The report of a process that ends because another is missing."""
_CONTINUE = "continue"


class SingleProcess:
    """The process group of a training in one process."""

    rank, size = 0, 1
    has_left = False
    """Whether the other processes cannot be reached any more."""

    def __init__(self) -> None:
        self._calls: dict[str, WeakMethod[Callable[..., Any]]] = {}
        self.own = self.agreed = Interruption()
        """The requests to stop: at this process, and the one that all have seen."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    def offer(self, **calls: Callable[..., Any]) -> None:
        """Name methods that the first may call in all processes at the same time. Their objects are not kept alive."""
        self._calls |= {name: WeakMethod(call) for name, call in calls.items()}

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an offered method in all processes; only the first does, in `first_only`. Returns its own result."""
        method = self._calls[name]()
        assert method is not None  # its runner makes or hears the call
        return method(*arguments)

    def leave(self) -> None:
        """Do not communicate with the others from now on (`has_left`)."""
        self.has_left = self.size > 1

    def gather(self, value: Any) -> list[Any]:
        """The value of each process, in their order."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The value of the first process; those of the others are ignored."""
        return value

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The tensors of all processes, `[size, *rows]`, on the same device; read them before the next call."""
        return rows.unsqueeze(0)

    def all_reduce(self, numbers: Tensor) -> None:
        """Replace the numbers by their sums over all processes."""

    def gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors by name, with the columns of all processes in order; all other tensors are the first one's.

        Columns of processes that cannot be reached are lost, and those of the first go with them.
        """
        if self.size == 1:
            return tensors
        return without_columns(tensors) if self.has_left else joined_columns(self.gather(on_host(tensors)))


class ProcessGroup(SingleProcess):
    """The process group of learners, by torch.distributed. All make it at the same time; it is a context.

    Args:
        store: a store that all processes reach.
        rank: number of this process.
        size: number of processes.
        timeout: seconds after which a process that does not answer is lost.
        start_timeout: seconds within which all must have started.
        is_local: whether all processes are on this machine. Then no other machine can reach them.
        has_ended: whether the process of a rank is known to have ended.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: float,
        start_timeout: float,
        is_local: bool,
        has_ended: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        super().__init__()
        self.rank, self.size, self._timeout = rank, size, timeout
        self._store: Any = store
        self._is_in_first_only = False
        self._configs: list[Any] = []
        """The settings that the others have, policy by policy."""
        self.agreed, self.asked = Interruption(), False
        if dist.is_initialized():
            raise ConfigurationError(
                "torch.distributed is in use already in this process, and learners need it: call "
                "torch.distributed.destroy_process_group() first"
            )
        self._hosts: dict[int, str] = {}
        """The machines of the processes, if they are known."""
        self._pids: list[int] = []
        """The numbers of the processes, if they are on this machine."""
        self._has_ended = has_ended
        self._wait_for_all(start_timeout)
        if not is_local:
            self._hosts = {rank: store.get(f"here/{rank}").decode() for rank in range(size)}
        longest = timedelta(seconds=min(timeout, 10.0**6))
        has_nccl = num_cuda_devices() > 0 and dist.is_nccl_available()
        if is_local and has_nccl:  # it is read at the first collective
            os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)
        excepthook, interface = sys.excepthook, os.environ.get(GLOO)
        if is_local:
            os.environ[GLOO] = LOOPBACK
        try:
            backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=longest)
            self._patient: Any = dist.new_group(backend="gloo", timeout=timedelta(days=365))
            """For waits for the first process, whose own work may take any time."""
        except RuntimeError as error:
            raise DistributedError(
                f"{self._names([rank])} cannot connect to the others ({str(error).splitlines()[0]}): set "
                f"{GLOO} on each machine to the interface that leads to the other machines (eth0, for example), and "
                "check firewalls"
            ) from error
        finally:
            os.environ.pop(GLOO, None)
            if interface is not None:
                os.environ[GLOO] = interface
        sys.excepthook = excepthook  # torch's own would also mark tracebacks after the training
        self._shared: SharedGather | None = None
        """Gathers tensors of the host, if all processes are on this machine."""
        if is_local:
            self._pids = self.gather(os.getpid())
            self._shared = SharedGather(rank, size, self.gather, self._require_others)

    def _wait_for_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._explaining():
            self._store.set(f"here/{self.rank}", platform.node())
            while missing := [rank for rank in range(self.size) if not self._store.check([f"here/{rank}"])]:
                self._require(missing)
                if time.monotonic() > deadline:
                    raise DistributedError(
                        f"{self._names(missing)} did not start within {seconds:g} s: check their output, and whether "
                        "they can reach this machine"
                    )
                give_up_if_stopped(self._names(missing))
                time.sleep(0.01)

    def _require(self, ranks: Iterable[int]) -> None:
        """Raise a RuntimeError if one of these processes has ended, or has reported why it ends."""
        if any(self._is_gone(rank) or self._report_of(rank) for rank in ranks):
            raise RuntimeError("a process has ended")

    def _is_gone(self, rank: int) -> bool:
        if self._pids and sys.platform != "win32":  # there, os.kill would end it
            try:
                os.kill(self._pids[rank], 0)
            except ProcessLookupError:
                return True
        return self._has_ended(rank)

    def _require_others(self, waited: float) -> None:
        """Raise a RuntimeError if another process is lost, after so many seconds without an answer."""
        self._require(rank for rank in range(self.size) if rank != self.rank)
        if waited > self._timeout:
            raise RuntimeError("timeout")

    @contextlib.contextmanager
    def first_only(self, run: TrainingRun) -> Iterator[None]:
        """A context for work that only the first does.

        At its end the others make the calls of the first, and take the settings of its agent, which a callback may have
        changed. All stop if one was asked to, or if a callback of the first has ended its `run`. A context within
        another is part of it.
        """
        if self._is_in_first_only or self.has_left:
            yield
            return
        self._is_in_first_only = True
        try:
            yield
        finally:
            self._is_in_first_only = False
        agents: list[Any] = agents_of(run.agent)  # all are the library's
        if self.is_first:
            before, self._configs = self._configs, [agent.config for agent in agents]
            changed = [] if self._configs == before else self._configs
            self.agreed.requested |= self.asked or self.own.requested
            self._command(_CONTINUE, self.agreed.requested, run.stopped_by, changed)
            return
        while (command := self._command())[0] != _CONTINUE:
            super().call(*command)
        _, asks, stopped_by, changed = command
        self.agreed.requested |= asks
        if stopped_by is not None:
            run.stop(stopped_by)
        for agent, config in zip(agents, changed):  # noqa: B905 - none if they are the same
            if config != agent.config:
                agent.config = config

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: D102 - as in the base
        if not self.has_left:
            self._command(name, *arguments)
        return super().call(name, *arguments)

    def _command(self, *command: Any) -> Any:
        return self._broadcast(command, self._patient)

    def gather(self, value: Any) -> list[Any]:
        """As in the base. All also get requests to stop, and agree on them at the end of the next `first_only`."""
        found: list[Any] = [None] * self.size
        with self._explaining():
            dist.all_gather_object(found, (self.own.requested, value))
        self.asked |= any(requested for requested, _ in found)
        return [each for _, each in found]

    def broadcast(self, value: Any) -> Any:  # noqa: D102 - as in the base
        return self._broadcast(value, None)

    def _broadcast(self, value: Any, group: Any) -> Any:
        values = [value if self.is_first else None]
        with self._explaining():
            dist.broadcast_object_list(values, 0, group=group, device=torch.device("cpu"))
        return values[0]

    def gather_rows(self, rows: Tensor) -> Tensor:  # noqa: D102 - as in the base
        own = rows if rows.device.type in ("cpu", "cuda") else host_copy(rows)
        with self._explaining():
            if self._shared is not None and own.device.type == "cpu":
                everything = self._shared.gather(own)
            else:
                everything = own.new_empty((self.size, *own.shape))
                dist.all_gather(list(everything.unbind()), own)
        return everything if own is rows else rows.new_empty(everything.shape).copy_(everything)

    def all_reduce(self, numbers: Tensor) -> None:  # noqa: D102 - as in the base
        own = numbers if numbers.device.type in ("cpu", "cuda") else host_copy(numbers)
        with self._explaining():
            dist.all_reduce(own)
        if own is not numbers:
            numbers.copy_(own)

    def report(self, error: BaseException) -> None:
        """Report to the others why this process ends."""
        report(self._store, self.rank, error)

    def close(self) -> None:
        """Leave the group; a second call does nothing."""
        self._shared = self._patient = None  # which hold sockets and threads, also if this group lives on
        self.agreed = Interruption()  # the present one holds the sampler, which holds this group
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # others are gone
                dist.destroy_process_group()
        self._store = None

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """A context in which torch's errors become an error that names who is missing."""
        try:
            yield
        except DistributedError:
            raise
        except RuntimeError as error:
            raise self._explained(error) from error

    def _explained(self, error: RuntimeError) -> DistributedError:
        """The error that names who is missing; found in a thread, because the store may not answer either."""
        found: list[DistributedError] = []
        thread = threading.Thread(target=lambda: found.append(self._found_missing(error)), daemon=True)
        thread.start()
        thread.join(2 * SECONDS_TO_EXPLAIN)
        return found[0] if found else self._lost([0])

    def _found_missing(self, error: RuntimeError) -> DistributedError:
        others = [rank for rank in range(self.size) if rank != self.rank]
        deadline, silent = time.monotonic() + SECONDS_TO_EXPLAIN, others
        try:
            while silent and time.monotonic() < deadline:
                reports = {rank: self._report_of(rank) for rank in others}
                self._store.set(f"ended/{self.rank}", ENDED_WITH_ANOTHER)  # now the process with the store may end
                for rank, problem in reports.items():
                    if problem not in ("", ENDED_WITH_ANOTHER):
                        return DistributedError(f"{self._names([rank])} failed: {problem}")
                silent = [rank for rank in others if not reports[rank]]
                time.sleep(0.05)
        except RuntimeError:
            return LearnerLostError(
                f"the store of the learners is lost: learner 0 of {self.size}, or its torchrun, has ended, or the "
                "network is down"
            )
        return self._lost(silent) if silent else DistributedError(f"torch.distributed failed: {error}")

    def _lost(self, silent: list[int]) -> LearnerLostError:
        names, seconds = self._names(silent), self._timeout
        return LearnerLostError(f"{names} died, or did not answer for {seconds:g} s (worker_timeout)")

    def _report_of(self, rank: int) -> str:
        return self._store.get(f"ended/{rank}").decode() if self._store.check([f"ended/{rank}"]) else ""

    def _names(self, ranks: list[int]) -> str:
        """Learners for messages, with their machines if these are known."""
        hosts = dict.fromkeys(self._hosts[rank] for rank in ranks if rank in self._hosts)
        text = f"learner{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {self.size}"
        return f"{text} (on {', '.join(hosts)})" if hosts else text


def report(store: Store, rank: int, error: BaseException) -> None:
    """Report to the other processes why one ends."""
    with contextlib.suppress(RuntimeError):  # the store is lost, or no other process is left
        if not store.check([f"ended/{rank}"]):
            store.set(f"ended/{rank}", text_of_failure(error))


def host_copy(tensor: Tensor) -> Tensor:
    """A copy on the host, from any device."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors on the host."""
    return {name: host_copy(tensor.detach()) for name, tensor in tensors.items()}


_OF_COLUMNS = re.compile(r"(.*\.)?(rewards\.returns|memory\.critic_state)")
_OF_ROLLOUT = re.compile(r"((?:.*\.)?pool\._kept\.\d+\.)(\w+)")


def joined_columns(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of a checkpoint by name, with the columns of all processes in order.

    An agent keeps a few tensors for each column of its rollouts: the returns so far, the critic's memory, and the
    rollouts of a pool. A runner has the rows of a replay buffer. All other tensors are the first process's.
    """
    found = dict(parts[0])
    for name in parts[0]:
        if _OF_COLUMNS.fullmatch(name):
            found[name] = torch.cat([part[name] for part in parts])
    for prefix in _rollouts_in(parts[0]):
        whole = joined([Rollout(**part_of(part, prefix)) for part in parts])
        found |= {f"{prefix}{name}": tensor for name, tensor in whole.columns().items()}
    return found


def without_columns(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a checkpoint as before the first rollout, in what they have for each column."""
    of_rollouts = tuple(_rollouts_in(tensors))
    others = {name: tensor for name, tensor in tensors.items() if not name.startswith(of_rollouts)}
    return {name: tensor[:0] if _OF_COLUMNS.fullmatch(name) else tensor for name, tensor in others.items()}


def own_columns(tensors: dict[str, Tensor], number: int, count: int) -> dict[str, Tensor]:
    """The same tensors, with only the columns of process `number` of `count`."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if _OF_COLUMNS.fullmatch(name) and len(tensor):
            found[name] = tensor.chunk(count)[number].clone()
    for prefix in _rollouts_in(tensors) if count > 1 else ():
        own = in_parts(Rollout(**part_of(tensors, prefix)), count).parts[number]
        found |= {f"{prefix}{name}": tensor for name, tensor in own.columns().items()}
    return found


def _rollouts_in(tensors: dict[str, Tensor]) -> list[str]:
    matches = filter(None, map(_OF_ROLLOUT.fullmatch, tensors))
    return list(dict.fromkeys(match[1] for match in matches))
