"""Copies between two devices, counted and timed, and the actors that sample by them.

Only the actor ever crosses: sampling needs nothing else. Every crossing is counted in `Placement.counters`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.errors import DeviceError, shown
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.actors import Network, PoliciesActor, arrays_of, exploring_actor_of, twin_of
from hybridppo.networks.numpy_actors import NumpyPoliciesActor
from hybridppo.networks.recurrent import cell_of
from hybridppo.system.devices import accelerator_of, current_cuda_index, num_cuda_devices

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
    if resolved.type == "cpu":
        return torch.device("cpu")
    is_cuda = resolved.type == "cuda"
    count = num_cuda_devices() if is_cuda else _num_devices(resolved)
    kind = "CUDA device" if is_cuda else f"device of type {resolved.type!r}"
    if count == 0:
        remedy = "a CUDA build of torch and check `nvidia-smi`" if is_cuda else "what brings it to torch"
        what = f"device {str(resolved)!r} was asked for, but torch {torch.__version__} sees no {kind}"
        raise DeviceError(f"{what}: use placement 'cpu', or install {remedy}")
    index: int | None = resolved.index  # torch's documentation says it is never None
    if index is not None and index >= count:
        raise DeviceError(
            f"device {str(resolved)!r} was asked for, but this machine has {count} of this type: use {resolved.type}:0 "
            f"to {resolved.type}:{count - 1}"
        )
    return torch.device("cuda", current_cuda_index()) if is_cuda and index is None else resolved


def _num_devices(device: torch.device) -> int:
    """The number of devices of a type other than CUDA; 0 if torch has no module for it."""
    try:
        module = torch.get_device_module(device)
        return int(module.device_count()) if module.is_available() else 0
    except (RuntimeError, AttributeError):  # a name without a module, or with one that has no devices
        return 0


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

    On a GPU, the time is that between two events in its stream. It excludes earlier work in that stream, although the
    host waits for that, too. The host does not wait for other streams.

    Args:
        devices: the devices of the copies.
        waits: whether the end of the context waits for the copies. If not, read `seconds` after something else has
            waited.
    """

    def __init__(self, *devices: torch.device, waits: bool = True) -> None:
        self._seconds = 0.0
        self._waits = waits
        gpu = next((device for device in devices if accelerator_of(device).is_asynchronous), None)
        self._gpu: Any = None if gpu is None else accelerator_of(gpu)
        self._others = [device for device in devices if device != gpu]

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
                self._ended.synchronize()
        if self._waits:
            wait_for(*self._others)
        if self._gpu is None:
            self._seconds = time.perf_counter() - self._start


class Crossing:
    """Copies host arrays to one device and back, and counts them. On the CPU, both directions are views.

    On a GPU, copies use page-locked memory and wait for nothing; only `to_host` waits, for all of them.
    """

    def __init__(self, device: torch.device, counters: Counters) -> None:
        self._device = device
        self._counters = counters
        self._stream: Any = None
        self._under_way: list[tuple[CopyTimer, int]] = []
        """The copies since the last wait, and their bytes."""
        self.takes_tensors = False
        """Whether actors are called with tensors on the device, so that nothing is copied."""

    def use_a_stream_of_its_own(self) -> None:
        """From now on, use a separate stream within `queue`, so that its work waits for no other work on the device."""
        self._stream = accelerator_of(self._device).stream()

    def queue(self) -> AbstractContextManager[Any]:
        """A context in which this thread uses the stream of this object."""
        return nullcontext() if self._stream is None else accelerator_of(self._device).using(self._stream)

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor on the device. It must not change before the next `to_host`."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        with CopyTimer(self._device, waits=False) as timer:
            there = moved(tensor, self._device)
        self._under_way.append((timer, there.nbytes))
        return there

    def to_host(self, tensor: Tensor, into: Tensor | None = None) -> Tensor:
        """The tensor on the host, in the memory of `into` if its shape fits. The host waits once, for an event."""
        if self._device.type == "cpu":
            return tensor
        if into is None or into.shape != tensor.shape:
            into = accelerator_of(self._device).page_locked(torch.empty(tensor.shape, dtype=tensor.dtype))
        with CopyTimer(self._device) as timer:
            into.copy_(tensor, non_blocking=True)
        copies, self._under_way = [*self._under_way, (timer, tensor.nbytes)], []
        seconds = sum(timer.seconds for timer, _ in copies)
        self._counters.add(num_bytes=sum(size for _, size in copies), seconds=seconds, within_rollout=True)
        return into


def sampling_actor(network: nn.Module, crossing: Crossing, version: int) -> SamplingActor:
    """The fastest form of an actor, with its present parameters on their present device."""
    form = twin_of(network) if not crossing.takes_tensors else None
    if form is not None:
        arrays = arrays_of(network)
        if all(array.device.type == "cpu" for array in arrays):
            return form.actor([array.numpy() for array in arrays], version)
    if isinstance(network, PoliciesActor) and any(map(cell_of, network.actors)):
        return RememberingPolicies(network, crossing, version)
    return torch_actor(network, crossing, version)


def torch_actor(network: nn.Module, crossing: Crossing, version: int = 0) -> "TorchActor":
    """The torch form of an actor."""
    exploring = exploring_actor_of(network)
    if exploring is not None:
        return TorchExploringActor(network, crossing, version, exploring)
    cell = cell_of(network)
    if cell is None:
        return TorchActor(network, crossing, version)
    return TorchRecurrentActor(network, crossing, version, cell.state_size)


