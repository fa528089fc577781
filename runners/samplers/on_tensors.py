"""Sampling of environments of tensors: rollout, actor, episode ends and statistics stay on their device.

Within a rollout, nothing is copied to the host. At its end, one tensor is: returns and lengths of the latest episodes,
the number of truncated ones, and the number of values that are not finite.
"""

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.tensor_noise import TensorActions, words
from hybridppo.environments.tensor_agents import TensorStep
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.rows import numbers_of
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.on_device import DeviceRollout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.device_base import ActorOnDevice, BaseDeviceSampler, load_into
from hybridppo.system.validation import part_of, whole

logger = logging.getLogger(__name__)


class TensorSampler(BaseDeviceSampler):
    """Steps an environment of tensors with an actor on its device.

    The noise of an action depends only on the run's seed, the number of the rollout, its row and the number of the
    environment. It is the same on every device, up to the rounding of a logarithm.

    If the environment does not return the final observation of a truncated episode, the value of the observation before
    the last action replaces that of the final one, as in rsl_rl ("last observation"); a warning says so once.

    Args:
        environments: closed with the sampler.
        distribution: distribution of the actions.
        num_steps: `T`.
        env_seed: seed of the environments.
        noise: generator, whose next two numbers are the key of all noise.
        memory: layout of the state of a recurrent actor.
        first: number of the first environment among those of the run.
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
        self._actions = TensorActions.of(distribution, environments.device)
        row = environments.encode.shape, environments.on_device.dtype
        layout = DeviceRollout.layout(
            num_steps, environments.num_envs, row=row, action=(distribution.action_shape, self._actions.dtype),
            num_outputs=distribution.output_size, finals=(0, environments.num_envs, *row[0]),
            can_be_absent=bool(environments.agents), memory=memory,
        )  # fmt: skip
        block = DeviceRollout.zeros(layout, environments.device)
        super().__init__(environments, block, distribution, noise=noise, memory=memory)
        self._environments = environments
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

    def _fill(self, actor: ActorOnDevice, first: int) -> int:
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

    def _outputs(self, actor: ActorOnDevice, t: int) -> Tensor:
        block, rows = self._block, self._block.observations[t]
        if self._memory is None:
            return actor.on_device(rows)
        assert block.starts is not None  # the layout has both with a memory
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
        if block.absent is not None:
            assert step.absent is not None  # of environments with agents
            block.absent[t].copy_(step.absent)
        self._finals_given.append(step.finals is not None)
        if step.finals is not None:
            if not len(block.finals):
                self._block = block = block.with_finals()
            block.finals[t].copy_(step.finals)
        elif len(block.finals):
            block.finals[t].copy_(block.observations[t])
        if self._memory is not None:
            self._starts = step.terminated | step.truncated

    # Reading

    def _read(self, version: int) -> Rollout:
        block, environments = self._block, self._environments
        is_cut = block.truncated & ~block.terminated
        layout = environments.encode.layout
        finals = block.finals if len(block.finals) else block.observations[:-1]
        rows_unknown = [t for t, is_given in enumerate(self._finals_given) if not is_given]
        is_unknown = is_cut
        if len(rows_unknown) < self.num_steps:
            is_unknown = is_cut.index_select(0, self._all_rows.new_tensor(rows_unknown)) if rows_unknown else is_cut[:0]
        cut_finals = is_cut.reshape(*is_cut.shape, *([1] * (numbers_of(finals, layout).ndim - 2)))
        counts = (
            is_cut.sum(),
            is_unknown.sum(),
            (~numbers_of(block.observations[1:], layout).isfinite()).sum(),
            (~block.rewards.isfinite()).sum(),
            (~numbers_of(finals, layout).isfinite() & cut_finals).sum(),
        )
        # The rollout's one wait for the device, except for the search of truncated rows if there are any.
        (num_cut, num_unknown, *bad), counted = self._on_host(counts)
        if any(bad):
            environments.require_finite("observation", block.observations[1:])
            environments.require_finite("reward", block.rewards)
            environments.require_finite("final observation", finals.masked_fill(~cut_finals, 0.0))
        if num_unknown and not self._has_told:
            self._has_told = True
            logger.warning(
                "%s gives no final observations (infos['final_obs']) of episodes that are truncated: the value of the "
                'observation before the last action stands for theirs (the approximation "last observation", as in '
                "rsl_rl)",
                environments.name,
            )
        self._count_told(counted)
        rows = is_cut.flatten().nonzero().squeeze(1) if num_cut else self._all_rows[:0]
        # It waits for the device, like the search of truncated rows; without agents, all rows are steps.
        valid = self._all_rows if block.absent is None else (~block.absent).flatten().nonzero().squeeze(1)
        return self._rollout_with(valid, rows, finals.flatten(0, 1).index_select(0, rows), version)

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._observation = self._environments.begin(env_seed).clone()
        if self._memory is not None:
            self._state_of_actor = torch.zeros((self.num_envs, self._memory.state_size), device=self._device)
            self._starts = torch.ones(self.num_envs, dtype=torch.bool, device=self._device)

    # Checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        tensors, state = super().state()
        is_dropped = self._under_way is not None and "not_saved" in state["environments"]
        return tensors, {
            **state, "key": list(self._key), "number": self._number - is_dropped, "has_told": self._has_told
        }  # fmt: skip

    def _state_of_environments(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        environment = self._environments.tensors_of_state()
        tensors = {f"environment.{name}": tensor for name, tensor in environment.items()}
        return {**tensors, **self._own_tensors()}, {"is_saved": True}

    def _own_tensors(self) -> dict[str, Tensor]:
        """The tensors that the sampler carries from step to step, by name."""
        own = {"observation": self._observation}
        if self._environments.of_agents is not None:
            own["present"] = self._environments.of_agents.present
        if self._memory is not None:
            own |= {"memory.state": self._state_of_actor, "memory.starts": self._starts}
        return own

    def _noise_under_way(self, filled: int) -> dict[str, Any]:
        return {"finals_given": self._finals_given[:filled]}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """As in the base, for a run in the same kind of environment."""
        if "key" not in state:
            raise ValueError("it was sampled in environments that are not tensors")
        low, high = state["key"]
        self._key = whole({"key": low}, "key"), whole({"key": high}, "key")
        self._number, self._has_told = whole(state, "number"), bool(state["has_told"])
        return super().load_state(tensors, state, env_seed=env_seed)

    def _load_environments(self, tensors: dict[str, Tensor], environments: dict[str, Any]) -> None:
        self._environments.load_tensors(part_of(tensors, "environment."))
        for name, mine in self._own_tensors().items():
            load_into(name, mine, tensors)

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        filled, given = whole(state, "filled"), state["finals_given"]
        if len(given) != filled:
            raise ValueError(f"filled is {filled}, and finals_given has {len(given)}")
        self._finals_given = [bool(value) for value in given]
        if any(given) and not len(self._block.finals):
            self._block = self._block.with_finals()
        super()._load_under_way(tensors, state)
        self._draw_noise(self._buffers[0])
