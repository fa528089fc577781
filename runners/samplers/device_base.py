"""The base of samplers whose rollout, actor and statistics stay on the actor's device."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import Distribution
from hybridppo.environments.base import Environments
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.on_device import DeviceRollout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.rollouts.tensor_episodes import TensorStatistics
from hybridppo.runners.samplers.base import BaseSampler, PolicyCounts
from hybridppo.runners.samplers.under_way import RolloutUnderWay, require_like
from hybridppo.spaces.arrays import Array
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.validation import whole


class ActorOnDevice(Protocol):
    """An actor that takes observations on its device, see `TorchActor`."""

    version: int

    def on_device(self, observations: Tensor) -> Tensor:
        """`[N, *row] -> [N, outputs]`."""

    def on_device_with(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The same for an actor with a memory: outputs and the next state, `[N, state]`."""

    def addresses(self) -> list[int]:
        """The addresses of its parameters and buffers."""


class BaseDeviceSampler(BaseSampler):
    """The base of samplers on a device. There is one rollout, which is valid until the next begins.

    A subclass implements `_fill` and `_read`, and what environments need: `restart`, their state and the noise.

    Args:
        environments: closed with the sampler.
        block: the tensors of the rollout.
        distribution: distribution of the actions.
        noise: generator of the seeds that determine the noise of actions.
        memory: layout of the state of a recurrent actor.
    """

    def __init__(
        self,
        environments: Environments,
        block: DeviceRollout,
        distribution: Distribution,
        *,
        noise: np.random.Generator,
        memory: MemoryLayout | None = None,
    ) -> None:
        buffers = [cast(RolloutBuffer, block)]  # the base only reads its shape
        super().__init__(environments, bytearray(1), buffers, distribution, noise=noise, memory=memory)
        self._block, self._device = block, block.rewards.device
        self._accelerator = accelerator_of(self._device)
        self.statistics = TensorStatistics(self.num_envs, self._device)

    def _counts_of(self, columns: Array) -> PolicyCounts:
        return PolicyCounts(columns, TensorStatistics(len(columns), self._device))

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._work: tuple[ActorOnDevice, int] = cast(ActorOnDevice, actor), first

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        start = time.perf_counter()
        with self._accelerator.selected(), torch.no_grad():
            filled = self._fill(*self._work)
        self.seconds_filling = time.perf_counter() - start
        return filled, []

    @abstractmethod
    def _fill(self, actor: ActorOnDevice, first: int) -> int:
        """Fill rows from `first` on, up to the end or a stop; return the number of filled rows."""

    def sample_wait(self) -> Rollout:  # noqa: D102 - as in the base
        under_way = self._rollout_ended()
        self._measure_rollout()
        self._steer_what_is_due()
        with self._accelerator.selected(), torch.no_grad():
            return self._read(under_way.version)

    @abstractmethod
    def _read(self, version: int) -> Rollout:
        """Count the steps of the rollout that has ended, refuse numbers that are not finite, and return it."""

    def _rollout_with(
        self, valid_rows: Tensor, final_rows: Tensor, final_observations: Tensor, version: int
    ) -> Rollout:
        block = self._block
        actions = block.actions.reshape(*block.rewards.shape, *self._distribution.action_shape)
        return Rollout(
            observations=block.observations,
            actions=actions,
            # The behaviour log-probabilities, from the same outputs as the actions.
            log_probs=self._distribution.log_prob(block.outputs, actions),
            rewards=block.rewards.clamp(-1.0, 1.0) if self._clips_rewards else block.rewards,
            terminated=block.terminated,
            truncated=block.truncated,
            valid_rows=valid_rows,
            final_rows=final_rows,
            final_observations=final_observations,
            version=version,
            starts=block.starts,
            states=block.states,
        )

    def _on_host(self, numbers: Sequence[Tensor]) -> tuple[list[float], list[list[float]]]:
        """These numbers and the argument of `_count_told` on the host, with one wait for the device."""
        counted = self._counted()
        told = torch.cat((torch.stack([number.to(counted[0].dtype) for number in numbers]), *counted)).tolist()
        ends = pairwise(accumulate((len(numbers), *map(len, counted)), initial=0))
        first, *others = (told[slice(*own)] for own in ends)
        return first, others

    def _counted(self) -> list[Tensor]:
        """For all columns and for those of each policy, the number of steps and the statistics of episodes."""
        block = self._block
        valid = torch.ones_like(block.terminated) if block.absent is None else ~block.absent
        ended = (block.terminated | block.truncated) & valid
        found = []
        for statistics, own in self._statistics_of_columns():
            episodes = statistics.measured(block.rewards[:, own], ended[:, own], valid[:, own])
            steps = self._rows_of_steps(valid) if isinstance(own, slice) else valid[:, own]
            found += [steps.sum().to(episodes.dtype)[None], episodes]
        return found

    def _statistics_of_columns(self) -> list[tuple[TensorStatistics, Any]]:
        """The statistics of all columns, and of each policy's."""
        of_policies = [(cast(TensorStatistics, each.statistics), each.columns) for each in self.by_policy.values()]
        return [(cast(TensorStatistics, self.statistics), slice(None)), *of_policies]

    def _count_told(self, told: list[list[float]]) -> None:
        """Count steps and episodes, from the result of `_counted` on the host."""
        for (statistics, _), episodes in zip(self._statistics_of_columns(), told[1::2], strict=True):
            statistics.read(episodes)
        (steps,), *of_policies = told[::2]
        self.env_steps += int(steps)
        for policy, (agent_steps,) in zip(self.by_policy.values(), of_policies, strict=True):
            policy.agent_steps += int(agent_steps)

    @property
    def steps_sampled(self) -> int:  # noqa: D102 - as in the base
        filled = 0 if self._under_way is None else self._under_way.filled
        absent = self._block.absent
        new = filled * self.num_envs if absent is None else self._num_steps_in(~absent[:filled])
        return int(self.env_steps + new)

    # Checkpoints

    @abstractmethod
    def _noise_under_way(self, filled: int) -> dict[str, Any]:
        """The data of a rollout under way that a checkpoint needs besides its rows, as JSON."""

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        under_way = self._under_way
        if under_way is None:
            return {}, None
        assert not under_way.is_running, "a rollout is being sampled: pause it first"
        rows = self._block.rows_that_matter(under_way.filled, self._memory)
        saved = {"version": under_way.version, "filled": under_way.filled, **self._noise_under_way(under_way.filled)}
        return {f"buffer.{name}": part.clone() for name, part in rows.items()}, saved

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        filled = whole(state, "filled")
        if filled > self.num_steps:
            raise ValueError(f"filled is {filled}, but a rollout has {self.num_steps} rows")
        for name, part in self._block.rows_that_matter(filled, self._memory).items():
            load_into(f"buffer.{name}", part, tensors)
        self._under_way = RolloutUnderWay(self._next_buffer(), whole(state, "version"), filled)


def load_into(name: str, mine: Tensor, tensors: dict[str, Tensor]) -> None:
    """Write a saved tensor into `mine`."""
    require_like(name, tensors.get(name), mine)
    mine.copy_(tensors[name])
