"""The rows of rollouts that lie on a device, filled there.

    rows = RowsOnDevice(environments, distribution, device, num_steps=T, env_seed=seed, stop=bytearray(1))
    sampler = DeviceSampler(rows, noise=noise)          # on_device.py

A row is the actor's network, then two kernels: one draws all actions, one steps the environments.
"""

import time
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.environments.base import EnvState
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.environments.on_device import EnvironmentsOnDevice, bytes_needed
from hybridppo.errors import OutOfMemoryError
from hybridppo.runners.samplers.fused_actor import FusedDistribution, bounds_of
from hybridppo.runners.samplers.recorded_rows import RecordedRows
from hybridppo.runners.samplers.stepping import Flag
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.recording import Record

Array = NDArray[Any]


class ActorOnDevice(Protocol):
    """An actor that is called where its observations are."""

    def on_device(self, observations: Tensor) -> Tensor:
        """`[N, obs] -> [N, outputs]`."""
        ...

    def addresses(self) -> list[int]:
        """Where its parameters and buffers lie."""
        ...


class RowsOnDevice:
    """Steps compiled environments on a device, from where they were left.

    Args:
        environments: compiled.
        distribution: of the action space.
        device: where to sample; of a type that has a launcher.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        stop: set to break off between two rows.
        record: how rows are recorded, which some actors' are then once; None to queue them one by one.

    Raises:
        OutOfMemoryError: where the device has not the memory that is free for it: what is needed, and what to lower.
        DeviceError: where kernels cannot be compiled for the device.
        EnvError: where the environment's functions cannot.
    """

    def __init__(
        self,
        environments: CompiledEnvironments,
        distribution: FusedDistribution,
        device: torch.device,
        *,
        num_steps: int,
        env_seed: int,
        stop: Flag,
        record: Record | None = None,
    ) -> None:
        self.environments, self.distribution, self.device = environments, distribution, device
        self.num_steps, self.stop, self.accelerator = num_steps, stop, accelerator_of(device)
        _require_memory(environments, num_steps, distribution, self.accelerator.memory_free(), device)
        low, high = bounds_of(distribution)
        with self.accelerator.selected():
            self.on_device = EnvironmentsOnDevice(
                environments, device, num_steps=num_steps, num_outputs=distribution.output_size,
                num_noise=distribution.noise_size, num_scales=distribution.free_size, low=low, high=high,
            )  # fmt: skip
            self.on_device.restart(env_seed)
            self._observation = self.on_device.rollout.observations[0].clone()
        self._actor: ActorOnDevice | None = None
        self._recorded: RecordedRows | None = None
        if record is not None:
            rewards = self.on_device.rollout.rewards
            self._recorded = RecordedRows(self._queue_row, self.on_device.changed, rewards, record)
        self.seconds = 0.0
        """How long the last filling took."""

    def fill(self, actor: ActorOnDevice, first: int, seed: list[int]) -> int:
        """Fill the rollout from row `first` on, with noise from a seed; how many rows there are.

        The device has done it when this returns, so that the host's clock says how long it took.
        """
        start, rollout, t = time.perf_counter(), self.on_device.rollout, first
        self._actor = actor
        place = tuple(actor.addresses()) if self._recorded else ()
        with self.accelerator.selected(), torch.no_grad():
            self.on_device.set_seed(*seed)
            rollout.observations[t].copy_(self._observation)
            while t < self.num_steps and not self.stop[0]:
                if self._recorded is not None:
                    t = self._recorded.fill(t, place)
                else:
                    self._queue_row(t)
                    t += 1
            self._observation.copy_(rollout.observations[t])
            self.accelerator.wait()
        self.seconds = time.perf_counter() - start
        return t

    def _queue_row(self, t: int) -> None:
        assert self._actor is not None  # `fill` was given one
        rollout = self.on_device.rollout
        rollout.outputs[t].copy_(self._actor.on_device(rollout.observations[t]))
        self.on_device.act(t)
        self.on_device.step(t)

    def restart(self, seed: int) -> None:
        """Start every environment anew."""
        self.on_device.restart(seed)
        self._observation.copy_(self.on_device.rollout.observations[0])

    def state(self) -> tuple[list[EnvState], Array]:
        """The environments' states, and what is to be acted on next."""
        self.on_device.take()
        return self.environments.state(), self._observation.cpu().numpy()

    def load_state(self, states: list[EnvState], observations: Array) -> None:
        """Go on from what `state` gave.

        Raises:
            EnvStateError: if the environments cannot.
        """
        try:
            self.environments.load_state(states)
        finally:
            self.on_device.put()
        self._observation.copy_(torch.from_numpy(np.ascontiguousarray(observations)))


def _require_memory(
    environments: CompiledEnvironments,
    num_steps: int,
    distribution: FusedDistribution,
    free: int | None,
    device: torch.device,
) -> None:
    """Refuse what does not fit into the memory of a device that is free."""
    needs = bytes_needed(environments, num_steps, distribution.output_size)
    needed = sum(needs.values())
    if free is not None and needed > free:
        sizes = ", ".join(f"{what} {size / 2**30:.3g} GiB" for what, size in needs.items())
        raise OutOfMemoryError(
            f"sampling on {device} needs about {needed / 2**30:.3g} GiB of its memory, besides what the learner takes, "
            f"and {free / 2**30:.3g} GiB are free: {sizes}. Lower num_envs or num_steps first"
        )
