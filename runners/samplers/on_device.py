"""Sampling of compiled environments on the actor's device: state, rollout and actor stay there.

A row is the actor's network and two kernels: one draws all actions, one steps the environments. Only statistics of
episodes are copied to the host, when a rollout is filled. A stop takes effect between two rows.

The device draws the noise of actions by counting from a seed for each rollout. A run therefore samples other actions
than on the CPU, but the same on any device. Environments start in the same way.
"""

import time
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.environments.base import EnvState
from hybridppo.environments.on_device import DeviceRollout, EnvironmentsOnDevice
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.rollout import Rollout
from hybridppo.rollouts.tensor_episodes import TensorStatistics
from hybridppo.runners.samplers.base import BaseSampler, PolicyCounts
from hybridppo.runners.samplers.recorded_rows import RecordedRows
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.runners.samplers.tensor_block import load_into, rows_that_matter
from hybridppo.runners.samplers.under_way import RolloutUnderWay
from hybridppo.system.recording import Record
from hybridppo.system.validation import whole

Array = NDArray[Any]

WORD = 2**32


class ActorOnDevice(Protocol):
    """An actor that takes observations on its device."""

    def on_device(self, observations: Tensor) -> Tensor:
        """`[N, obs] -> [N, outputs]`."""
        ...

    def addresses(self) -> list[int]:
        """The addresses of its parameters and buffers."""
        ...


