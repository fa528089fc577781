"""The commands for runs and agents (evaluate, plot, report, play, export, watch, agents) and for environments.

The latter are check, placements, doctor, benchmark and tune.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import tyro

from hybridppo.agents import PPOConfig
from hybridppo.auto.auto import PlacementOptions
from hybridppo.commands.parsing import EXIT_DONE, EXIT_ERROR, Command, EnvId, OwnAgent, RunDir, flags_of, show
from hybridppo.config_files import own_agent
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError, command
from hybridppo.evaluation import environment_of, evaluate_agent, like_training
from hybridppo.loading import is_agent_file, load
from hybridppo.run_directory.directory import WhichCheckpoint
from hybridppo.run_directory.files import as_json
from hybridppo.runners.episodes import Evaluation
from hybridppo.runners.evaluation_callback import returns_of
from hybridppo.self_play import FIRST_RATING, SCALE, ratings_of, round_robin
from hybridppo.system.messages import markdown_table, shown_number
from hybridppo.tools.check import SECONDS_TO_CHECK, check_env


@dataclass(frozen=True, kw_only=True)
class _Acts(Command):
    """A command in which an agent acts."""

    env: str | None = None
    """The environment: an id, or a function as module:function; None for the run's own. An agent's file needs it."""
    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments of the environment in place of those in training, as a JSON object."""
    seed: int = 0
    """Seed of the environments and of sampled actions."""
    deterministic: bool = True
    """Take deterministic actions: the most probable. `evaluate` with others draws them at random."""
    checkpoint: WhichCheckpoint = "latest"
    """The latest checkpoint, or the best: the one with the highest mean return, of evaluations during training if there
    were any, else of 100 episodes of training."""


@dataclass(frozen=True)
class Evaluate(_Acts):
    """Evaluate an agent, or hold a tournament between several.

    A table then has the score of each agent against each other one: a win counts 1, a draw 0.5. Agents draw their
    actions at random, and their players are drawn in each game.
    """

    run_dir: RunDir
    """The run's folder, or an agent's file."""
    others: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="OTHER...")] = ()
    """Folders of other runs, or agents' files, to play against."""
    episodes: int = 20
    """Number of episodes; with others, number of games of each pair."""
    agent: OwnAgent = None
    """The class of the agents, if it is one of your own."""
    json: bool = False
    """Print the result as JSON."""
    progress: bool = True
    """Show a progress bar."""

    def run(self) -> None:
        """Evaluate, and print mean and standard deviation, or a table."""
        env, options = environment_of(self.run_dir, self.env, self.env_kwargs)
        kind = own_agent(self.agent)
        if self.others:
            agents = {str(path): load(path, self.checkpoint, agent=kind) for path in (self.run_dir, *self.others)}
            if len(agents) <= len(self.others):
                raise ConfigurationError("each agent of a round robin must be given once")
            made: dict[str, Any] = {"env_kwargs": options.env_kwargs, "imports": options.imports}
            scores = round_robin(agents, env, games=self.episodes, seed=self.seed, **made)
            show(as_json(scores, indent=None).rstrip() if self.json else scores_as_markdown(scores))
            return
        agent = load(self.run_dir, self.checkpoint, agent=kind)
        given = {name: getattr(self, name) for name in ("episodes", "seed", "deterministic", "progress")}
        found = evaluate_agent(agent, env, **given, **like_training(options))
        actions = "deterministic" if self.deterministic else "sampled"
        text = f"{returns_of(agent, found, self.episodes)}, {actions} actions"
        show(as_json(asdict(found) | {"return_mean": found.return_mean}, indent=None).rstrip() if self.json else text)
        if not self.json and not is_agent_file(self.run_dir):
            scale = f"Elo, from {FIRST_RATING:g} at the start; {SCALE:g} more win 10 times as often as they lose"
            for name, rating in ratings_of(self.run_dir, self.checkpoint).items():
                show(f"{name}: {rating:.0f} ({scale})")


def scores_as_markdown(scores: Mapping[str, Mapping[str, float]]) -> str:
    """The table of a round robin: a row for each agent, with its score against every other, and the mean of these."""
    rows = [
        [name, *(f"{row[other]:.2f}" if other in row else "" for other in scores), f"{fmean(row.values()):.2f}"]
        for name, row in scores.items()
    ]
    return markdown_table(["", *scores, "mean"], rows)


@dataclass(frozen=True)
class Plot(Command):
    """Draw metrics of runs, and print their last values: a line for each configuration, from the runs of all its seeds.

    The line is the interquartile mean of the seeds, with a bootstrap band. Runs whose settings differ only in options
    that cannot change a result, such as --num-workers, count as seeds of one configuration.
    """

    run_dirs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN_DIR...")]
    """Run directories, or folders that contain run directories."""
    output: Path = Path("curves.png")
    """The picture, .png, .svg or .pdf."""
    by: Literal["steps", "seconds"] = "steps"
    """The horizontal axis: environment steps, or seconds of training."""
    metric: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")] = ()
    """A metric to draw, as in metrics.jsonl, such as evaluation_return_mean; repeat the flag for several. Without the
    flag, the return in training."""
    confidence: float = 0.95
    """Confidence of the band, and of the intervals in the table."""
    label: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")] = ()
    """A label for the runs of each folder on the command line, in their order. Without labels, the settings in which
    they differ name the runs."""

    def run(self) -> None:
        """Draw, and list what was drawn."""
        from hybridppo.tools.plot import RETURN, plot_runs, table_of

        metrics = self.metric or (RETURN,)
        groups = plot_runs(labels=self.label, metrics=metrics, **self.arguments("label", "metric"))
        for group in groups:
            count = len(group.runs)
            show(f"{group.env_id}: {group.label}, {count} {'seed' if count == 1 else 'seeds'}")
        show(table_of(groups, metrics, self.confidence))
        show(f"picture: {self.output}")


