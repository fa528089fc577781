"""What trainings share whose environments are anywhere that Ray reaches."""

from types import TracebackType
from typing import Any

from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice, Within
from hybridppo.auto.trials import Name
from hybridppo.distribution.cluster import Cluster
from hybridppo.distribution.dividing import as_copies
from hybridppo.distribution.local import LocalTeam
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.runs.distribution_policies import Environments as EnvironmentWorkers
from hybridppo.runs.distribution_policies import SingleLearnerCoarse, SingleLearnerFine
from hybridppo.runs.options import RunOptions
from hybridppo.system.threads import cpu_cores


class OverRay(LocalTeam):
    """The learner of a training whose environments are elsewhere; while it is entered, Ray is there.

    Args:
        policy: which one.
        address: of a cluster that is there already; None starts one on this machine.
        count: how many workers there are.
        what: what they are called.
    """

    placements: tuple[Name, ...] = ()
    """Names of those that may be taken within it."""

    def __init__(
        self,
        policy: SingleLearnerCoarse | SingleLearnerFine | EnvironmentWorkers,
        address: str | None,
        count: int,
        what: str,
    ) -> None:
        self._policy, self._address, self._count, self._what = policy, address, count, what
        self._cluster: Cluster | None = None

    def __enter__(self) -> "OverRay":
        self._cluster = Cluster(str(self._policy), self._address, self._count)
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
        if (episodes := getattr(config, "episodes_per_rollout", None)) is not None:  # not every agent has it
            raise ConfigurationError(
                f"episodes_per_rollout={episodes} cannot be had {whom}: whole episodes are sampled in one process"
            )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        return as_copies(source, options, self._what)

    def choose(  # noqa: D102 - as in the base
        self, auto: Auto, source: EnvSource, environments: Environments, config: AnyConfig, *, agent: AnyAgent,
        total_steps: int, **options: Any,
    ) -> Choice:  # fmt: skip
        # What goes to other processes and back is the same under every placement: the policy's workers are stood in for
        # by workers of this machine, or by none if actions are chosen here.
        workers = min(self._count, cpu_cores()) if isinstance(self._policy, SingleLearnerCoarse) else 0
        within = Within(str(self._policy), self.placements, cpu_cores(), workers)
        return auto.choose(
            source, environments, config, agent=agent, total_steps=total_steps, within=within,
            **{**options, "num_workers": None},
        )  # fmt: skip
