"""Trainings with environments in a Ray cluster: `SingleLearnerCoarse`, `SingleLearnerFine`, `Environments`."""

from contextlib import closing
from typing import Any

from hybridppo.agents.registry import AnyConfig
from hybridppo.auto.auto import Auto
from hybridppo.distributed.cluster import Cluster
from hybridppo.distributed.dividing import as_copies
from hybridppo.distributed.strategy import Strategy
from hybridppo.distributed_policies import Environments as EnvironmentWorkers
from hybridppo.distributed_policies import SingleLearnerCoarse, SingleLearnerFine
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent
from hybridppo.networks.mlp import twin_of
from hybridppo.options import RunOptions
from hybridppo.placements.placement import Placement
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.sampler import BaseSampler


class OverRay(Strategy):
    """The learner of a training whose environments are in Ray actors. As a context, it connects to Ray.

    Args:
        policy: the policy of the training.
        address: address of a running cluster; None starts one on this machine.
        count: number of workers.
        what: the name of a worker, for messages.
    """

    def __init__(
        self,
        policy: SingleLearnerCoarse | SingleLearnerFine | EnvironmentWorkers,
        address: str | None,
        count: int,
        what: str,
    ) -> None:
        super().__init__(str(policy), lambda: Cluster(str(policy), address, count))
        self._policy, self._count, self._what = policy, count, what

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        whom = f"with distributed={self._policy}"
        if self._count > config.num_envs:
            raise ConfigurationError(
                f"{self._what} must be at most num_envs = {config.num_envs}, got {self._count}: each steps at least one"
            )
        if run.num_workers:
            raise ConfigurationError(
                f"num_workers={run.num_workers} does not work {whom}, whose workers are elsewhere: use num_workers=0"
            )
        if (episodes := getattr(config, "episodes_per_rollout", None)) is not None:  # not every agent has it
            raise ConfigurationError(
                f"episodes_per_rollout={episodes} does not work {whom}: whole episodes are sampled in one process"
            )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        return as_copies(source, options, self._what)


class Coarse(OverRay):
    """The learner of `SingleLearnerCoarse`, whose samplers have their own actors."""

    def __init__(self, policy: SingleLearnerCoarse, address: str | None) -> None:
        super().__init__(policy, address, policy.samplers, "samplers")

    def placement(self, meant: Placement | Auto) -> Placement | Auto:  # noqa: D102 - as in the base
        if isinstance(meant, Placement) and meant.sampling_device.type != "cpu":
            raise ConfigurationError(
                f"distributed={self._policy} samples on CPUs, got {meant}: use a placement that samples on the "
                "CPU, such as hybrid or overlap"
            )
        return meant

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """One environment, for its spaces: the samplers have all."""
        return make_environments(source, num_envs, options, copies=1)

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """A sampler with Ray's workers."""
        from hybridppo.distributed.ray_samplers import RaySamplers  # loads Ray

        if twin_of(agent.actor) is None:
            raise ConfigurationError(
                "samplers act in NumPy, with the library's own networks of tanh or relu only, without layer_norm and "
                f"impala convolutions: choose such a network, or distributed='environments:{self._count}', whose "
                "actor is here"
            )
        options |= {"num_workers": self._count, "transport": RaySamplers}
        return make_sampler(source, environments, agent, placement, **options)


class Fine(OverRay):
    """The process that acts and learns under `SingleLearnerFine` and `Environments`."""

    def __init__(self, policy: SingleLearnerFine | EnvironmentWorkers, address: str | None) -> None:
        self._is_central = isinstance(policy, SingleLearnerFine)
        if isinstance(policy, SingleLearnerFine):
            super().__init__(policy, address, policy.env_workers, "env_workers")
        else:
            super().__init__(policy, address, policy.workers, "workers")

    def placement(self, meant: Placement | Auto) -> Placement | Auto:  # noqa: D102 - as in the base
        is_apart = isinstance(meant, Placement) and meant.sampling_device.type != meant.learning_device.type
        if self._is_central and is_apart:
            raise ConfigurationError(
                f"distributed={self._policy} acts and learns in one place, got {meant}: use one device, or "
                f"distributed='environments:{self._count}'"
            )
        return meant

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """All environments, in workers; one is made here, for its spaces."""
        from hybridppo.distributed.ray_environments import RayEnvironments  # which loads Ray

        with closing(make_environments(source, 1, options)) as template:
            return RayEnvironments(source, template, num_envs=num_envs, num_workers=self._count, options=options)

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """A sampler in this process, which acts; workers step the environments."""
        return make_sampler(source, environments, agent, placement, **{**options, "num_workers": 0})
