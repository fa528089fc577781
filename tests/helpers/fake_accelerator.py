"""An accelerator for the tests of what is asynchronous: queues, events, page-locked memory, graphs, without a GPU.

    with pretended_accelerator() as machine:
        hybridppo.train(..., placement=Mirrored("cpu", machine.device))

Its memory is that of `second_device.py`; this adds time. Every operation goes to the current stream of its thread, and
is known to be over for whoever has waited for it: the host, or another stream. To read what one has not waited for, or
to write what somebody may still be reading, is a `RaceError` here, and a wrong number once in a while on a GPU. What
page-locked memory is to be filled with, by a copy that was not waited for, is nonsense until it has been; and what such
a copy reads must not have changed by then.

As on CUDA, a graph is a list of operations at fixed addresses, and what waits for the device cannot be recorded.

What it cannot show: how long anything takes, and whatever torch or CUDA do otherwise than their documentation says.
"""

import contextlib
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import second_device
import torch
from second_device import SecondTensor
from torch import Tensor
from torch.utils import _pytree

from hybridppo.system import devices
from hybridppo.system.devices import Accelerator

Clock = dict["Stream", int]
"""For each stream, how many of its operations are known to be over."""


class RaceError(AssertionError):
    """A read of data that was not waited for, or a write to data that may still be read."""


class Stream:
    """A queue of operations."""

    def __init__(self, machine: "Machine", name: str) -> None:
        self._machine, self.name = machine, name
        self.given = 0
        self.known: Clock = {}

    def __repr__(self) -> str:
        return self.name

    def synchronize(self) -> None:
        """Wait on the host."""
        self._machine.wait_for(self, self.given, "stream")

    def wait_stream(self, other: "Stream") -> None:
        """Let later operations wait for all that the other stream has been given."""
        merge(self.known, {**other.known, other: other.given})


