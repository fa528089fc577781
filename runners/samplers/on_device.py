"""Sampling compiled environments where the actor is: state, rollout and actor stay on one device.

A row is the actor's network, then two kernels: one draws the actions, one steps the environments. Nothing comes to the
host before the rollout is filled, and then numbers of episodes alone. Whoever asks to stop is heard between two rows.

The noise of actions is drawn on the device, by counting from a seed of each rollout: a run samples other actions than
the same one on the CPU, and the same on any device. Environments start alike.
"""

import time
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.accelerator import accelerator_of
from hybridppo.environments.base import EnvState
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.environments.on_device import EnvironmentsOnDevice, bytes_needed, has_launcher
from hybridppo.errors import OutOfMemoryError
from hybridppo.interfaces import SamplingActor
from hybridppo.interruption import Stopped
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.episodes_on_device import EpisodesOnDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.fused_actor import FusedDistribution, bounds_of
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.runners.samplers.under_way import RolloutUnderWay
from hybridppo.validation import whole

__all__ = ["DeviceSampler", "has_launcher"]

Array = NDArray[Any]

WORD = 2**32


class ActorOnDevice(Protocol):
    """An actor that is called where its observations are."""

    def on_device(self, observations: Tensor) -> Tensor:
        """`[N, obs] -> [N, outputs]`."""
        ...


