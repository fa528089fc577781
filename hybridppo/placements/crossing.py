"""What crosses between devices, counted and timed."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.errors import DeviceError


@dataclass
class Counters:
    """What crossed between devices since the placement was made."""

    publishes: int = 0
    """Copies of the actor's parameters towards the sampling device."""
    bytes_copied: int = 0
    """Parameters, rollouts and single observations, in either direction."""
    seconds_copying: float = 0.0
    """Spent on it: the host's, or the GPU's where a GPU copies."""
    seconds_crossing: float = 0.0
    """Of these, on single observations and what the actor makes of them: within a rollout."""

    @property
    def seconds_between_rollouts(self) -> float:
        """The rest: publishing and bringing rollouts to the learner."""
        return self.seconds_copying - self.seconds_crossing


def available_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it.

    Raises:
        DeviceError: where it has not, with the remedy; never another device instead.
    """
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"{device!r} is no device: write cpu, cuda or cuda:0") from error
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError(
                f"device {str(resolved)!r} was asked for, but torch {torch.__version__} sees no CUDA device: "
                "use placement 'cpu', or install a CUDA build of torch and check `nvidia-smi`"
            )
        if resolved.index is not None and resolved.index >= torch.cuda.device_count():
            raise DeviceError(
                f"device {str(resolved)!r} was asked for, but this machine has {torch.cuda.device_count()} "
                f"CUDA device(s): use cuda:0 to cuda:{torch.cuda.device_count() - 1}"
            )
    elif resolved.type != "cpu":
        _require_available(resolved)
    return resolved


def _require_available(device: torch.device) -> None:
    """Refuse a device of another kind than CPU and CUDA where torch has no module for it, or that sees none."""
    try:
        module = torch.get_device_module(device)
        count = module.device_count() if module.is_available() else 0
    except (RuntimeError, AttributeError):  # a name without a module, or with one that knows nothing of devices
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
    """Block the host until the devices have done what they were given."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        elif device.type != "cpu":
            torch.get_device_module(device).synchronize()


class CopyTimer:
    """Seconds of the copies within it, which are over when it ends.

    On a GPU they are those between two events in its stream: what the GPU still had to do before is not theirs, though
    the host waits for it too.
    """

    def __init__(self, *devices: torch.device) -> None:
        self.seconds = 0.0
        self._devices = devices
        self._gpu = next((device for device in devices if device.type == "cuda"), None)

    def __enter__(self) -> "CopyTimer":
        if self._gpu is None:
            self._start = time.perf_counter()
        else:
            self._begun, self._ended = _timing_event(), _timing_event()
            self._begun.record(torch.cuda.current_stream(self._gpu))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._gpu is None:
            wait_for(*self._devices)
            self.seconds = time.perf_counter() - self._start
            return
        self._ended.record(torch.cuda.current_stream(self._gpu))
        wait_for(*self._devices)
        self.seconds = 1e-3 * self._begun.elapsed_time(self._ended)


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Crossing:
    """Host arrays to one device and back, counted. On the CPU both ways are views."""

    def __init__(self, device: torch.device, counters: Counters) -> None:
        self._device = device
        self._counters = counters

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor on the device."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        start = time.perf_counter()
        tensor = tensor.to(self._device)
        self._count(tensor.nbytes, start)
        return tensor

    def to_host(self, tensor: Tensor) -> NDArray[Any]:
        """The tensor as an array on the host."""
        if self._device.type == "cpu":
            return tensor.numpy()
        wait_for(self._device)  # the host needs the result: computing it is not the crossing's time
        start = time.perf_counter()
        array = tensor.cpu().numpy()
        self._count(tensor.nbytes, start)
        return array

    def _count(self, num_bytes: int, start: float) -> None:
        seconds = time.perf_counter() - start
        self._counters.bytes_copied += num_bytes
        self._counters.seconds_copying += seconds
        self._counters.seconds_crossing += seconds
