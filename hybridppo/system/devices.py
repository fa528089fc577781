"""The functions of torch that only GPUs have: streams, events, graphs, page-locked memory, memory statistics.

    accelerator = accelerator_of(torch.device("cuda:1"))
    with accelerator.selected():
        stream = accelerator.stream()

No other file names `torch.cuda`, so that a test can replace it (`KINDS`). The file is thin on purpose: a method of
`Cuda` is one call of torch for one device. If the call would use the current device, the method selects the device
first. The base class is the CPU, which does nothing asynchronously.
"""

import logging
import mmap
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.errors import DeviceError

logger = logging.getLogger(__name__)
WARMUPS = 3
"""Runs before a recording, because first calls allocate memory."""
Record = Callable[[Callable[[], None]], Callable[[], object]]
"""Turns a function of tensors at fixed addresses into a faster function that replays it."""
Recording = TypeVar("Recording")


class Accelerator:
    """One device. The base class is the CPU, where everything is done when a call returns.

    It is also for devices of other kinds, of which nothing is known but that torch can wait for them. Streams, events
    and graphs are torch's objects.
    """

    is_asynchronous = False
    """Whether the device has queues that the host may have to wait for."""
    alignment = 1
    """Tensors in one buffer should begin at multiples of this number of float32 numbers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def selected(self) -> AbstractContextManager[Any]:
        """A context in which this is the current device, which torch uses by default."""
        return nullcontext()

    def stream(self) -> Any:
        """A new queue, beside the current one."""
        return None

    def current_stream(self) -> Any:
        """The queue of this thread's operations."""
        return None

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which this thread's operations go to the stream."""
        return nullcontext()

    def wait(self) -> None:
        """Wait until the device has finished this thread's current stream."""
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize()

    def page_locked(self, tensor: Tensor) -> Tensor:
        """A copy in page-locked memory; copies from and to it need no wait. On the CPU, the tensor itself."""
        return tensor

    def is_page_locked(self, tensor: Tensor) -> bool:
        """Whether a tensor of the host is in page-locked memory."""
        return False

    def lock_pages(self, address: int, num_bytes: int) -> int:
        """Lock existing memory; return an error number, or 0."""
        return 0

    def unlock_pages(self, address: int) -> int:
        """Unlock memory; return an error number, or 0."""
        return 0

    def supports_bf16(self) -> bool:
        """Whether the hardware supports bfloat16 products."""
        is_cpu = self._device.type == "cpu"
        return is_cpu and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())

    def supports_tf32(self) -> bool:
        """Whether the hardware supports TF32 products."""
        return False


class Cuda(Accelerator):
    """A CUDA device, by `torch.cuda`. Only such a device has events and graphs."""

    is_asynchronous = True
    alignment = 4  # 16 bytes: cuBLAS needs this alignment to use tensor cores

    def selected(self) -> AbstractContextManager[Any]:  # noqa: D102 - as in the base, like all below
        return torch.cuda.device(self._device)

    def stream(self) -> Any:  # noqa: D102
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def current_stream(self) -> Any:  # noqa: D102
        return torch.cuda.current_stream(self._device)

    def using(self, stream: Any) -> AbstractContextManager[Any]:  # noqa: D102
        return torch.cuda.stream(stream)

    def timing_event(self) -> Any:
        """An event that records when the device reached it."""
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def wait(self) -> None:  # noqa: D102
        torch.cuda.current_stream(self._device).synchronize()

    def graph(self) -> Any:
        """An empty graph of operations, to be recorded and replayed."""
        return torch.cuda.CUDAGraph()

    def graph_pool(self) -> Any:
        """Memory for several graphs that are replayed one after another."""
        return torch.cuda.graph_pool_handle()

    def recording(self, graph: Any, *, pool: Any, stream: Any) -> AbstractContextManager[Any]:
        """A context in which this thread's operations on the device are recorded instead of run."""
        # "global", the default, forbids other threads to allocate, lock pages or wait, as a sampler may do meanwhile.
        return torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")

    def page_locked(self, tensor: Tensor) -> Tensor:  # noqa: D102
        with self.selected():
            return tensor.pin_memory()

    def is_page_locked(self, tensor: Tensor) -> bool:  # noqa: D102
        return tensor.is_pinned()

    def lock_pages(self, address: int, num_bytes: int) -> int:  # noqa: D102
        with self.selected():
            return int(torch.cuda.cudart().cudaHostRegister(address, num_bytes, 0))  # type: ignore[no-untyped-call]

    def unlock_pages(self, address: int) -> int:  # noqa: D102
        with self.selected():
            return int(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]

    def supports_bf16(self) -> bool:  # noqa: D102
        with self.selected():
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))

    def supports_tf32(self) -> bool:  # noqa: D102
        return torch.cuda.get_device_capability(self._device) >= (8, 0)