def merge(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(count, clock.get(stream, 0))


class Event:
    """A mark in a stream."""

    def record(self, stream: Stream) -> None:
        self.stream, self.at = stream, stream.given

    def synchronize(self) -> None:
        """Wait on the host for what the stream had been given."""
        self.stream._machine.wait_for(self.stream, self.at, "event")

    def elapsed_time(self, later: "Event") -> float:
        machine = self.stream._machine
        assert machine.over.get(later.stream, 0) >= later.at, "the later event has not come to pass"
        return float(later.at - self.at)  # a millisecond an operation


@dataclass
class Graph:
    """Operations with their arguments and results."""

    operations: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    machine: "Machine | None" = None
    stream: Stream | None = None
    """The stream in which it was recorded."""

    def replay(self) -> None:
        """Repeat the operations, at the same addresses, in the current stream."""
        assert self.machine is not None, "nothing was recorded"
        with torch.no_grad():
            for operation, args, kwargs, results in self.operations:
                again = self.machine.compute(operation, *args, **kwargs)
                for new, old in zip(_pytree.tree_leaves(again), _pytree.tree_leaves(results), strict=True):
                    if isinstance(old, SecondTensor) and new.hidden is not old.hidden:
                        old.hidden.copy_(new.hidden)
                        self.machine.wrote(old)


@dataclass
class Access:
    """The last write of some memory, and the reads since, each as a place in a stream."""

    writer: tuple[Stream, int] | None = None
    readers: Clock = field(default_factory=dict)


class Machine:
    """The streams, what they were given, and what is known to be over."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.over: Clock = {}
        self.waits = 0
        """How often the host has waited, and how often for a stream that was not over."""
        self.streams = [Stream(self, "default")]
        self.log: list[tuple[str, Any, Stream]] = []
        """Thread, operation and stream, in order; each wait of the host is an operation "event" or "stream"."""
        self.graphs: list[Graph] = []
        self.alignment = 1
        self.is_selected = self.tells_of_waits = False
        self._threads = threading.local()
        self._accesses: dict[int, Access] = {}
        self._locked: list[tuple[int, int, Any]] = []
        self._pending: list[tuple[Stream, int, Any]] = []
        self._lock = threading.RLock()
        self._compute = second_device._compute

    @property
    def stream(self) -> Stream:
        """This thread's current stream."""
        stream: Stream = getattr(self._threads, "stream", self.streams[0])
        return stream

    @contextlib.contextmanager
    def selected(self) -> Iterator[None]:
        before, self.is_selected = self.is_selected, True
        try:
            yield
        finally:
            self.is_selected = before

    @contextlib.contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        before, self._threads.stream = self.stream, stream
        try:
            yield
        finally:
            self._threads.stream = before

    @contextlib.contextmanager
    def recording(self, graph: Graph, stream: Stream) -> Iterator[None]:
        if not self.is_selected:
            raise RuntimeError(
                f"what is given to {self.device} is not recorded while another device is the current one"
            )
        stream.synchronize()  # torch waits for the whole device
        graph.machine, graph.stream = self, stream
        self.graphs.append(graph)
        with self.using(stream):
            self._recorded: Graph | None = graph
            try:
                yield
            finally:
                self._recorded = None

    _recorded = None

    def wait_for(self, stream: Stream, count: int, what: str) -> None:
        with self._lock:
            if self._recorded is not None and self.stream is self._recorded.stream:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.waits += 1
            self.log.append((threading.current_thread().name, what, stream))
            if self.tells_of_waits:
                warnings.warn("a synchronizing operation was called", stacklevel=2)
            merge(self.over, {**stream.known, stream: count})
            ready = [entry for entry in self._pending if self.over.get(entry[0], 0) >= entry[1]]
            self._pending = [entry for entry in self._pending if entry not in ready]
            for _, _, finish in ready:
                finish()

    # Page-locked memory

    def lock(self, address: int, num_bytes: int, owner: Any = None) -> None:
        self._locked.append((address, address + num_bytes, owner))

    def unlock(self, address: int) -> None:
        self._locked = [entry for entry in self._locked if entry[0] != address]

    def is_locked(self, tensor: Tensor) -> bool:
        start = tensor.data_ptr()
        return any(first <= start < last for first, last, _ in self._locked)

    # Operations

    def compute(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of `second_device._compute`, after a check that the operation is allowed here and now."""
        if operation.is_view:
            return self._compute(operation, *args, **kwargs)
        with self._lock:
            return self._counted(operation, args, kwargs)

    def _counted(self, operation: Any, args: Any, kwargs: Any) -> Any:
        stream = self.stream
        if self._recorded is not None and stream is self._recorded.stream:  # nothing is done, as far as anybody knows
            results = self._compute(operation, *args, **kwargs)
            # The addresses alone: the tensors themselves may be given others, and come back.
            self._recorded.operations.append(_pytree.tree_map(address_only, (operation, args, kwargs, results)))
            self._cross(
                operation, dict(zip(which_are_written(operation), args, strict=False)) | kwargs, results, stream
            )
            return results
        stream.given += 1
        self.log.append((threading.current_thread().name, operation, stream))
        writes = which_are_written(operation)
        arguments = dict(zip(writes, args, strict=False)) | kwargs
        written: list[Tensor] = []
        read: list[Tensor] = []
        for name, value in arguments.items():
            (written if writes[name] else read).extend(tensors_in(value))
        for tensor in read:
            self._read(tensor, stream, operation)
        for tensor in written:
            self._write(tensor, stream, operation)
        results = self._compute(operation, *args, **kwargs)
        for tensor in tensors_in(results):
            if isinstance(tensor, SecondTensor) and not any(tensor is other for other in written):
                self._accesses[address_of(tensor)] = Access((stream, stream.given))  # new memory
        self._cross(operation, arguments, results, stream)
        return results

    def _known(self, stream: Stream, other: Stream, count: int) -> bool:
        return stream is other or max(stream.known.get(other, 0), self.over.get(other, 0)) >= count

    def _read(self, tensor: Tensor, stream: Stream, what: Any) -> None:
        access = self._accesses.setdefault(address_of(tensor), Access())
        if isinstance(tensor, SecondTensor):
            if access.writer is not None and not self._known(stream, *access.writer):
                raise RaceError(f"{what} in {stream} reads what {access.writer[0]} may not have written yet")
            access.readers[stream] = stream.given

    def _write(self, tensor: Tensor, stream: Stream, what: Any) -> None:
        access = self._accesses.setdefault(address_of(tensor), Access())
        if isinstance(tensor, SecondTensor):
            for other, count in (*access.readers.items(), *([access.writer] if access.writer else [])):
                if not self._known(stream, other, count):
                    raise RaceError(f"{what} in {stream} writes what {other} may still be using")
            self._accesses[address_of(tensor)] = Access((stream, stream.given))

    def wrote(self, tensor: Tensor) -> None:
        """A replay has put its result where the recording had it."""
        self._write(tensor, self.stream, "a replay")

    def _cross(self, operation: Any, arguments: dict[str, Any], results: Any, stream: Stream) -> None:
        """The effects of a copy between the devices on the host."""
        if tells_the_host(operation, arguments, results):
            stream.synchronize()
        if operation not in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default):
            return
        source = arguments.get("src", arguments["self"])
        target = arguments["self"] if "src" in arguments else results
        if isinstance(source, SecondTensor) == isinstance(target, SecondTensor):
            return
        host = target if isinstance(source, SecondTensor) else source
        is_asynchronous = arguments.get("non_blocking", False) and self.is_locked(host)
        if not is_asynchronous:
            if isinstance(source, SecondTensor) or not arguments.get("non_blocking", False):
                stream.synchronize()  # memory that may move is copied by the host, or by way of a buffer
            return
        if self._recorded is not None and stream is self._recorded.stream:
            return  # it is a replay that copies
        if host is target:
            self._pending.append((stream, stream.given, fill_later(target)))
        else:
            self._pending.append((stream, stream.given, still_equal(source)))


def tells_the_host(operation: Any, arguments: dict[str, Any], results: Any) -> bool:
    """Whether the host must know a tensor's contents: a number, a truth value, or how many elements are selected."""
    packet = operation.overloadpacket
    if packet in SIZED_BY_CONTENTS or packet is torch.ops.aten._local_scalar_dense:
        return True
    if packet in INDEXING:  # a mask is made a list of places first
        return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in arguments["indices"])
    is_told = isinstance(results, (bool, int, float))
    return is_told and operation not in second_device._ABOUT_TENSORS and any_is_there(arguments)


def any_is_there(arguments: dict[str, Any]) -> bool:
    return any(isinstance(tensor, SecondTensor) for value in arguments.values() for tensor in tensors_in(value))


ATEN = torch.ops.aten
SIZED_BY_CONTENTS = {ATEN.nonzero, ATEN.masked_select, ATEN._unique2, ATEN.unique_dim, ATEN.repeat_interleave}
INDEXING = {ATEN.index, ATEN.index_put, ATEN.index_put_, ATEN._index_put_impl_}


@cache
def which_are_written(operation: Any) -> dict[str, bool]:
    """The arguments of an operation by name, and whether it writes them."""
    return {
        argument.name: argument.alias_info is not None and argument.alias_info.is_write
        for argument in operation._schema.arguments
    }


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return [value] if isinstance(value, Tensor) else []


def address_only(value: Any) -> Any:
    return SecondTensor(value.hidden) if isinstance(value, SecondTensor) else value


def address_of(tensor: Tensor) -> int:
    hidden = tensor.hidden if isinstance(tensor, SecondTensor) else tensor
    return hidden.untyped_storage().data_ptr()


def fill_later(target: Tensor) -> Any:
    """Fill the target with nonsense; returns a function that makes it right."""
    values = target.clone()
    target.fill_(float("nan") if target.is_floating_point() else 1 if target.dtype == torch.bool else 99)
    return lambda: target.copy_(values)


def still_equal(source: Tensor) -> Any:
    values = source.clone()

    def look() -> None:
        if not torch.equal(values, source):
            raise RaceError("page-locked memory was written while a copy was reading it")

    return look


class FakeAccelerator(Accelerator):
    """The simulated device, as the library asks for it."""

    is_asynchronous = True

    def __init__(self, device: torch.device, machine: Machine) -> None:
        super().__init__(device)
        self._machine, self.alignment = machine, machine.alignment

    def selected(self) -> Any:
        return self._machine.selected()

    def stream(self) -> Stream:
        self._machine.streams.append(Stream(self._machine, f"stream {len(self._machine.streams)}"))
        return self._machine.streams[-1]

    def current_stream(self) -> Stream:
        return self._machine.stream

    def using(self, stream: Stream) -> Any:
        return self._machine.using(stream)

    def timing_event(self) -> Event:
        return Event()

    def wait(self) -> None:
        self._machine.stream.synchronize()

    def graph(self) -> Graph:
        return Graph()

    def graph_pool(self) -> str:
        return "a pool"

    def recording(self, graph: Graph, *, pool: Any, stream: Stream) -> Any:
        return self._machine.recording(graph, stream)

    @contextlib.contextmanager
    def telling_of_waits(self) -> Iterator[None]:
        self._machine.tells_of_waits = True
        yield
        self._machine.tells_of_waits = False

    def page_locked(self, tensor: Tensor) -> Tensor:
        copied = tensor.clone()
        self._machine.lock(copied.data_ptr(), copied.nbytes, copied)  # kept: another must not get its address
        return copied

    def is_page_locked(self, tensor: Tensor) -> bool:
        return self._machine.is_locked(tensor)

    def lock_pages(self, address: int, num_bytes: int) -> int:
        self._machine.lock(address, num_bytes)
        return 0

    def unlock_pages(self, address: int) -> int:
        self._machine.unlock(address)
        return 0


@contextlib.contextmanager
def pretended_accelerator() -> Iterator[Machine]:
    """Within this context, the second device looks asynchronous to the library."""
    device = torch.device(second_device.register())
    machine = Machine(device)
    compute, backward, kinds = second_device._compute, Tensor.backward, dict(devices.KINDS)
    second_device._compute = machine.compute

    def in_this_thread(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        # As on CUDA, gradients are computed in the streams of what they are of; torch's own threads know none of them.
        with torch.autograd.set_multithreading_enabled(False):
            backward(tensor, *args, **kwargs)

    Tensor.backward = in_this_thread  # type: ignore[method-assign, assignment]
    devices.KINDS[device.type] = lambda device: FakeAccelerator(device, machine)
    try:
        yield machine
    finally:
        second_device._compute, Tensor.backward = compute, backward  # type: ignore[method-assign]
        devices.KINDS.clear()
        devices.KINDS.update(kinds)
