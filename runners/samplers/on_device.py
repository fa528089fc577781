"""Sampling of compiled environments on the actor's device: state, rollout and actor stay there.

A row is the actor's network and two kernels: one draws all actions, one steps the environments. Only statistics of
episodes are copied to the host, when a rollout is filled. A stop takes effect between two rows.

The device draws the noise of actions by counting from a seed for each rollout. A run therefore samples other actions
than on the CPU, but the same on any device. Environments start in the same way.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.environments.base import EnvState
from hybridppo.environments.on_device import EnvironmentsOnDevice
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.device_base import ActorOnDevice, BaseDeviceSampler
from hybridppo.runners.samplers.recorded_rows import RecordedRows
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.spaces.arrays import Array
from hybridppo.system.recording import Record

WORD = 2**32


class DeviceSampler(BaseDeviceSampler):
    """Samples compiled environments on a device.

    Args:
        on_device: the environments, closed with the sampler.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: generator of a seed for each rollout's noise.
        record: records rows as graphs, for actors that can be recorded; None to launch them one by one.
    """

    def __init__(
        self,
        on_device: EnvironmentsOnDevice,
        *,
        env_seed: int,
        noise: np.random.Generator,
        record: Record | None = None,
    ) -> None:
        super().__init__(on_device.host, on_device.rollout, on_device.distribution, noise=noise)
        self._on_device, self._environments = on_device, on_device.host
        self._noise_seed = [0, 0]
        self._recorded: RecordedRows | None = None
        if record is not None:
            self._recorded = RecordedRows(self._queue_row, on_device.changed, self._block.rewards, record)
        self._observation = self._block.observations[0].clone()
        self.restart(env_seed)

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        self._noise_seed = self._noise.integers(WORD, size=2).tolist()

    def _fill(self, actor: ActorOnDevice, first: int) -> int:
        """As in the base; the device has finished when this returns, so that the host's clock measures it."""
        t, place = first, tuple(actor.addresses()) if self._recorded is not None else ()
        self._on_device.set_seed(*self._noise_seed)
        self._block.observations[t].copy_(self._observation)
        while t < self.num_steps and not self._stop[0]:
            if self._recorded is not None:
                t = self._recorded.fill(t, place)
            else:
                self._queue_row(t)
                t += 1
        self._observation.copy_(self._block.observations[t])
        self._accelerator.wait()
        return t

    def _queue_row(self, t: int) -> None:
        self._block.outputs[t].copy_(self._work[0].on_device(self._block.observations[t]))
        self._on_device.act(t)
        self._on_device.step(t)

    def _read(self, version: int) -> Rollout:
        """As in the base; only statistics of episodes and numbers of rows are copied to the host."""
        block = self._block
        assert block.absent is not None  # of compiled environments
        valid_rows = (~block.absent).flatten().nonzero().squeeze(-1)
        final_rows = (block.truncated & ~block.terminated).flatten().nonzero().squeeze(-1)
        finals = self._on_device.finals(final_rows)
        sums = [numbers.sum(dtype=torch.float64) for numbers in (block.observations, block.rewards, finals)]
        (is_finite,), counted = self._on_host([torch.isfinite(torch.stack(sums).sum())])
        if not is_finite:
            self._refuse_numbers()
        self._count_told(counted)
        if not self._has_warned:
            self._look_at_bounds(block.observations[-2:-1].cpu().numpy(), block.absent[-1:].cpu().numpy())
            self._has_warned = True  # only one row, and only once, because it is copied to the host
        return self._rollout_with(valid_rows, final_rows, finals, version)

    def _refuse_numbers(self) -> None:
        """Raise an error that names the first number that is not finite."""
        block, when = self._block, f"in the {self.num_steps} steps of a rollout"
        environments = self._environments
        environments.require_finite(self._on_device.written.cpu().numpy(), block.rewards.cpu().numpy(), when)
        rows = (block.truncated & ~block.terminated).cpu().numpy()
        environments.require_finite_finals(block.finals.cpu().numpy()[rows], np.nonzero(rows)[1], when)

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._on_device.restart(env_seed)
        self._observation.copy_(self._block.observations[0])

    def _stepper_state(self) -> StepperState:
        self._on_device.take()
        observations = self._observation.cpu().numpy()
        return self._environments.state(), observations, np.zeros((self.num_envs, 0), np.float32)

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        try:
            self._environments.load_state(states)
        finally:
            self._on_device.put()
        self._observation.copy_(torch.from_numpy(np.ascontiguousarray(observation)))

    def _cannot_end(self, under_way: dict[str, Any]) -> str | None:
        is_other = under_way and "device_noise" not in under_way
        return "a rollout was under way on the host, not on a device" if is_other else None

    def _noise_under_way(self, filled: int) -> dict[str, Any]:
        return {"device_noise": self._noise_seed}

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        seed = state["device_noise"]
        if len(seed) != 2 or not all(type(word) is int and 0 <= word < WORD for word in seed):
            raise ValueError("device_noise is not two words of 32 bits")
        super()._load_under_way(tensors, state)
        self._noise_seed = seed
