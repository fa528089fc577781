"""The commands that take an environment: check, placements, doctor, benchmark, tune."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from hybridppo.agents import PPOConfig
from hybridppo.commands.parsing import EXIT_DONE, EXIT_ERROR, Command, EnvId, flags_of
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError, command
from hybridppo.options import fields_of
from hybridppo.placements.by_name import make_placement
from hybridppo.run_directory.files import as_json
from hybridppo.system.messages import shown_number
from hybridppo.tools.check import SECONDS_TO_STEP, check_env


@dataclass(frozen=True)
class Check(Command):
    """Step an environment with random actions, and report what is wrong with it, how to fix it, and how fast it is."""

    env_id: EnvId
    """The environment: an id, as registered with gymnasium, or a function that makes one, as module:function."""
    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments for gymnasium.make, or for the function that makes the environment, as a JSON object."""
    imports: str = ""
    """Modules that register environments, to import first, with commas between them."""
    steps: int = 2000
    """The largest number of steps to make."""
    seconds: float = SECONDS_TO_STEP
    """Seconds after which to stop stepping."""
    seed: int = 0
    """Seed of the environment and of the actions."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        """Check, and print the report; 1 if the environment cannot be trained in."""
        report = check_env(**self.arguments("env_id", "json"), env=self.env_id)
        print(as_json({**asdict(report), "is_usable": report.is_usable}).rstrip() if self.json else report)
        return EXIT_DONE if report.is_usable else EXIT_ERROR


@dataclass(frozen=True)
class Placements(Command):
    """Train briefly under each placement that this machine can run, and print a table of their speeds.

    The row in bold is the placement that auto would choose: the fastest over the planned run, including its start;
    within 3 %, the simplest.
    """

    env_id: EnvId
    """The environment: an id, as registered with gymnasium, or a function that makes one, as module:function."""
    total_steps: int = 500_000
    """Steps of the planned run, over which the time to start is spread."""
    max_lag: int = 0
    """1 or more allows auto to choose overlap, whose rollouts come from parameters that are one update old. With 0,
    overlap is measured, but never in bold."""
    num_workers: int | None = None
    """Processes that step the environments; None for every number that may pay off."""
    environment: Annotated[EnvironmentOptions, tyro.conf.arg(name="")] = field(default_factory=EnvironmentOptions)
    distributed: bool = False
    """Compare the ways to distribute instead (docs/distributed.md), each trained for some seconds. This takes a minute
    or more, because it starts learners, and Ray if it is installed."""
    address: str | None = None
    """Address of a running Ray cluster, auto or HOST:PORT, for --distributed."""
    seconds: float = 1.0
    """Seconds of training under each placement, after a warm-up."""
    json: bool = False
    """Print the table as JSON."""
    progress: bool = True
    """Show a progress bar."""
    config: Annotated[PPOConfig, tyro.conf.arg(name="")] = field(default_factory=PPOConfig)

    def run(self) -> None:
        """Measure, and print the table."""
        from hybridppo.tools.compare import as_markdown, compare_placements

        if self.address is not None and not self.distributed:
            raise ConfigurationError("--address is for --distributed: give both, or neither")
        if self.num_workers is not None and self.distributed:
            raise ConfigurationError("--num-workers cannot be used with --distributed: leave it out")
        options = self.arguments("env_id", "environment", "json")
        comparison = compare_placements(self.env_id, options=self.environment, **options)
        print(as_json(comparison).rstrip() if self.json else as_markdown(comparison))


@dataclass(frozen=True)
class Doctor(Command):
    """Report what is installed, whether it works, and which placement is the fastest; exit with 1 if a check failed."""

    env: str = "CartPole-v1"
    """The environment whose speed is measured."""
    seconds: float = 2.0
    """Seconds of training under each placement."""
    json: Path | None = None
    """A file to write the whole report into, to attach to a bug report."""

    def run(self) -> int:
        """Run the checks, and print what they find."""
        if not self.seconds > 0:
            raise ConfigurationError(f"--seconds must be positive, got {self.seconds:g}")
        from hybridppo.tools.doctor import diagnose, write

        diagnosis = diagnose(self.env, seconds=self.seconds, say=lambda line: print(line, flush=True))
        if self.json is not None:
            write(diagnosis, self.json)
            print(f"report: {self.json}")
        print("All available checks passed." if diagnosis.is_well else "Some checks failed: see above.")
        return EXIT_DONE if diagnosis.is_well else EXIT_ERROR


@dataclass(frozen=True)
class Benchmark(Command):
    """Train a suite of environments on several seeds, side by side. If stopped, the same command continues it."""

    suite: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUITE")]
    """classic, box2d or mujoco, or environment ids separated by commas."""
    seeds: int = 5
    """Runs for each environment."""
    settings: Literal["tuned", "defaults"] = "tuned"
    """Settings tuned for each environment, or the library's defaults."""
    total_steps: int | None = None
    """Steps of each run; None for the steps that the settings were made for."""
    output: Path = Path("benchmark")
    """The folder of the runs, the table and the picture."""
    jobs: int | None = None
    """Number of runs at once; None for one per core."""
    progress: bool = True
    """Show a progress bar."""

    def run(self) -> None:
        """Train what is missing, and print the table."""
        from hybridppo.tools.benchmark import run_benchmark, table

        print(table(run_benchmark(**self.arguments())))
        print(f"table, figures and picture: {self.output}")