class DeviceSampler(BaseSampler):
    """Steps compiled environments on a device; one rollout, which is good until the next begins.

    Args:
        environments: of one agent, or of agents who share a policy; closed with the sampler.
        distribution: of the action space.
        device: where to sample; of a type that has a launcher.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness, which the seed of each rollout's is drawn from.

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
        noise: np.random.Generator,
    ) -> None:
        layout = RolloutBuffer.layout(num_steps, environments.num_envs, environments.encode, distribution)
        # The host has the shapes of a rollout, and none of its numbers.
        arrays = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (shape, dtype) in layout.items()}
        super().__init__(
            bytearray(1), [RolloutBuffer(**arrays)], distribution, environments.encode, skips_row_after_end=False,
            noise=noise, num_agents=environments.num_agents, clips_rewards=environments.clips_rewards,
        )  # fmt: skip
        self._environments, self._device, self._accelerator = environments, device, accelerator_of(device)
        _require_memory(environments, num_steps, distribution, self._accelerator.memory_free(), device)
        low, high = bounds_of(distribution)
        with self._accelerator.selected():
            self._on_device = EnvironmentsOnDevice(
                environments, device, num_steps=num_steps, num_outputs=distribution.output_size,
                num_noise=distribution.noise_size, num_scales=distribution.free_size, low=low, high=high,
            )  # fmt: skip
            self._on_device.restart(env_seed)
            self._observation = self._on_device.rollout.observations[0].clone()
            self._episodes = EpisodesOnDevice(self.num_envs, device, self.statistics.window)
        self._noise_seed = [0, 0]
        self._seconds = 0.0

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        self._noise_seed = self._noise.integers(WORD, size=2).tolist()

    def _begin(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._work = cast(ActorOnDevice, actor), first

    def _end(self) -> tuple[int, FinalObservations]:
        """Fill what is left. The device has done it when this returns, so that the clock says how long it took."""
        actor, t = self._work
        start, rollout = time.perf_counter(), self._on_device.rollout
        with self._accelerator.selected(), torch.no_grad():
            self._on_device.set_seed(*self._noise_seed)
            rollout.observations[t].copy_(self._observation)
            while t < self.num_steps and not self._stop[0]:
                rollout.outputs[t].copy_(actor.on_device(rollout.observations[t]))
                self._on_device.act(t)
                self._on_device.step(t)
                t += 1
            self._observation.copy_(rollout.observations[t])
            self._accelerator.wait()
        self._seconds = time.perf_counter() - start
        return t, []

    def finish(self) -> Rollout:
        """As in the base; of all that was sampled, the host gets numbers of episodes, and how many rows there are."""
        under_way = self._rollout_under_way()
        self._wait_for(under_way)
        if not self._is_complete(under_way.filled):
            raise Stopped
        self._under_way = None
        block = self._on_device.rollout
        with self._accelerator.selected(), torch.no_grad():
            valid = ~block.absent
            told = self._episodes.add(block.rewards, (block.terminated | block.truncated) & valid, valid)
            valid_rows = valid.flatten().nonzero().squeeze(-1)
            final_rows = (block.truncated & ~block.terminated).flatten().nonzero().squeeze(-1)
            # Where no episode is truncated, there is none to index.
            final_observations = block.finals.flatten(0, 1)[final_rows]
            sums = [numbers.sum(dtype=torch.float64) for numbers in (block.observations, block.rewards)]
            sums.append(final_observations.sum(dtype=torch.float64))
            told = torch.cat((torch.isfinite(torch.stack(sums).sum()).to(torch.float64)[None], told))
            self._account(told.tolist())
            if not self._has_warned:
                last = block.observations[-1:].cpu().numpy()
                self._look_at_bounds(replace(under_way.buffer, observations=last))
                self._has_warned = True  # looked at in one row and once: it has to come to the host
            actions = block.actions if self._distribution.action_shape else block.actions.squeeze(-1)
            # The behaviour log-probabilities, from the very outputs that the actions were drawn from.
            log_probs, _ = self._distribution.log_prob_and_entropy(block.outputs, actions)
        self.env_steps += len(valid_rows)
        return Rollout(
            observations=block.observations,
            actions=actions,
            log_probs=log_probs,
            rewards=block.rewards.clamp(-1.0, 1.0) if self._clips_rewards else block.rewards,
            terminated=block.terminated,
            truncated=block.truncated,
            valid_rows=valid_rows,
            final_rows=final_rows,
            final_observations=final_observations,
            version=under_way.version,
        )

    def _account(self, told: list[float]) -> None:
        """Take over what the device has counted, or say what is not finite."""
        is_finite, episodes, *latest = told
        if not is_finite:
            block, when = self._on_device.rollout, f"in the {self.num_steps} steps of a rollout"
            self._environments.require_finite(block.observations.cpu().numpy(), block.rewards.cpu().numpy(), when)
            rows = (block.truncated & ~block.terminated).cpu().numpy()
            finals, columns = block.finals.cpu().numpy()[rows], np.nonzero(rows)[1]
            self._environments.require_finite_finals(finals, columns, when)
        window = self.statistics.window
        count = min(int(episodes), window)
        returns, lengths = latest[:count][::-1], latest[window : window + count][::-1]
        self.statistics.take(int(episodes), returns, [int(length) for length in lengths])

    @property
    def steps_sampled(self) -> int:
        """As in the base."""
        if self._under_way is None:
            return self.env_steps
        return self.env_steps + int((~self._on_device.rollout.absent[: self._under_way.filled]).sum())

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._seconds

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._on_device.restart(env_seed)
        self._observation.copy_(self._on_device.rollout.observations[0])

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        self._environments.close()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        running = self._episodes.running_return.cpu().numpy(), self._episodes.running_length.cpu().numpy()
        self.statistics.running = running
        return super().state()

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:  # noqa: D102
        problem = super().load_state(tensors, state, env_seed=env_seed)
        returns, lengths = map(torch.from_numpy, self.statistics.running)
        self._episodes.running_return.copy_(returns)
        self._episodes.running_length.copy_(lengths)
        return problem

    def _stepper_state(self) -> StepperState:
        self._on_device.take()
        nothing = np.zeros((self.num_envs, 0), np.float32)
        return self._environments.state(), self._observation.cpu().numpy(), nothing

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        self._environments.load_state(states)
        self._on_device.put(observation, 0)
        self._observation.copy_(torch.from_numpy(observation))

    def _cannot_end(self, under_way: dict[str, Any]) -> str | None:
        is_other = under_way and "device_noise" not in under_way
        return "a rollout was under way on the host, not on a device" if is_other else None

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        under_way = self._under_way
        if under_way is None:
            return {}, None
        assert not under_way.is_running, "a rollout is being sampled: pause it first"
        rows = self._rows_filled(under_way.filled)
        saved = {"version": under_way.version, "filled": under_way.filled, "device_noise": self._noise_seed}
        return {f"buffer.{name}": tensor.cpu() for name, tensor in rows.items()}, saved

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        filled, seed = whole(state, "filled"), state["device_noise"]
        if filled > self.num_steps:
            raise ValueError(f"of {self.num_steps} rows, {filled} are said to be filled")
        if len(seed) != 2 or not all(type(word) is int and 0 <= word < WORD for word in seed):
            raise ValueError("device_noise is not two words of 32 bits")
        for name, tensor in self._rows_filled(filled).items():
            saved = tensors[f"buffer.{name}"]
            if saved.shape != tensor.shape or saved.dtype != tensor.dtype:
                message = f"buffer.{name} is of shape {list(saved.shape)} and type {saved.dtype}"
                raise ValueError(f"{message}, not {list(tensor.shape)} and {tensor.dtype}")
            tensor.copy_(saved)
        self._under_way, self._noise_seed = RolloutUnderWay(self._next_buffer(), whole(state, "version"), filled), seed

    def _rows_filled(self, filled: int) -> dict[str, Tensor]:
        """Views of what a rollout under way has."""
        block = vars(self._on_device.rollout)
        return {name: tensor[: filled + (name == "observations")] for name, tensor in block.items()}


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
