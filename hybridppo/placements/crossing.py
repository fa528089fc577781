"""Copies between devices, counted and timed."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.errors import DeviceError, shown
from hybridppo.system.accelerator import accelerator_of, current_cuda_index, num_cuda_devices

_COUNTING = Lock()


@dataclass
class Counters:
    """The copies between devices since the placement was made."""

    publishes: int = 0
    """Copies of the actor's parameters to the sampling device."""
    bytes_copied: int = 0
    """The bytes of parameters, rollouts and single observations, in either direction."""
    seconds_copying: float = 0.0
    """The seconds of all copies: of the host, or of the GPU if a GPU copies."""
    seconds_crossing: float = 0.0
    """The seconds of copies within rollouts, of single observations and the actor's outputs."""

    def add(self, *, num_bytes: int, seconds: float, within_rollout: bool = False, publishes: int = 0) -> None:
        """Count a copy. The threads of sampler and learner may count at the same time."""
        with _COUNTING:
            self.publishes += publishes
            self.bytes_copied += num_bytes
            self.seconds_copying += seconds
            if within_rollout:
                self.seconds_crossing += seconds

    @property
    def seconds_between_rollouts(self) -> float:
        """The seconds of publishes and of copies of rollouts to the learner."""
        return self.seconds_copying - self.seconds_crossing


def available_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it; "cuda" becomes the current CUDA device with its number, and "cpu:0" the CPU.

    A tensor on `cuda` has the device `cuda:0`, and one on `cpu:0` has the device `cpu`. Such names are not equal, and
    devices are compared with those of tensors.

    Raises:
        DeviceError: if the machine does not have it, with the remedy; no other device is used instead.
    """
    try:
        resolved = torch.device(device)
    except (RuntimeError, ValueError, TypeError) as error:  # no name, too large a number, or neither
        raise DeviceError(f"{shown(device)} is no device: write cpu, cuda or cuda:0") from error
    if resolved.type == "cuda":
        count = num_cuda_devices()
        if count == 0:
            raise DeviceError(
                f"device {str(resolved)!r} was asked for, but torch {torch.__version__} sees no CUDA device: "
                "use placement 'cpu', or install a CUDA build of torch and check `nvidia-smi`"
            )
        index: int | None = resolved.index  # torch's documentation says it is never None
        if index is None:
            return torch.device("cuda", current_cuda_index())
        if index >= count:
            raise DeviceError(
                f"device {str(resolved)!r} was asked for, but this machine has {count} "
                f"CUDA device(s): use cuda:0 to cuda:{count - 1}"
            )
    elif resolved.type == "cpu":
        return torch.device("cpu")
    else:
        _require_available(resolved)
    return resolved


def _require_available(device: torch.device) -> None:
    """Refuse a device that is neither CPU nor CUDA if torch has no module for it, or the module finds none."""
    try:
        module = torch.get_device_module(device)
        count = module.device_count() if module.is_available() else 0
    except (RuntimeError, AttributeError):  # a name without a module, or with one that has no devices
        count = 0
    if count == 0:
        raise DeviceError(
            f"device {str(device)!r} was asked for, but torch {torch.__version__} sees no device of type "
            f"{device.type!r}: use placement 'cpu', or install what brings it to torch"
        )
    if device.index is not None and device.index >= count:
        raise DeviceError(
            f"device {str(device)!r} was asked for, but this machine has {count} device(s) of type {device.type!r}: "
            f"use {device.type}:0 to {device.type}:{count - 1}"
        )


def wait_for(*devices: torch.device) -> None:
    """Wait until the devices have done the work of this thread."""
    for device in devices:
        accelerator_of(device).wait()


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. A host tensor is copied from page-locked memory, so that nothing waits for the copy.

    The tensor must not change before the device has made the copy.
    """
    accelerator = accelerator_of(device)
    if accelerator.is_asynchronous and tensor.device.type == "cpu" and not accelerator.is_page_locked(tensor):
        tensor = accelerator.page_locked(tensor)
    return tensor.to(device, non_blocking=True)