@dataclass(frozen=True)
class Tune(Command):
    """Search for settings of PPO with optuna. If stopped, the same command continues the search."""

    env_id: EnvId
    """The environment."""
    total_steps: int = 100_000
    """Environment steps of each trial."""
    trials: int = 50
    """Number of combinations of settings to try."""
    fixed: dict[str, Any] | None = None
    """Settings that are not searched: fields of PPOConfig, such as '{"recurrent": "lstm"}'."""
    environment: Annotated[EnvironmentOptions, tyro.conf.arg(name="")] = field(default_factory=EnvironmentOptions)
    start_from: str | None = None
    """A run directory, or a file written by agent.save, with networks that every trial starts from. Needs hidden_sizes,
    activation and normalize_observations in --fixed."""
    placement: Literal["cpu", "cuda", "migrate", "hybrid", "overlap"] = "cpu"
    """Where every trial samples and learns. Each trial has one core."""
    sampling_device: str | None = None
    """Where migrate, hybrid and overlap sample; None for cpu."""
    learning_device: str | None = None
    """Where migrate, hybrid and overlap learn; None for cuda."""
    output: Path = Path("tune")
    """The folder of the search."""
    jobs: int | None = None
    """Number of runs at once; None for one per core."""
    seed: int = 0
    """Seed of the search and of the runs."""
    progress: bool = True
    """Show a progress bar."""

    def run(self) -> None:
        """Search, and print the best settings."""
        from hybridppo.tools.tune import tune

        placement = make_placement(
            self.placement, sampling_device=self.sampling_device, learning_device=self.learning_device
        )
        options = self.arguments("env_id", "environment", "sampling_device", "learning_device")
        entry = tune(self.env_id, **{**options, **asdict(self.environment), "placement": placement})
        assert entry.return_here is not None  # a search has measured it
        print(f"best: return {shown_number(entry.return_here)}, mean of its seeds ({entry.source})")
        print(f"train with it: {command('hybridppo', 'train', self.env_id, *self._flags_of_train())}")

    def _flags_of_train(self) -> list[str]:
        """The flags of `train` that train like the trials, with the best settings."""
        names = [*fields_of(EnvironmentOptions), "start_from", "placement", "sampling_device", "learning_device"]
        given = {**asdict(self), **asdict(self.environment)}
        usual = {**asdict(Tune(self.env_id)), **asdict(EnvironmentOptions())}
        changed = {name: given[name] for name in names if given[name] != usual[name]}
        return ["--tuned-from", str(self.output / "tuned.json"), *flags_of(changed)]