class DeviceSampler(BaseSampler):
    """Samples on a device. There is one rollout, which is valid until the next begins.

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
        environments, distribution = on_device.host, on_device.distribution
        num_columns = environments.num_envs
        layout = RolloutBuffer.layout(on_device.num_steps, num_columns, environments.encode, distribution)
        # The host has the shapes of a rollout, but no numbers.
        arrays = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (shape, dtype) in layout.items()}
        super().__init__(environments, bytearray(1), [RolloutBuffer(**arrays)], distribution, noise=noise)
        self._on_device, self._accelerator, self._block = on_device, on_device.accelerator, on_device.rollout
        self._environments = environments
        self._statistics = TensorStatistics(num_columns, on_device.device)
        self.statistics = self._statistics
        self._noise_seed = [0, 0]
        self._recorded: RecordedRows | None = None
        if record is not None:
            self._recorded = RecordedRows(self._queue_row, on_device.changed, self._block.rewards, record)
        self._observation = self._block.observations[0].clone()
        self.restart(env_seed)

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        self._noise_seed = self._noise.integers(WORD, size=2).tolist()

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._work: tuple[ActorOnDevice, int] = cast(ActorOnDevice, actor), first

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        """Fill rows; the device has finished when this returns, so that the host's clock measures it."""
        start, (actor, t) = time.perf_counter(), self._work
        place = tuple(actor.addresses()) if self._recorded is not None else ()
        with self._accelerator.selected(), torch.no_grad():
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
        self.seconds_filling = time.perf_counter() - start
        return t, []

    def _queue_row(self, t: int) -> None:
        self._block.outputs[t].copy_(self._work[0].on_device(self._block.observations[t]))
        self._on_device.act(t)
        self._on_device.step(t)

    def _counts_of(self, columns: Array) -> PolicyCounts:
        return PolicyCounts(columns, TensorStatistics(len(columns), self._on_device.device))

    def sample_wait(self) -> Rollout:
        """As in the base; only statistics of episodes and numbers of rows are copied to the host."""
        under_way, block = self._rollout_ended(), self._block
        with self._accelerator.selected(), torch.no_grad():
            valid = ~block.absent
            counted = self._counted(block, valid)
            valid_rows = valid.flatten().nonzero().squeeze(-1)
            final_rows = (block.truncated & ~block.terminated).flatten().nonzero().squeeze(-1)
            final_observations = self._on_device.finals(final_rows)
            sums = [numbers.sum(dtype=torch.float64) for numbers in (block.observations, block.rewards)]
            sums.append(final_observations.sum(dtype=torch.float64))
            is_finite = torch.isfinite(torch.stack(sums).sum()).to(counted[0].dtype)[None]
            self._account(torch.cat((is_finite, *counted)).tolist(), [len(part) for part in counted])
            if not self._has_warned:
                last = block.observations[-1:].cpu().numpy()
                self._look_at_bounds(replace(under_way.buffer, observations=last))
                self._has_warned = True  # only one row, and only once, because it is copied to the host
            actions = block.actions if self._distribution.action_shape else block.actions.squeeze(-1)
            # The behaviour log-probabilities, from the same outputs as the actions.
            log_probs = self._distribution.log_prob(block.outputs, actions)
        return Rollout(
            observations=block.observations.contiguous(),
            actions=actions.contiguous(),
            log_probs=log_probs,
            rewards=block.rewards.clamp(-1.0, 1.0) if self._clips_rewards else block.rewards.contiguous(),
            terminated=block.terminated.contiguous(),
            truncated=block.truncated.contiguous(),
            valid_rows=valid_rows,
            final_rows=final_rows,
            final_observations=final_observations,
            version=under_way.version,
        )

    def _counted(self, block: DeviceRollout, valid: Tensor) -> list[Tensor]:
        """The numbers for `_account`: steps and episodes of all, then steps and episodes of each policy."""
        ended = (block.terminated | block.truncated) & valid
        episodes = self._statistics.measured(block.rewards, ended, valid)
        rows = valid if not self.by_policy else valid.view(len(valid), -1, self._num_agents).any(2)
        found = [rows.sum().to(episodes.dtype)[None], episodes]
        for policy in self.by_policy.values():
            own = torch.tensor(policy.columns, device=valid.device)
            statistics = cast(TensorStatistics, policy.statistics)
            found.append(valid[:, own].sum().to(episodes.dtype)[None])
            found.append(statistics.measured(block.rewards[:, own], ended[:, own], valid[:, own]))
        return found

    def _account(self, told: list[float], sizes: list[int]) -> None:
        """Add numbers that the device has counted, in parts of these sizes; raise an error if values are not finite."""
        if not told[0]:
            block, when = self._block, f"in the {self.num_steps} steps of a rollout"
            environments = self._environments
            environments.require_finite(self._on_device.written.cpu().numpy(), block.rewards.cpu().numpy(), when)
            rows = (block.truncated & ~block.terminated).cpu().numpy()
            finals = block.finals.cpu().numpy()[rows]
            environments.require_finite_finals(finals, np.nonzero(rows)[1], when)
        ends = list(accumulate(sizes, initial=1))
        (steps,), episodes, *of_policies = (told[start:end] for start, end in pairwise(ends))
        self.env_steps += int(steps)
        self._statistics.read(episodes)
        for policy, (agent_steps,), own in zip(
            self.by_policy.values(), of_policies[::2], of_policies[1::2], strict=True
        ):
            policy.agent_steps += int(agent_steps)
            cast(TensorStatistics, policy.statistics).read(own)

    @property
    def steps_sampled(self) -> int:
        """As in the base."""
        if self._under_way is None:
            return self.env_steps
        return self.env_steps + self._num_steps_in(~self._block.absent[: self._under_way.filled].cpu().numpy())

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

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        under_way = self._under_way
        if under_way is None:
            return {}, None
        assert not under_way.is_running, "a rollout is being sampled: pause it first"
        rows = rows_that_matter(self._block, under_way.filled)
        saved = {"version": under_way.version, "filled": under_way.filled, "device_noise": self._noise_seed}
        return {f"buffer.{name}": tensor.cpu() for name, tensor in rows.items()}, saved

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        filled, seed = whole(state, "filled"), state["device_noise"]
        if filled > self.num_steps:
            raise ValueError(f"filled is {filled}, but a rollout has {self.num_steps} rows")
        if len(seed) != 2 or not all(type(word) is int and 0 <= word < WORD for word in seed):
            raise ValueError("device_noise is not two words of 32 bits")
        for name, tensor in rows_that_matter(self._block, filled).items():
            load_into(f"buffer.{name}", tensor, tensors)
        self._under_way, self._noise_seed = RolloutUnderWay(self._next_buffer(), whole(state, "version"), filled), seed
