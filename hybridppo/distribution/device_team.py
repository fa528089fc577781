"""Learners that each have the whole loop on a device of their own (`GPUOnly`): environments, actor and learner.

Rollouts stay where they were sampled. What goes to all are the gradients of every minibatch, and once an iteration a
few numbers for each row, the moments of observations, and the returns of episodes that have ended.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.exchanges import RolloutShards, ShardedRollout, SummedShards, moments_of_all
from hybridppo.agents.registry import AnyConfig
from hybridppo.auto.auto import Auto
from hybridppo.distribution.launching import is_joining
from hybridppo.distribution.team import Team
from hybridppo.environments.base import Environments
from hybridppo.environments.making import is_tensor_env, make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.registration import source_of
from hybridppo.environments.tensor_shards import TensorShards
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.errors import ConfigurationError, DeviceError, LearnerLostError
from hybridppo.interfaces import Agent
from hybridppo.placements.base import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.on_tensors import TensorSampler
from hybridppo.runners.samplers.shards import ShardsSampler
from hybridppo.runs.distribution_policies import GPUOnly
from hybridppo.runs.job import Job
from hybridppo.runs.options import RunOptions
from hybridppo.system.accelerator import accelerator_of, num_cuda_devices

_NOT_SPREAD: dict[str, Any] = {
    "recurrent": None, "pool_size": 1, "episodes_per_rollout": None, "normalize_rewards": False,
    "cuda_graphs": False, "compiled_updates": False,
}  # fmt: skip
"""Fields of the configuration that these learners cannot have otherwise."""


class DeviceTeam(Team):
    """One of the learners, with a device, and on it the environments of its shards."""

    @classmethod
    def of(cls, policy: Any, timeout: float) -> "DeviceTeam":
        """The first learner, which starts the others.

        Raises:
            ConfigurationError: for processes that torchrun has started.
        """
        if is_joining():
            raise ConfigurationError(
                f"distribution {policy} starts its learners itself, one for each GPU of this machine: leave torchrun "
                "out, or use distribution='multi'"
            )
        return cls(0, policy.learners, policy.shards or policy.learners, timeout)

    @property
    def _policy(self) -> GPUOnly:
        return GPUOnly(self.size, self.shards)

    @property
    def _mine(self) -> range:
        """This learner's shards."""
        each = self.shards // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def settled(self, run: RunOptions) -> RunOptions:  # noqa: D102 - as in the base
        return replace(super().settled(run), distribution=str(self._policy))

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        learners = f"with distribution {self._policy}"
        if not isinstance(config, PPOConfig):
            raise ConfigurationError(f"a {type(config).__name__} cannot be had {learners}, whose learners share PPO's")
        for name, needed in _NOT_SPREAD.items():
            if (value := getattr(config, name)) != needed:
                raise ConfigurationError(
                    f"{name}={value!r} cannot be had {learners}: give {name}={needed!r}, or use distribution='local'"
                )
        if config.num_envs % self.shards:
            raise ConfigurationError(f"num_envs must be a multiple of the {self.shards} shards, got {config.num_envs}")
        rows = config.num_envs // self.shards * config.num_steps
        num_minibatches = config.minibatches_of(config.batch_size)
        if num_minibatches > (rows if self.shards > 1 or not config.normalize_advantage else rows // 2):
            raise ConfigurationError(
                f"num_minibatches must be at most the rows of a shard, num_envs * num_steps / shards = {rows}, "
                f"{learners}, got {num_minibatches}"
            )
        if run.num_workers:
            raise ConfigurationError(f"num_workers={run.num_workers} cannot be had {learners}: leave it out")

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        source = source_of(source)
        if isinstance(source, str) or is_tensor_env(source) or not callable(source):
            what = repr(source) if isinstance(source, str) else f"a {type(source).__name__}"
            raise ConfigurationError(
                f"distribution {self._policy} steps environments of tensors on each device, and "
                f"{what} cannot be made there: pass a function with parameters num_envs and device, see docs/tensors.md"
            )
        return options

    def placement(self, meant: Placement | Auto) -> Placement:
        """A device for each learner: the CUDA device of its number, or the CPU where that is asked for."""
        asked = None if isinstance(meant, Auto) else meant
        if asked is not None and not isinstance(asked, SingleDevice):
            raise ConfigurationError(
                f"with distribution {self._policy} each learner samples and learns on its own device, "
                f"got {asked}: use placement='cuda' or 'cpu'"
            )
        if asked is not None and asked.learning_device.type != "cuda":
            self._device = asked.learning_device
            return asked
        if num_cuda_devices() < self.size:
            raise DeviceError(
                f"distribution {self._policy} needs {self.size} CUDA devices, and torch "
                f"{torch.__version__} sees {num_cuda_devices()}: take as many learners, or placement='cpu' to try it"
            )
        own = SingleDevice(f"cuda:{self.rank}")
        self._device = own.learning_device
        return own

    def environments(self, source: EnvSource, num_envs: int, options: EnvironmentOptions) -> Environments:
        """Those of this learner's shards; each is made by itself, and seeded by the number of its shard."""
        share = num_envs // self.shards
        make = _on(self._device, source, options)
        parts: list[TensorEnvironments] = []
        try:
            for shard in self._mine:
                with accelerator_of(self._device).selected():  # as simulators expect of the device that they are told
                    made = make_environments(make, share, options, first=shard * share)
                if not isinstance(made, TensorEnvironments):
                    made.close()
                    raise ConfigurationError(
                        f"distribution {self._policy} steps environments of tensors, and the function "
                        f"made others ({type(made).__name__}): use distribution='multi:{self.size}' for those"
                    )
                parts.append(made)
                if made.device != torch.empty(0, device=self._device).device:
                    raise ConfigurationError(
                        f"the function was called with device={str(self._device)!r}, and made environments on "
                        f"{made.device}: make them where it says"
                    )
        except BaseException:
            for part in parts:
                part.close()
            raise
        return TensorShards(parts)

    def begin(self, job: Job) -> Job:
        """As in the base; what evaluations make is told of the device, too."""
        begun = super().begin(job)
        return replace(begun, env=_on(self._device, begun.env, begun.settings.environment))

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """Each steps its shards."""
        assert isinstance(environments, TensorShards)  # as made above
        assert isinstance(agent, PPO)
        placement.act_on_tensors()
        samplers = [
            TensorSampler(
                part,
                agent.distribution,
                num_steps=options["num_steps"],
                env_seed=options["env_seed"] + shard,
                noise=copy.deepcopy(options["noise"]),  # one key for all: noise is told apart by environment
                first=shard * part.num_envs,
            )
            for shard, part in zip(self._mine, environments.parts, strict=True)
        ]
        if agent.normalization.observations is not None:
            moments, before = agent.normalization.observations.moments, self._put_back
            alone = moments.of_all
            moments.of_all = moments_of_all(len(samplers), samplers[0].num_envs, self._exchanged)

            def put_back() -> None:
                before()
                moments.of_all = alone

            self._put_back = put_back
        return ShardsSampler(
            samplers,
            first=self._mine.start,
            num_shards=self.shards,
            join=ShardedRollout.of,
            gather=self.gather,
            gather_tensors=self._gathered,
        )

    def regrouped(self, job: Job, lost: LearnerLostError) -> Job:
        """A learner is not replaced: a device that is lost may be lost to the next one, too."""
        raise lost

    def _shards(self) -> SummedShards:
        return RolloutShards(self._agent.parameters, self._mine.start, len(self._mine), self._exchanged)

    def _exchanged(self, rows: Tensor) -> Tensor:
        """What each learner has of its shards, on its device, to what all have."""
        if self.link is None:
            return rows
        return self.link.gather_on_device(rows.contiguous()).flatten(0, 1)

    def _gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        on_host = {name: torch.empty(t.shape, dtype=t.dtype).copy_(t) for name, t in tensors.items()}
        if self.link is None:
            return on_host
        parts = self.link.gather(safetensors.torch.save(on_host))
        return {name: tensor for part in parts for name, tensor in safetensors.torch.load(part).items()}


def _on(device: torch.device, source: Any, options: EnvironmentOptions) -> Callable[..., Any]:
    """The function, told of the device.

    Raises:
        ConfigurationError: where it does not take one.
    """
    if "device" in (options.env_kwargs or {}):
        raise ConfigurationError("env_kwargs has a device, and each learner has its own: leave it out there")
    try:
        takes = "device" in inspect.signature(source).parameters
    except (TypeError, ValueError):
        takes = False
    if not takes:
        raise ConfigurationError(
            "the function that makes the environments must have a parameter device, for each learner has its own"
        )
    return partial(source, device=str(device))
