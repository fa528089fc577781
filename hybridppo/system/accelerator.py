"""What torch offers only where there is a GPU: streams, events, graphs, page-locked memory, figures of memory.

    accelerator = accelerator_of(torch.device("cuda:1"))
    with accelerator.selected():
        stream = accelerator.stream()

Nothing else in the library names `torch.cuda`, so that a test can put something else in its place (`KINDS`). Thin on
purpose: a method of `Cuda` is one call of torch's, for one device, with that device selected where torch would ask the
current one. `Host` is the CPU, where nothing is asynchronous and there is nothing to wait for.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Accelerator(Protocol):
    """One device, as far as it differs from the CPU. Streams, events and graphs are torch's own objects."""

    is_asynchronous: bool
    """Whether the device has queues, which the host may have to wait for."""
    alignment: int
    """At multiples of how many numbers of float32 the tensors of one buffer should begin."""

    def selected(self) -> AbstractContextManager[Any]:
        """Within it, it is the current device, which torch takes where none is named."""
        ...

    def stream(self) -> Any:
        """A queue of its own, beside the current one."""
        ...

    def current_stream(self) -> Any:
        """The queue that this thread's operations go to."""
        ...

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        """Within it, this thread's operations go to the stream."""
        ...

    def timing_event(self) -> Any:
        """An event that remembers when the device came to it."""
        ...

    def wait(self) -> None:
        """Wait until the device has done what is in this thread's current stream."""
        ...

    def graph(self) -> Any:
        """An empty graph of operations, to be recorded and replayed."""
        ...

    def graph_pool(self) -> Any:
        """Memory for several graphs that are replayed one after another."""
        ...

    def recording(self, graph: Any, *, pool: Any, stream: Any) -> AbstractContextManager[Any]:
        """Within it, what this thread gives the device is not done, but recorded."""
        ...

    def page_locked(self, tensor: Tensor) -> Tensor:
        """A copy in memory that the system may not move, from and to which copies need not be waited for."""
        ...

    def is_page_locked(self, tensor: Tensor) -> bool:
        """Whether a tensor of the host lies in such memory."""
        ...

    def lock_pages(self, address: int, num_bytes: int) -> int:
        """Lock memory that is there already; the number of an error, or 0."""
        ...

    def unlock_pages(self, address: int) -> int:
        """Unlock it; the number of an error, or 0."""
        ...

    def memory_allocated(self) -> int:
        """Bytes of the device's memory that tensors occupy."""
        ...

    def memory_free(self) -> int | None:
        """Bytes of the device's memory that nobody occupies; None where nobody says."""
        ...

    def telling_of_waits(self) -> AbstractContextManager[Any]:
        """Within it, whatever of torch's operations makes the host wait for the device warns of it."""
        ...

    def supports_bf16(self) -> bool:
        """Whether it is made for products in bfloat16."""
        ...

    def supports_tf32(self) -> bool:
        """Whether it is made for products in TF32."""
        ...


class Host:
    """The CPU: everything is done when the call returns."""

    is_asynchronous = False
    alignment = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def selected(self) -> AbstractContextManager[Any]:  # noqa: D102 - as in the protocol, like all below
        return nullcontext()

    def stream(self) -> Any:  # noqa: D102
        return None

    def current_stream(self) -> Any:  # noqa: D102
        return None

    def using(self, stream: Any) -> AbstractContextManager[Any]:  # noqa: D102
        return nullcontext()

    def timing_event(self) -> Any:  # noqa: D102
        raise NotImplementedError(f"{self._device} has no events: the host's clock says how long it takes")

    def wait(self) -> None:  # noqa: D102
        return

    def graph(self) -> Any:  # noqa: D102
        raise NotImplementedError(f"{self._device} records no graphs")

    def graph_pool(self) -> Any:  # noqa: D102
        raise NotImplementedError(f"{self._device} records no graphs")

    def recording(self, graph: Any, *, pool: Any, stream: Any) -> AbstractContextManager[Any]:  # noqa: D102
        raise NotImplementedError(f"{self._device} records no graphs")

    def page_locked(self, tensor: Tensor) -> Tensor:  # noqa: D102
        return tensor

    def is_page_locked(self, tensor: Tensor) -> bool:  # noqa: D102
        return False

    def lock_pages(self, address: int, num_bytes: int) -> int:  # noqa: D102
        return 0

    def unlock_pages(self, address: int) -> int:  # noqa: D102
        return 0

    def memory_allocated(self) -> int:  # noqa: D102
        return 0

    def memory_free(self) -> int | None:  # noqa: D102
        return None

    def telling_of_waits(self) -> AbstractContextManager[Any]:  # noqa: D102
        return nullcontext()

    def supports_bf16(self) -> bool:  # noqa: D102
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())

    def supports_tf32(self) -> bool:  # noqa: D102
        return False