class TorchActor:
    """An actor of any torch module on any device; only `crossing` knows the device."""

    def __init__(self, network: nn.Module, crossing: Crossing, version: int = 0) -> None:
        self.version = version
        self._network = network
        self._crossing = crossing
        self._outputs: Tensor | None = None
        if network.training:  # a custom network may still be in train()
            network.eval()

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        return self._through(self._network, observations)

    def _through(self, compute: Callable[[Tensor], Tensor], observations: NDArray[Any]) -> NDArray[Any]:
        with self._crossing.queue():
            outputs = compute(self._crossing.to_device(observations))
            self._outputs = self._crossing.to_host(outputs, self._outputs)
            return self._outputs.numpy()

    @torch.no_grad()
    def on_device(self, observations: Tensor) -> Tensor:
        """`[N, obs] -> [N, outputs]` for tensors on the network's device, without copies."""
        with self._crossing.queue():
            return self._network(observations)

    def addresses(self) -> list[int]:
        """The addresses of the network's parameters and buffers."""
        return [tensor.data_ptr() for tensor in (*self._network.parameters(), *self._network.buffers())]


class RememberingPolicies(NumpyPoliciesActor):
    """The actors of several policies, some of them recurrent; also for tensors on their device."""

    def __init__(self, network: PoliciesActor, crossing: Crossing, version: int) -> None:
        actors = [sampling_actor(actor, crossing, version) for actor in network.actors]
        self._network, self._cells = network, [cell_of(actor) for actor in network.actors]
        state_sizes = [0 if cell is None else cell.state_size for cell in self._cells]
        super().__init__(actors, network.agents, network.layouts, state_sizes)
        self.version = version

    @torch.no_grad()
    def on_device_with(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """As `TorchRecurrentActor.on_device_with`; the state of a policy comes first in its rows, and then zeros."""
        network, states = self._network, torch.zeros_like(state)

        def act(number: int, rows: Tensor) -> Tensor:
            actor, cell = network.actors[number], self._cells[number]
            if cell is None:
                return cast(Tensor, actor(rows))
            before = network.rows_of(number, state)[:, : cell.state_size]
            outputs, after = actor(rows.unsqueeze(0), before, network.rows_of(number, starts).unsqueeze(0))
            network.put(states, number, after[0])
            return cast(Tensor, outputs[0])

        return network.outputs_by(act, observations), states


class TorchExploringActor(TorchActor):
    """An actor with state-dependent exploration; its noise matrices are on the device."""

    def __init__(self, network: nn.Module, crossing: Crossing, version: int, exploring: Network) -> None:
        super().__init__(network, crossing, version)
        self._exploring, self._size = exploring, exploring.head.out_features
        self._matrices: torch.Tensor | None = None
        self.perturbation: NDArray[Any] = np.zeros((0, self._size), np.float32)
        """The noise that the last call added, `[N, d]`."""

    @torch.no_grad()
    def explore(self, noise: NDArray[Any]) -> None:
        """Use standard normal noise `[N, d * L]` for the next calls."""
        with self._crossing.queue():
            self._matrices = self._exploring.scaled(self._crossing.to_device(noise))

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        if self._matrices is None or len(self._matrices) != len(observations):
            return super().__call__(observations)
        everything = self._through(lambda rows: self._network(rows, self._matrices), observations)
        self.perturbation = everything[:, 2 * self._size :]
        return everything[:, : 2 * self._size]


class TorchRecurrentActor(TorchActor):
    """A recurrent actor, whose state stays on the device; each call advances it."""

    def __init__(self, network: nn.Module, crossing: Crossing, version: int, state_size: int) -> None:
        super().__init__(network, crossing, version)
        self.state_size = state_size
        self._num_rows = -1

    @property
    def state(self) -> NDArray[Any]:
        """`[N, state_size]`, a copy."""
        with self._crossing.queue():
            return self._crossing.to_host(self._state).numpy().copy()

    @state.setter
    def state(self, state: NDArray[Any]) -> None:
        self._num_rows = len(state)
        with self._crossing.queue():
            self._state = self._crossing.to_device(state.copy())
            self._starts = self._crossing.to_device(np.zeros((1, len(state)), np.bool_))

    def forget(self, envs: NDArray[Any]) -> None:
        """Set the state of some environments, `[N]` bool, to zero."""
        with self._crossing.queue():
            self._state = self._state.masked_fill(self._crossing.to_device(envs)[:, None], 0.0)

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        if len(observations) != self._num_rows:
            self.state = np.zeros((len(observations), self.state_size), np.float32)
        return self._through(self._advance, observations)

    def _advance(self, rows: Tensor) -> Tensor:
        outputs, states = self._network(rows.unsqueeze(0), self._state, self._starts)
        self._state = states[0]
        return outputs[0]

    @torch.no_grad()
    def on_device_with(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and the next state for tensors on the network's device, without copies; the actor keeps no state.

        Args:
            observations: `[N, obs]`.
            state: `[N, state_size]`.
            starts: `[N]` bool, which observations are the first of an episode.
        """
        outputs, states = self._network(observations.unsqueeze(0), state, starts.unsqueeze(0))
        return outputs[0], states[0]
