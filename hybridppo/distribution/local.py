"""What a training asks of its distribution; and the answers of one that is not spread."""

from types import TracebackType
from typing import Any

from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import LearnerLostError
from hybridppo.interfaces import Agent
from hybridppo.placements.base import Placement
from hybridppo.runners.assembly import make_runner, make_sampler
from hybridppo.runners.runner import Runner
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runs.job import Job
from hybridppo.runs.options import RunOptions


class LocalTeam:
    """A training in this process. While it is entered, whatever it started is there."""

    rank = 0
    """Which of the learners this is; the first has the run directory, and speaks."""

    def __enter__(self) -> "LocalTeam":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what was started."""

    def settled(self, run: RunOptions) -> RunOptions:
        """The options of the run, as all who train have them."""
        return run

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:
        """Refuse what cannot be spread like this.

        Raises:
            ConfigurationError: with the option, and what to do.
        """

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:
        """The options with which the environments are made, wherever they are; a run keeps them."""
        return options

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The placement within each fragment."""
        return meant

    def environments(self, source: EnvSource, num_envs: int, options: EnvironmentOptions) -> Environments:
        """This process's share of the environments."""
        return make_environments(source, num_envs, options)

    def environments_to_begin(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None
    ) -> Environments:
        """Those that a training begins with: `environments`; with worker processes, one, for its spaces."""
        if num_workers:
            return make_environments(source, num_envs, options, copies=1)
        return self.environments(source, num_envs, options)

    def choose(
        self,
        auto: Auto,
        source: EnvSource,
        environments: Environments,
        config: AnyConfig,
        *,
        agent: AnyAgent,
        total_steps: int,
        **options: Any,
    ) -> Choice:
        """As `Auto.choose`: the placement within each fragment, measured by one, and the same for all who train."""
        return auto.choose(source, environments, config, agent=agent, total_steps=total_steps, **options)

    def begin(self, job: Job) -> Job:
        """Start the others, and agree with them on where to begin."""
        return job

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """As `make_sampler`."""
        return make_sampler(source, environments, agent, placement, **options)

    def runner(self, agent: Agent, sampler: BaseSampler, placement: Placement, **options: Any) -> Runner:
        """As `make_runner`."""
        return make_runner(agent, sampler, placement, **options)

    def regrouped(self, job: Job, lost: LearnerLostError) -> Job:
        """What to go on with where one of those who train is lost, from the last checkpoint.

        Raises:
            LearnerLostError: the same, where the training is over with it.
        """
        raise lost

    def end(self) -> None:
        """The training is over, and the others may go."""
