"""Sampling where environments are tensors: rollout, actor, episode ends and statistics stay on their device.

Within a rollout nothing comes to the host. At its end one tensor of numbers does: the latest episodes, how many were
truncated, and how much was not finite.
"""

import logging
import time
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from hybridppo.environments.tensors import TensorEnvironments, TensorStep
from hybridppo.errors import EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.rollouts.tensor_episodes import TensorStatistics
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.tensor_block import allocated, load_into, require_like, rows_that_matter, with_finals
from hybridppo.runners.samplers.under_way import RolloutUnderWay
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.on_tensors import TensorActions, words
from hybridppo.system.validation import whole

logger = logging.getLogger(__name__)


class ActorOnTensors(Protocol):
    """An actor as this sampler calls it, see `TorchActor`."""

    version: int

    def on_device(self, observations: Tensor) -> Tensor:
        """`[N, *row] -> [N, outputs]`."""
        ...

    def on_device_with(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The same of an actor with a memory: outputs, and the state after, `[N, state]`."""
        ...


class TensorSampler(BaseSampler):
    """Steps an environment of tensors with an actor on its device.

    The noise of an action follows from the run's seed, the number of the rollout, the row in it and the number of the
    environment, and from nothing else; up to the rounding of a logarithm it is the same on every device.

    If an episode is truncated and the environment does not give its final observation, the value of the observation
    before the last action replaces the final value, as in rsl_rl ("last observation"); this is logged once.

    Args:
        environments: closed with the sampler.
        distribution: of the action space.
        num_steps: `T`.
        env_seed: what the environments start from.
        noise: its next two numbers are the key of all noise.
        memory: the actor's, where it has one.
        first: the number of the first environment among those of the run.
    """

    def __init__(
        self,
        environments: TensorEnvironments,
        distribution: Distribution,
        *,
        num_steps: int,
        env_seed: int,
        noise: np.random.Generator,
        memory: MemoryLayout | None = None,
        first: int = 0,
    ) -> None:
        low, high = noise.integers(2**32, size=2).tolist()
        self._key, self._first = (int(low), int(high)), first
        self._environments, self._device = environments, environments.device
        self._actions = TensorActions(distribution, environments.device)
        self._block = allocated(environments, distribution, self._actions.dtype, num_steps, memory)
        buffers = [cast(RolloutBuffer, self._block)]  # the base only reads its shape
        super().__init__(environments, bytearray(1), buffers, distribution, noise=noise, memory=memory)
        self._statistics = TensorStatistics(self.num_envs, self._device)
        self.statistics = self._statistics
        self._all_rows = torch.arange(num_steps * self.num_envs, device=self._device)
        self._number = 0
        self._observation: Tensor
        self._state_of_actor: Tensor
        self._finals_given: list[bool] = []
        self._has_told = False
        self.restart(env_seed)

    # Filling

    def sample_async(self, actor: SamplingActor) -> None:  # noqa: D102 - as in the base
        self._number += not self.is_under_way
        super().sample_async(actor)

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        self._noise_of_rollout = self._actions.noise(
            words(
                self._key, self._number, num_steps=self.num_steps, num_envs=self.num_envs,
                num_words=self._actions.num_words, device=self._device, first=self._first,
            )
        )  # fmt: skip

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._work: tuple[ActorOnTensors, int] = cast(ActorOnTensors, actor), first

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        start = time.perf_counter()
        with torch.no_grad():
            filled = self._fill(*self._work)
        self.seconds_filling = time.perf_counter() - start
        return filled, []

    def _fill(self, actor: ActorOnTensors, first: int) -> int:
        """Rows from `first` on: how many are filled, all or up to a stop."""
        block, actions = self._block, self._actions
        del self._finals_given[first:]
        block.observations[first].copy_(self._observation)
        filled: int = self.num_steps
        for t in range(first, self.num_steps):
            if self._stop[0]:
                filled = t
                break
            outputs = self._outputs(actor, t)
            drawn = actions.sample(outputs, self._noise_of_rollout[t])
            block.outputs[t].copy_(outputs)
            block.actions[t].copy_(drawn)
            self._keep(t, self._environments.advance(actions.to_env(drawn)))
        self._observation = block.observations[filled].clone()
        return filled

    def _outputs(self, actor: ActorOnTensors, t: int) -> Tensor:
        block, rows = self._block, self._block.observations[t]
        if self._memory is None:
            return actor.on_device(rows)
        assert block.starts is not None  # laid out for a memory, like the next
        assert block.states is not None
        block.starts[t].copy_(self._starts)
        if t % self._memory.sequence_length == 0:
            block.states[t // self._memory.sequence_length].copy_(
                self._state_of_actor.masked_fill(self._starts[:, None], 0.0)
            )
        outputs, self._state_of_actor = actor.on_device_with(rows, self._state_of_actor, self._starts)
        return outputs

    def _keep(self, t: int, step: TensorStep) -> None:
        block = self._block
        block.observations[t + 1].copy_(step.observations)
        block.rewards[t].copy_(step.rewards)
        block.terminated[t].copy_(step.terminated)
        block.truncated[t].copy_(step.truncated)
        self._finals_given.append(step.finals is not None)
        if step.finals is not None:
            if not len(block.finals):
                self._block = block = with_finals(block)
            block.finals[t].copy_(step.finals)
        elif len(block.finals):
            block.finals[t].copy_(block.observations[t])
        if self._memory is not None:
            self._starts = step.terminated | step.truncated

    # What comes of it

    def sample_wait(self) -> Rollout:  # noqa: D102 - as in the base
        under_way = self._rollout_ended()
        self._measure_rollout()
        self._steer_what_is_due()
        with torch.no_grad():
            return self._read(under_way.version)

    def _read(self, version: int) -> Rollout:
        block, environments = self._block, self._environments
        is_cut = block.truncated & ~block.terminated
        numbers = environments.on_device.numbers
        finals = block.finals if len(block.finals) else block.observations[:-1]
        rows_unknown = [t for t, is_given in enumerate(self._finals_given) if not is_given]
        is_unknown = is_cut
        if len(rows_unknown) < self.num_steps:
            is_unknown = is_cut.index_select(0, self._all_rows.new_tensor(rows_unknown)) if rows_unknown else is_cut[:0]
        measured = self._statistics.measured(block.rewards, block.terminated | block.truncated)
        cut_finals = is_cut.reshape(*is_cut.shape, *([1] * (numbers(finals).ndim - 2)))
        counts = (
            is_cut.sum(),
            is_unknown.sum(),
            (~numbers(block.observations[1:]).isfinite()).sum(),
            (~block.rewards.isfinite()).sum(),
            (~numbers(finals).isfinite() & cut_finals).sum(),
        )
        # The rollout's one wait for the device, except for finding the rows below.
        read = torch.cat((torch.stack(counts).to(measured.dtype), measured)).tolist()
        num_cut, num_unknown, *bad = map(int, read[: len(counts)])
        if any(bad):
            environments.require_finite("observation", block.observations[1:])
            environments.require_finite("reward", block.rewards)
            environments.require_finite("final observation", finals.masked_fill(~cut_finals, 0.0))
        if num_unknown and not self._has_told:
            self._has_told = True
            logger.warning(
                "%s gives no final observations (infos['final_obs']) of episodes that are truncated: the value of the "
                'observation before the last action stands for theirs (the approximation "last observation", as in '
                "rsl_rl). This is said once",
                environments.name,
            )
        self._statistics.read(read[len(counts) :])
        self.env_steps += self.num_steps * self.num_envs
        rows = is_cut.flatten().nonzero().squeeze(1) if num_cut else self._all_rows[:0]
        log_probs = self._distribution.log_prob(block.outputs, block.actions)
        return Rollout(
            observations=block.observations,
            actions=block.actions,
            # The behaviour log-probabilities, from the very outputs that the actions were drawn from.
            log_probs=log_probs,
            rewards=block.rewards.clamp(-1.0, 1.0) if self._clips_rewards else block.rewards,
            terminated=block.terminated,
            truncated=block.truncated,
            valid_rows=self._all_rows,
            final_rows=rows,
            final_observations=finals.flatten(0, 1).index_select(0, rows),
            version=version,
            starts=block.starts,
            states=block.states,
        )

    @property
    def steps_sampled(self) -> int:  # noqa: D102 - as in the base
        return self.env_steps + (0 if self._under_way is None else self._under_way.filled * self.num_envs)

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._observation = self._environments.begin(env_seed).clone()
        if self._memory is not None:
            self._state_of_actor = torch.zeros((self.num_envs, self._memory.state_size), device=self._device)
            self._starts = torch.ones(self.num_envs, dtype=torch.bool, device=self._device)

    # Checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        state: dict[str, Any] = {
            "env_steps": self.env_steps,
            "key": list(self._key),
            "number": self._number,
            "has_told": self._has_told,
            "statistics": self._statistics.state(),
            "noise": self._noise.bit_generator.state,
            **self._steering_state(),
        }
        try:
            if self.failure is not None:
                raise EnvStateError(self.failure)
            environment = self._environments.tensors_of_state()
        except EnvStateError as error:  # a rollout that is under way is lost with them: nothing could go on with it
            number = self._number - (self._under_way is not None)
            return {}, {**state, "number": number, "environments": {"not_saved": str(error)}}
        tensors = {f"environment.{name}": tensor for name, tensor in environment.items()}
        tensors["observation"] = self._observation
        if self._memory is not None:
            tensors |= {"memory.state": self._state_of_actor, "memory.starts": self._starts}
        under_way = self._under_way
        if under_way is not None:
            assert not under_way.is_running, "a rollout is being sampled: pause it first"
            rows = rows_that_matter(self._block, under_way.filled, self._memory)
            tensors |= {f"buffer.{name}": part.clone() for name, part in rows.items()}
            state["under_way"] = {
                "version": under_way.version,
                "filled": under_way.filled,
                "finals_given": self._finals_given[: under_way.filled],
            }
        return tensors, {**state, "environments": {"is_saved": True}}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """As in the base; of a run in the same kind of environment."""
        if "key" not in state:
            raise ValueError("it was sampled in environments of another kind, that are no tensors")
        self.env_steps, self._number = whole(state, "env_steps"), whole(state, "number")
        low, high = state["key"]
        self._key = whole({"key": low}, "key"), whole({"key": high}, "key")
        self._has_told = bool(state["has_told"])
        self._noise.bit_generator.state = state["noise"]
        self._statistics.load_state(state["statistics"])
        self._load_steering(state)
        reason = self._load_environment(tensors, state["environments"])
        if reason is not None:
            self._statistics.drop_running()
            self.restart(env_seed)
            return reason
        load_into("observation", self._observation, tensors)
        if self._memory is not None:
            load_into("memory.state", self._state_of_actor, tensors)
            load_into("memory.starts", self._starts, tensors)
        if (under_way := state.get("under_way")) is not None:
            self._load_under_way(tensors, under_way)
        return None

    def _load_environment(self, tensors: dict[str, Tensor], saved: dict[str, Any]) -> str | None:
        if "not_saved" in saved:
            return str(saved["not_saved"])
        own = {name.removeprefix("environment."): t for name, t in tensors.items() if name.startswith("environment.")}
        try:
            self._environments.load_tensors(own)
        except EnvStateError as error:
            return str(error)
        return None

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        filled = whole(state, "filled")
        given = state["finals_given"]
        if filled > self.num_steps or len(given) != filled:
            raise ValueError(f"of {self.num_steps} rows, {filled} are said to be filled, and {len(given)} known of")
        self._finals_given = [bool(value) for value in given]
        if any(given) and not len(self._block.finals):
            self._block = with_finals(self._block)
        for name, part in rows_that_matter(self._block, filled, self._memory).items():
            load_into(f"buffer.{name}", part, tensors)
        buffer = self._buffers[0]
        self._draw_noise(buffer)
        self._under_way = RolloutUnderWay(buffer, whole(state, "version"), filled, [])

    def check(self, rollout: Rollout) -> None:  # noqa: D102 - as in the base
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "starts", "states"):
            require_like(name, getattr(rollout, name), getattr(self._block, name))
        require_like("log_probs", rollout.log_probs, self._block.rewards)
        require_like("valid_rows", rollout.valid_rows, self._all_rows)
        rows = rollout.final_rows
        require_like("final_rows", rows, self._all_rows[: len(rows)])
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self._all_rows):
            raise ValueError(f"final_rows are not all of {len(self._all_rows)} rows")
        finals = self._block.observations[:-1].flatten(0, 1)[: len(rows)]
        require_like("final_observations", rollout.final_observations, finals)