@dataclass(frozen=True)
class Report(Command):
    """Write report.html into a run's folder: one page that needs no other file and no network."""

    run_dir: RunDir
    """The run's folder."""

    def run(self) -> None:
        """Write the page, and print its path."""
        from hybridppo.tools.report import write_report

        show(f"report: {write_report(self.run_dir)}")


@dataclass(frozen=True)
class Play(_Acts):
    """Record episodes of the agent of a run, or of a file, in a video, or show them in a window."""

    run_dir: RunDir
    """The run's folder, or an agent's file."""
    output: Path | None = None
    """The video, .mp4; None for video.mp4 in the run's folder, or beside an agent's file for one of its name."""
    episodes: int = 1
    """Number of episodes."""
    window: bool = False
    """Show the episodes in the environment's own window, without a video."""
    against: Path | None = None
    """Another run, or an agent's file. Its agent has all players but the first."""
    human: str | None = None
    """The agent that you play, as player_1: the terminal asks for its actions, and --window shows the game's window."""
    agent: OwnAgent = None
    """The class of the agents, if it is one of your own."""
    most_steps: int | None = None
    """Steps after which to stop, even within an episode; without it, 3000 for a video, and no limit in a window."""

    def run(self) -> None:
        """Play, and print the returns."""
        from hybridppo.tools.play import play

        played = play(**self.arguments("agent"), agent=own_agent(self.agent))
        for line in episode_lines(played, by_kind=self.against is None and self.human is None):
            show(line)
        if played.episodes < self.episodes:
            show(f"ended after {played.steps} steps, within an episode (--most-steps)")
        if played.path is not None:
            show(f"video: {played.path}")


def episode_lines(played: Evaluation, *, by_kind: bool = True) -> list[str]:
    """A line for every episode; with several agents, a line with the mean return of each kind, or of each agent."""
    if not played.agents:
        pairs = zip(played.returns, played.lengths, strict=True)
        return [f"episode: return {shown_number(value)}, {length} steps" for value, length in pairs]
    kinds: dict[str, list[float]] = {}
    for name, value in zip(played.agents, played.returns, strict=True):
        kinds.setdefault((by_kind and name.rpartition("_")[0]) or name, []).append(value)
    means = {kind: shown_number(sum(returns) / len(returns)) for kind, returns in kinds.items()}
    return [f"{kind}: mean return {means[kind]} of {len(of)} agents' episodes" for kind, of in kinds.items()]


@dataclass(frozen=True)
class Export(Command):
    """Write a run's policy into a file for other machines: .onnx, .pt2 for torch and C++, or .npz for NumPy.

    An existing file of that name is replaced when the new one is complete. With .npz, the module numpy_policy.py, which
    reads the file, is written beside it; a different file named numpy_policy.py is not replaced.
    """

    run_dir: RunDir
    """The run's folder, or an agent's file."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The file to write: .onnx, .pt2 or .npz."""
    checkpoint: WhichCheckpoint = "latest"
    """The latest checkpoint, or the best."""
    check_steps: int = 1000
    """Number of observations on which the file is compared with the agent; 0 to skip the comparison."""
    policy: str | None = None
    """The name of the policy to export, if the run has several."""
    agent: OwnAgent = None
    """The class of the agent, if it is one of your own."""

    def run(self) -> None:
        """Export, and print what was compared."""
        from hybridppo.tools.export import export

        exported = export(**self.arguments("agent"), agent=own_agent(self.agent))
        if exported.steps_checked:
            show(
                f"compared with the agent on {exported.steps_checked} observations: outputs differ by at most "
                f"{exported.largest_difference:.1g}"
            )
        show(f"policy: {exported.path}")


@dataclass(frozen=True)
class Push(_Acts):
    """Evaluate the agent of a run, and put it on the Hugging Face Hub, with a model card and the run's video.

    Needs a token: `hf auth login`, or HF_TOKEN. `hybridppo.pretrained` takes the agent from there.
    """

    run_dir: RunDir
    """The run's folder."""
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="USER/NAME")]
    """The model on the Hub; made if it does not exist."""
    episodes: int = 20
    """Number of episodes of the evaluation."""
    video: bool = False
    """Record an episode as the page's video. Otherwise, video.mp4 of the run's folder is taken if it exists."""
    private: bool = False
    """Make a new model private."""

    def run(self) -> None:
        """Evaluate and upload, and print the page's address."""
        from hybridppo.tools.gallery import push_to_hub

        show(f"model: {push_to_hub(**self.arguments())}")