class CopyTimer:
    """Measures the copies within a context, which are finished at its end.

    On a GPU, the time is that between two events in its stream. It excludes earlier work of the GPU, although the host
    waits for that, too.

    Args:
        devices: the devices of the copies.
        waits: whether the end of the context waits for the copies. If not, read `seconds` after something else has
            waited.
    """

    def __init__(self, *devices: torch.device, waits: bool = True) -> None:
        self._seconds = 0.0
        self._devices, self._waits = devices, waits
        accelerators = map(accelerator_of, devices)
        self._gpu = next((accelerator for accelerator in accelerators if accelerator.is_asynchronous), None)

    @property
    def seconds(self) -> float:
        """The seconds of the copies; the device must have made them."""
        return self._seconds if self._gpu is None else 1e-3 * self._begun.elapsed_time(self._ended)

    def __enter__(self) -> "CopyTimer":
        if self._gpu is None:
            self._start = time.perf_counter()
        else:
            self._begun, self._ended = self._gpu.timing_event(), self._gpu.timing_event()
            self._begun.record(self._gpu.current_stream())
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None:  # a device that has failed would raise a second error
            return
        if self._gpu is not None:
            self._ended.record(self._gpu.current_stream())
        if self._waits:
            wait_for(*self._devices)
        if self._gpu is None:
            self._seconds = time.perf_counter() - self._start


class Crossing:
    """Copies host arrays to one device and back, and counts them. On the CPU, both directions are views."""

    def __init__(self, device: torch.device, counters: Counters) -> None:
        self._device = device
        self._counters = counters
        self._stream: Any = None
        self.takes_tensors = False
        """Whether actors are called with tensors on the device, so that nothing is copied."""
        self._kept: dict[int, Tensor] | None = None

    def use_a_stream_of_its_own(self) -> None:
        """From now on, use a separate stream within `queue`, so that its work waits for no other work on the device."""
        self._stream = accelerator_of(self._device).stream()

    def queue(self) -> AbstractContextManager[Any]:
        """A context in which this thread uses the stream of this object."""
        return nullcontext() if self._stream is None else accelerator_of(self._device).using(self._stream)

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor on the device."""
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else self._counted(lambda: tensor.to(self._device))

    def to_host(self, tensor: Tensor) -> NDArray[Any]:
        """The tensor as an array on the host."""
        if self._device.type == "cpu":
            return tensor.numpy()
        wait_for(self._device)  # computing the array is not part of the copy
        return self._counted(tensor.cpu).numpy()

    def _counted(self, copy: Callable[[], Tensor]) -> Tensor:
        """The result of a copy."""
        start = time.perf_counter()
        copied = copy()
        self._count(copied.nbytes, time.perf_counter() - start)
        return copied

    def _count(self, num_bytes: int, seconds: float) -> None:
        self._counters.add(num_bytes=num_bytes, seconds=seconds, within_rollout=True)

    def through(self, compute: Callable[[Tensor], Tensor], observations: NDArray[Any], into: Tensor | None) -> Tensor:
        """Copy observations to the device, and copy the outputs of `compute` back. The host waits once.

        Args:
            compute: from observations on the device to the actor's outputs there.
            observations: `[N, obs]`.
            into: the result of the last call, which is overwritten if its shape fits; else None.
        """
        rows = torch.from_numpy(observations)
        if self._device.type == "cpu":
            return compute(rows)
        with CopyTimer(self._device, waits=False) as there:
            moved = rows.to(self._device, non_blocking=True)
        if self._kept is not None:
            self._kept[rows.data_ptr()] = moved
        outputs = compute(moved)
        if into is None or into.shape != outputs.shape:
            into = accelerator_of(self._device).page_locked(torch.empty(outputs.shape, dtype=outputs.dtype))
        with CopyTimer(self._device) as back:
            into.copy_(outputs, non_blocking=True)
        self._count(moved.nbytes + outputs.nbytes, there.seconds + back.seconds)
        return into

    def keep(self, keeps: bool) -> None:
        """Whether to keep the observations of later calls on the device, for `kept`; earlier ones are dropped."""
        self._kept = {} if keeps and self._device.type != "cpu" else None

    def kept(self, rows: Tensor) -> list[Tensor]:
        """The first of some rows on the device, as far as an actor got them there."""
        found: list[Tensor] = []
        if self._kept and rows.device.type == "cpu" and len(rows):
            step = rows.stride(0) * rows.itemsize
            while len(found) < len(rows):
                row = self._kept.get(rows.data_ptr() + len(found) * step)
                if row is None or row.shape != rows.shape[1:]:
                    break
                found.append(row)
        return found
