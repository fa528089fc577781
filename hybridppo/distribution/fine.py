"""Actor and learner here, and environments anywhere that Ray reaches (`SingleLearnerFine`, `Environments`)."""

from typing import Any

from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice
from hybridppo.distribution.over_ray import OverRay
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent
from hybridppo.placements.base import Placement
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runs import distribution_policies as policies


class Fine(OverRay):
    """The process that acts and learns."""

    def __init__(self, policy: "policies.SingleLearnerFine | policies.Environments", address: str | None) -> None:
        self._is_central = isinstance(policy, policies.SingleLearnerFine)
        self.placements = ("cpu", "cuda") if self._is_central else ("cpu", "cuda", "overlap", "hybrid", "migrate")
        if isinstance(policy, policies.SingleLearnerFine):
            super().__init__(policy, address, policy.env_workers, "env_workers")
        else:
            super().__init__(policy, address, policy.workers, "workers")

    def placement(self, meant: Placement | Auto) -> Placement | Auto:  # noqa: D102 - as in the base
        is_apart = isinstance(meant, Placement) and meant.sampling_device.type != meant.learning_device.type
        if self._is_central and is_apart:
            raise ConfigurationError(
                f"distribution {self._policy} acts and learns in one place, got {meant}: use one device, or "
                f"distribution='environments:{self._count}'"
            )
        return meant

    def choose(  # noqa: D102 - as in the base
        self, auto: Auto, source: EnvSource, environments: Environments, config: AnyConfig, *, agent: AnyAgent,
        total_steps: int, **options: Any,
    ) -> Choice:  # fmt: skip
        # What it took to make them was the start of processes elsewhere: those that are measured are made here.
        options["seconds_to_make"] = 0.0
        return super().choose(auto, source, environments, config, agent=agent, total_steps=total_steps, **options)

    def environments(self, source: EnvSource, num_envs: int, options: EnvironmentOptions) -> Environments:
        """All of them, elsewhere; one is made here, for the spaces."""
        from hybridppo.distribution.remote_environments import RemoteEnvironments  # which loads Ray

        template = make_environments(source, 1, options)
        try:
            return RemoteEnvironments(source, template, num_envs=num_envs, num_workers=self._count, options=options)
        finally:
            template.close()

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """One of this process: it acts, and the environments are stepped elsewhere."""
        return make_sampler(source, environments, agent, placement, **{**options, "num_workers": 0})