@dataclass(frozen=True)
class Watch(Command):
    """Show a run in the terminal until it ends. Ctrl-C ends only the display, not the run."""

    run_dir: RunDir
    """The run's folder, on this machine or a shared disk."""
    seconds: float = 1.0
    """Seconds between two readings of its files."""

    def run(self) -> None:
        """Watch until the run ends, or Ctrl-C."""
        from hybridppo.tools.report import watch

        if not 0.0 < self.seconds < 3600.0:
            raise ConfigurationError(f"--seconds must be positive, and below 3600, got {self.seconds:g}")
        try:
            watch(self.run_dir, seconds=self.seconds)
        except KeyboardInterrupt:
            print()


@dataclass(frozen=True)
class Agents(Command):
    """List the trained agents of the library (hybridppo.pretrained), or show the card of one."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """The agent whose card is shown; USER/NAME for one on the Hugging Face Hub."""
    json: bool = False
    """Print all cards as JSON."""

    def run(self) -> None:
        """Print the table, or a card."""
        from hybridppo.tools import gallery

        if self.name is not None:
            show(as_json(gallery.card_of(self.name)).rstrip())
        else:
            show(as_json(gallery.cards()).rstrip() if self.json else gallery.table())


@dataclass(frozen=True)
class Check(Command):
    """Step an environment with random actions, and report what is wrong with it, how to fix it, and how fast it is."""

    env_id: EnvId
    """The environment: an id, as registered with gymnasium, or a function that makes one, as module:function."""
    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments for gymnasium.make, or for the function that makes the environment, as a JSON object."""
    imports: str = ""
    """Modules that register environments, to import first, with commas between them."""
    reward_weights: tuple[float, ...] = ()
    """For environments whose reward is several numbers: the weight of each in their sum, which is the reward."""
    max_items: int = 0
    """If observations have a Sequence or a Graph: the largest number of items, of nodes and of edges."""
    steps: int = 2000
    """The largest number of steps to make."""
    seconds: float = SECONDS_TO_CHECK
    """The time limit, in seconds; the report says what there was no time for."""
    seed: int = 0
    """Seed of the environment and of the actions."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        """Check, and print the report; 1 if the environment cannot be trained in."""
        report = check_env(**self.arguments("env_id", "json"), env=self.env_id)
        show(as_json({**asdict(report), "is_usable": report.is_usable}).rstrip() if self.json else report)
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
    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    seconds: float = 1.0
    """Seconds of training under each placement, after a warm-up."""
    json: bool = False
    """Print the table as JSON."""
    progress: bool = True
    """Show a progress bar."""
    config: PPOConfig = field(default_factory=PPOConfig)

    def run(self) -> None:
        """Measure, and print the table."""
        from hybridppo.tools.compare import as_markdown, compare_placements

        options = self.arguments("env_id", "environment", "json")
        comparison = compare_placements(self.env_id, options=self.environment, **options)
        show(as_json(comparison).rstrip() if self.json else as_markdown(comparison))


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
        from hybridppo.tools.doctor import diagnose

        diagnosis = diagnose(self.env, seconds=self.seconds, say=lambda line: show(line, flush=True))
        if self.json is not None:
            diagnosis.write(self.json)
            show(f"report: {self.json}")
        passed = f"All {len(diagnosis.checks)} checks passed."
        show(passed if diagnosis.is_well else "Some checks failed: see above.")
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

        show(table(run_benchmark(**self.arguments())))
        show(f"files: {self.output}")


@dataclass(frozen=True)
class Tune(Command):
    """Tune hyperparameters of PPO with optuna. If stopped, the same command continues the search."""

    env_id: EnvId
    """The environment."""
    total_steps: int = 100_000
    """Environment steps of each trial."""
    trials: int = 50
    """Number of combinations of settings to try."""
    fixed: dict[str, Any] | None = None
    """Settings that are not searched: fields of PPOConfig, such as '{"recurrent": "lstm"}'."""
    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    start_from: str | None = None
    """A run directory, or a file written by agent.save, with networks that every trial starts from. Needs hidden_sizes,
    activation and normalize_observations in --fixed."""
    placement: PlacementOptions = field(default=PlacementOptions("cpu"))
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

        options = {**self.arguments("env_id", "environment"), "placement": self.placement.resolve()}
        entry = tune(self.env_id, **options, **asdict(self.environment))
        assert entry.return_here is not None  # a search has measured it
        show(f"best: return {shown_number(entry.return_here)}, mean of its seeds ({entry.source})")
        show(f"train with it: {command('hybridppo', 'train', self.env_id, *self._flags_of_train())}")

    def _flags_of_train(self) -> list[str]:
        """The flags of `train` that train like the trials, with the best settings."""
        given, usual = (
            {**asdict(each.environment), **asdict(each.placement), "start_from": each.start_from}
            for each in (self, Tune(self.env_id))
        )
        changed = {name: value for name, value in given.items() if value != usual[name]}
        return ["--tuned-from", str(self.output / "tuned.json"), *flags_of(changed)]
