"""One learner, and samplers anywhere that Ray reaches (`SingleLearnerCoarse`)."""

from functools import partial
from types import TracebackType
from typing import Any

from hybridppo.agents.registry import AnyConfig
from hybridppo.distribution.alone import Alone
from hybridppo.distribution.cluster import Cluster
from hybridppo.distribution.copies import as_copies
from hybridppo.distribution.policies import SingleLearnerCoarse
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent
from hybridppo.options import RunOptions
from hybridppo.placements.auto.auto import Auto
from hybridppo.placements.base import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.samplers.base import BaseSampler


class OverRay(Alone):
    """The learner of a training whose environments are elsewhere; while it is entered, Ray is there.

    Args:
        policy: which one, for messages.
        address: of a cluster that is there already; None starts one on this machine.
        count: how many workers there are.
        what: what they are called.
    """

    def __init__(self, policy: str, address: str | None, count: int, what: str) -> None:
        self._policy, self._address, self._count, self._what = policy, address, count, what
        self._cluster: Cluster | None = None

    def __enter__(self) -> "OverRay":
        self._cluster = Cluster(self._policy, self._address, self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        whom = f"with distribution {self._policy}"
        if self._count > config.num_envs:
            raise ConfigurationError(
                f"{self._what} must be at most num_envs = {config.num_envs}, got {self._count}: each steps at least one"
            )
        if run.num_workers:
            raise ConfigurationError(
                f"num_workers={run.num_workers} cannot be had {whom}, whose workers are elsewhere: leave it out"
            )
        if options.vectorization == "async":
            raise ConfigurationError(f"vectorization='async' cannot be had {whom}: leave it out")

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The CPU, where it was to be chosen."""
        return SingleDevice("cpu") if isinstance(meant, Auto) else meant


class Coarse(OverRay):
    """The learner of `SingleLearnerCoarse`: samplers are workers that act by themselves."""

    def __init__(self, policy: SingleLearnerCoarse, address: str | None) -> None:
        super().__init__(str(policy), address, policy.samplers, "samplers")

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        super().check(config, options, run)
        if (episodes := getattr(config, "episodes_per_rollout", None)) is not None:
            raise ConfigurationError(
                f"episodes_per_rollout={episodes} cannot be had with distribution {self._policy}: whole episodes are "
                "sampled in one process"
            )

    def placement(self, meant: Placement | Auto) -> Placement | Auto:  # noqa: D102 - as in the base
        placement = super().placement(meant)
        assert isinstance(placement, Placement)
        if placement.sampling_device.type != "cpu":
            raise ConfigurationError(
                f"distribution {self._policy} samples on CPUs, got {placement}: use a placement that samples on the "
                "CPU, such as hybrid or overlap"
            )
        return placement

    def environments(self, source: EnvSource, num_envs: int, options: EnvironmentOptions) -> Environments:
        """For their spaces; those that are stepped are the samplers'."""
        return make_environments(source, num_envs, as_copies(source, options, "samplers"))

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """One whose workers are Ray's."""
        from hybridppo.distribution.ray_workers import RayWorkers  # which loads Ray

        options |= {"num_workers": self._count, "transport": partial(RayWorkers, role="sampler")}
        options["options"] = as_copies(source, options["options"], "samplers", tells=False)
        return make_sampler(source, environments, agent, placement, **options)
