"""The strategy of a training makes its environments, sampler and loop. Here, it is one process."""

from collections.abc import Callable
from typing import Any

from typing_extensions import Self

from hybridppo.agents.registry import AnyConfig
from hybridppo.auto.auto import Auto, Choice, not_measured
from hybridppo.distributed.cluster import Cluster
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.interfaces import Agent
from hybridppo.options import RunOptions
from hybridppo.placements.placement import Placement
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import BaseSampler
from hybridppo.settings import Plan


class Strategy:
    """The strategy of a training in this process. It is a context, whose end stops all that it has started.

    Args:
        label: the way to distribute, as text; None for one process.
        connect: connects to a Ray cluster when the context begins; None if the strategy needs none.
    """

    rank = 0
    """The number of this learner. The first one, 0, has the run directory, and reports."""
    size = 1
    """The number of learners."""

    def __init__(self, label: str | None = None, connect: Callable[[], Cluster] | None = None) -> None:
        self.label, self._connect = label, connect
        self._cluster: Cluster | None = None
        """The Ray cluster, within the context."""

    def __enter__(self) -> Self:
        if self._connect is not None:
            self._cluster = self._connect()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End all started processes, and leave the cluster."""
        if self._cluster is not None:
            self._cluster.close()

    def settled(self, run: RunOptions) -> RunOptions:
        """The options of the run, the same for all learners."""
        return run

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:
        """Refuse settings that do not work with this policy.

        Raises:
            ConfigurationError: with the option and the remedy.
        """

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:
        """The options with which environments are made in every process; the run saves them."""
        return options

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The placement in each learner."""
        return meant

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """This process's share of the environments; with worker processes, only one, for its spaces."""
        return make_environments(source, num_envs, options, copies=1 if num_workers else None)

    def choose(self, auto: Auto, **training: Any) -> Choice:
        """As `Auto.choose` in one process; with several, the CPU, without a measurement."""
        if self.label is None:
            return auto.choose(**training)
        line = f"cpu with distributed={self.label}, for which nothing is measured: name another placement to use one"
        return not_measured("cpu", training["num_workers"] or 0, training["config"].torch_threads or 1, line)

    def begin(self, plan: Plan) -> Plan:
        """Start the other learners, which take over the state of the first."""
        return plan

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """As `make_sampler`."""
        return make_sampler(source, environments, agent, placement, **options)

    def runner(self, agent: Agent, sampler: BaseSampler, placement: Placement, **options: Any) -> Runner:
        """As `Runner`."""
        return Runner(agent, sampler, placement, **options)

    def end(self, agent: Agent) -> None:
        """Let the other learners end, because the training is over."""