class Other(Host):
    """A device of another kind, of which no more is known than that torch can wait for it."""

    def wait(self) -> None:  # noqa: D102
        torch.get_device_module(self._device).synchronize()

    def supports_bf16(self) -> bool:  # noqa: D102
        return False


class Cuda:
    """A CUDA device, by `torch.cuda`."""

    is_asynchronous = True
    alignment = 4  # 16 bytes: what cuBLAS asks of a matrix that tensor cores are to multiply

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def selected(self) -> AbstractContextManager[Any]:  # noqa: D102 - as in the protocol, like all below
        return torch.cuda.device(self._device)

    def stream(self) -> Any:  # noqa: D102
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def current_stream(self) -> Any:  # noqa: D102
        return torch.cuda.current_stream(self._device)

    def using(self, stream: Any) -> AbstractContextManager[Any]:  # noqa: D102
        return torch.cuda.stream(stream)

    def timing_event(self) -> Any:  # noqa: D102
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def wait(self) -> None:  # noqa: D102
        torch.cuda.current_stream(self._device).synchronize()

    def graph(self) -> Any:  # noqa: D102
        return torch.cuda.CUDAGraph()

    def graph_pool(self) -> Any:  # noqa: D102
        return torch.cuda.graph_pool_handle()

    def recording(self, graph: Any, *, pool: Any, stream: Any) -> AbstractContextManager[Any]:  # noqa: D102
        # "global", the default, forbids other threads what a sampler may do meanwhile: allocate, lock pages, wait.
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

    def memory_allocated(self) -> int:  # noqa: D102
        return torch.cuda.memory_allocated(self._device)

    def memory_free(self) -> int | None:  # noqa: D102
        # What torch keeps for tensors to come counts as taken with the driver.
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(torch.cuda.mem_get_info(self._device)[0]) + kept

    @contextmanager
    def telling_of_waits(self) -> Iterator[None]:  # noqa: D102
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def supports_bf16(self) -> bool:  # noqa: D102
        with self.selected():
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))

    def supports_tf32(self) -> bool:  # noqa: D102
        return torch.cuda.get_device_capability(self._device) >= (8, 0)


KINDS: dict[str, Callable[[torch.device], Accelerator]] = {"cpu": Host, "cuda": Cuda}
"""What stands for the devices of a type; `Other` where there is nothing."""


def accelerator_of(device: torch.device) -> Accelerator:
    """What the device offers beyond the CPU."""
    return KINDS.get(device.type, Other)(device)


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on a device, by a copy that nobody waits for; on the CPU, itself.

    It is copied to page-locked memory first, so it may be written again at once. torch keeps that memory until the copy
    is over, whoever lets go of it before.
    """
    accelerator = accelerator_of(device)
    if not accelerator.is_asynchronous:
        return torch.as_tensor(array, device=device)
    host = accelerator.page_locked(torch.from_numpy(np.ascontiguousarray(array)))
    return torch.empty(host.shape, dtype=host.dtype, device=device).copy_(host, non_blocking=True)


def num_cuda_devices() -> int:
    """How many CUDA devices torch sees. Asking does not wake CUDA: a process that is awake cannot be forked."""
    return torch.cuda.device_count()


def is_cuda_awake() -> bool:
    """Whether this process has used CUDA already, which takes a second or more the first time."""
    return torch.cuda.is_initialized()  # type: ignore[no-untyped-call, no-any-return]


def current_cuda_index() -> int:
    """Which CUDA device "cuda" means. Asking does not wake CUDA: a process that has not used it is at the first."""
    return torch.cuda.current_device() if is_cuda_awake() else 0


def described_cuda_devices() -> list[dict[str, Any]]:
    """Name, memory and generation of each CUDA device, for whoever reports figures."""
    found = []
    for index in range(num_cuda_devices()):
        properties = torch.cuda.get_device_properties(index)
        generation = f"{properties.major}.{properties.minor}"
        found.append({"name": properties.name, "bytes": properties.total_memory, "compute_capability": generation})
    return found
