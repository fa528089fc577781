"""One learner, and samplers anywhere that Ray reaches (`SingleLearnerCoarse`)."""

from functools import partial
from typing import Any

from hybridppo.auto.auto import Auto
from hybridppo.distribution.over_ray import OverRay
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent
from hybridppo.networks.forms import numpy_form
from hybridppo.placements.base import Placement
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runs.distribution_policies import SingleLearnerCoarse


class Coarse(OverRay):
    """The learner of `SingleLearnerCoarse`: samplers are workers that act by themselves."""

    placements = ("cpu", "overlap", "hybrid", "migrate")

    def __init__(self, policy: SingleLearnerCoarse, address: str | None) -> None:
        super().__init__(policy, address, policy.samplers, "samplers")

    def placement(self, meant: Placement | Auto) -> Placement | Auto:  # noqa: D102 - as in the base
        if isinstance(meant, Placement) and meant.sampling_device.type != "cpu":
            raise ConfigurationError(
                f"distribution {self._policy} samples on CPUs, got {meant}: use a placement that samples on the "
                "CPU, such as hybrid or overlap"
            )
        return meant

    def environments(self, source: EnvSource, num_envs: int, options: EnvironmentOptions) -> Environments:
        """One, for its spaces: the samplers have them all."""
        return make_environments(source, num_envs, options, copies=1)

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """One whose workers are Ray's."""
        from hybridppo.distribution.ray_workers import RayWorkers  # which loads Ray

        if numpy_form(agent.actor) is None:
            raise ConfigurationError(
                "samplers act in NumPy, with the library's own networks of tanh or relu only, without layer_norm and "
                f"impala convolutions: choose such a network, or distribution='environments:{self._count}', whose "
                "actor is here"
            )
        options |= {"num_workers": self._count, "transport": partial(RayWorkers, role="sampler")}
        return make_sampler(source, environments, agent, placement, **options)