KINDS: dict[str, Callable[[torch.device], Accelerator]] = {"cuda": Cuda}
"""The class for each device type; `Accelerator` for all others."""


def accelerator_of(device: torch.device) -> Accelerator:
    """The `Accelerator` of a device."""
    return KINDS.get(device.type, Accelerator)(device)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """Send an array to a device without waiting for the copy; on the CPU, the array itself.

    It is copied to page-locked memory first, so the array can be overwritten at once. torch keeps that memory until the
    copy is over.
    """
    accelerator = accelerator_of(device)
    if not accelerator.is_asynchronous:
        return torch.as_tensor(array, device=device)
    host = accelerator.page_locked(torch.from_numpy(np.ascontiguousarray(array)))
    return torch.empty(host.shape, dtype=host.dtype, device=device).copy_(host, non_blocking=True)


class PageLock:
    """Keeps the pages of an array locked until closed.

    Args:
        array: a contiguous array; its memory must outlive the lock.
        accelerator: the device that copies from it.

    Raises:
        DeviceError: if the pages cannot be locked.
    """

    def __init__(self, array: NDArray[Any], accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._address = array.ctypes.data
        error = accelerator.lock_pages(self._address, array.nbytes)
        self._is_locked = error == 0
        if error:  # no slower run without a lock: the next CUDA call would report the error again
            raise DeviceError(
                f"rollouts ({array.nbytes / 1e6:.1f} MB) could not be locked in memory (CUDA error {error}): free "
                "memory, or lower num_envs or num_steps"
            )

    def close(self) -> None:
        """Unlock the pages; a second call does nothing."""
        if self._is_locked:
            self._is_locked = False
            error = self._accelerator.unlock_pages(self._address)
            if error:
                logger.warning("the memory of rollouts could not be unlocked (CUDA error %d)", error)


def page_locked_bytes(size: int, accelerator: Accelerator) -> NDArray[np.uint8]:
    """Page-locked memory of exactly `size` bytes, which is unlocked when nothing refers to it any more.

    torch allocates page-locked memory in powers of two, up to twice what a rollout needs.

    Raises:
        DeviceError: if the pages cannot be locked.
    """
    # From mmap, whose pages hold nothing else: no page may be locked twice.
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    weakref.finalize(memory, PageLock(memory, accelerator).close)
    return memory


def num_cuda_devices() -> int:
    """Number of CUDA devices. The call does not initialise CUDA: a process that has done so cannot be forked."""
    return torch.cuda.device_count()


def is_cuda_awake() -> bool:
    """Whether this process has initialised CUDA, which takes a second or more."""
    return torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def current_cuda_index() -> int:
    """Index of the device "cuda". The call does not initialise CUDA: before that, the index is 0."""
    return torch.cuda.current_device() if is_cuda_awake() else 0


def described_cuda_devices() -> list[dict[str, Any]]:
    """Name, memory and compute capability of each CUDA device, for reports."""
    found = []
    for index in range(num_cuda_devices()):
        properties = torch.cuda.get_device_properties(index)
        generation = f"{properties.major}.{properties.minor}"
        found.append({"name": properties.name, "bytes": properties.total_memory, "compute_capability": generation})
    return found


class GraphRecorder:
    """Records repeated operations as CUDA graphs, in one stream, on one device, in one pool of memory.

    The graphs are replayed one after another.
    Warm-up runs use the stream of the recordings, because first calls allocate memory for a stream (the workspaces of
    cuBLAS, 32 MiB each on Hopper), which must not be recorded.

    Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        with accelerator.selected():
            self._stream, self._pool = accelerator.stream(), accelerator.graph_pool()

    def __call__(self, function: Callable[[], None]) -> Callable[[], object]:
        """Run the function a few times, then record it."""
        accelerator, stream = self._accelerator, self._stream
        with accelerator.selected():  # else torch would record on the first device
            stream.wait_stream(accelerator.current_stream())
            with accelerator.using(stream):
                for _ in range(WARMUPS):
                    function()
            accelerator.current_stream().wait_stream(stream)
            graph = accelerator.graph()
            with accelerator.recording(graph, pool=self._pool, stream=stream):
                function()
        return graph.replay


def tried(
    record: Callable[[], Recording],
    replay: Callable[[Recording], object],
    check: Callable[[], None],
    changed: Sequence[Tensor],
) -> Recording:
    """Record, check one replay, and undo the changes of both; return the recording.

    A graph recorded on the wrong device or stream is empty, and its replay does nothing without an error.

    Args:
        record: makes the recording.
        replay: replays a recording.
        check: raises an error if the replay did not do its work.
        changed: all tensors that a replay changes and that later work depends on.
    """
    before = [tensor.clone() for tensor in changed]

    def put_back() -> None:
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)

    try:
        recording = record()
        put_back()
        replay(recording)
        check()
    finally:
        put_back()
    return recording
