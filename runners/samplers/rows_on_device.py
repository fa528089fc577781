"""The rows of rollouts that lie on a device, filled there for one policy or for several.

    rows = RowsOnDevice(environments, distribution, device, num_steps=T, env_seed=seed, stop=bytearray(1))
    sampler = DeviceSampler(rows, noise=noise)          # on_device.py: of each policy

A row is the network of each actor, then two kernels: one draws all actions, one steps the environments. What is started
for each policy is done when the first of them is waited for, and then for all.
"""

import time
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.environments.base import EnvState
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.environments.compiled_agents import CompiledAgents
from hybridppo.environments.on_device import EnvironmentsOnDevice, bytes_needed
from hybridppo.errors import EnvStateError, OutOfMemoryError
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
        apart: whether each kind of agents has a policy of its own.
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
        apart: bool = False,
        record: Record | None = None,
    ) -> None:
        self.environments, self.distribution, self.device = environments, distribution, device
        self.num_steps, self.stop, self.accelerator = num_steps, stop, accelerator_of(device)
        _require_memory(environments, num_steps, distribution, self.accelerator.memory_free(), device, apart)
        self.columns = [slice(0, environments.num_envs)]
        """Of each policy, its columns."""
        if apart and isinstance(environments, CompiledAgents):
            ends = (environments.kinds * environments.num_environments).tolist()
            self.columns = [slice(*bounds) for bounds in pairwise(ends)]
        low, high = bounds_of(distribution)
        with self.accelerator.selected():
            self.on_device = EnvironmentsOnDevice(
                environments, device, num_steps=num_steps, num_outputs=distribution.output_size,
                num_noise=distribution.noise_size, num_scales=distribution.free_size, low=low, high=high, apart=apart,
            )  # fmt: skip
            self.on_device.restart(env_seed)
            self._observation = self.on_device.rollout.observations[0].clone()
        self._acting: list[tuple[ActorOnDevice, slice]] = []
        self._recorded: RecordedRows | None = None
        if record is not None:
            rewards = self.on_device.rollout.rewards
            self._recorded = RecordedRows(self._queue_row, self.on_device.changed, rewards, record)
        self._begun: dict[int, tuple[ActorOnDevice, int, list[int]]] = {}
        self._done: dict[int, int] = {}
        self.problem: str | None = None
        """Why the environments could not go on from a saved state."""
        self.seconds = 0.0
        """How long the last filling took."""

    def begin(self, policy: int, actor: ActorOnDevice, first: int, seed: list[int]) -> None:
        """Have a policy's rollout filled from row `first` on; the first policy's seed is that of all noise."""
        self._begun[policy] = actor, first, seed

    def end(self, policy: int) -> int:
        """Fill the rollouts of all policies, unless that is done; how many rows there are.

        The device has done it when this returns, so that the host's clock says how long it took.
        """
        if policy not in self._done:
            assert len(self._begun) == len(self.columns), "a policy has not begun its rollout"
            self._fill()
        return self._done.pop(policy)

    def _fill(self) -> None:
        start, rollout = time.perf_counter(), self.on_device.rollout
        begun = [self._begun.pop(policy) for policy in range(len(self.columns))]
        self._acting = [(actor, columns) for (actor, _, _), columns in zip(begun, self.columns, strict=True)]
        place = tuple(address for actor, _ in self._acting for address in actor.addresses()) if self._recorded else ()
        _, t, seed = begun[0]
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
        self._done = dict.fromkeys(range(len(self.columns)), t)
        self.seconds = time.perf_counter() - start

    def _queue_row(self, t: int) -> None:
        rollout = self.on_device.rollout
        for actor, columns in self._acting:
            rollout.outputs[t, columns].copy_(actor.on_device(rollout.observations[t, columns]))
        self.on_device.act(t)
        self.on_device.step(t)

    def restart(self, seed: int) -> None:
        """Start every environment anew."""
        self.on_device.restart(seed)
        self._observation.copy_(self.on_device.rollout.observations[0])

    def state(self, policy: int) -> tuple[list[EnvState], Array]:
        """The environments' states, with the first policy, and what a policy is to act on next."""
        observations = self._observation[self.columns[policy]].cpu().numpy()
        if policy > 0:
            return [], observations
        self.on_device.take()
        return self.environments.state(), observations

    def load_state(self, policy: int, states: list[EnvState], observations: Array) -> None:
        """Go on from what `state` gave, the first policy first."""
        if policy == 0:
            self.problem = None
            try:
                self.environments.load_state(states)
            except EnvStateError as error:
                self.problem = str(error)
            self.on_device.put()
        if self.problem is not None:
            raise EnvStateError(self.problem)
        self._observation[self.columns[policy]].copy_(torch.from_numpy(np.ascontiguousarray(observations)))


def _require_memory(
    environments: CompiledEnvironments,
    num_steps: int,
    distribution: FusedDistribution,
    free: int | None,
    device: torch.device,
    apart: bool,
) -> None:
    """Refuse what does not fit into the memory of a device that is free."""
    needs = bytes_needed(environments, num_steps, distribution.output_size, apart=apart)
    needed = sum(needs.values())
    if free is not None and needed > free:
        sizes = ", ".join(f"{what} {size / 2**30:.3g} GiB" for what, size in needs.items())
        raise OutOfMemoryError(
            f"sampling on {device} needs about {needed / 2**30:.3g} GiB of its memory, besides what the learner takes, "
            f"and {free / 2**30:.3g} GiB are free: {sizes}. Lower num_envs or num_steps first"
        )
