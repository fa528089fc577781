"""The command line.

    hybridppo train CartPole-v1 --total-steps 100000
    hybridppo resume runs/CartPole-v1-20260101-120000-seed0
    hybridppo evaluate runs/CartPole-v1-20260101-120000-seed0
    hybridppo placements CartPole-v1

Flags are made from the dataclasses below and from `PPOConfig`. Exit codes: 0 done; 1 an error, in one message;
2 wrong usage; 130 interrupted and saved.
"""

import json
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from hybridppo import training
from hybridppo.agents import PPOConfig
from hybridppo.environments.options import WORKER_TIMEOUT, AutoresetName, OnEnvError, Vectorization
from hybridppo.errors import ConfigurationError, HybridPPOError
from hybridppo.interruption import as_keyboard_interrupts
from hybridppo.placements import by_name as placements
from hybridppo.placements.auto.auto import Auto
from hybridppo.placements.auto.comparison import compare_placements, comparison_as_markdown, rows_of
from hybridppo.placements.base import Placement
from hybridppo.reporting.pictures import has_matplotlib, plot_learning_curve, plot_placements
from hybridppo.run_directory.directory import WhichCheckpoint

PlacementName = Literal["cpu", "cuda", "migrate", "hybrid", "overlap", "auto"]

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Train:
    """Train PPO in a gymnasium environment."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment, as registered with gymnasium."""
    total_steps: int = 500_000
    """Environment steps, of all copies together."""
    total_episodes: int | None = None
    """Episodes, likewise: whichever comes first ends the training."""
    seed: int | None = None
    """Of everything random; without it, one is taken from the operating system and written down."""
    placement: PlacementName = "auto"
    """Where to sample and where to learn; README.md has a table."""
    sampling_device: str = "cpu"
    """Where migrate, hybrid and overlap sample."""
    learning_device: str = "cuda"
    """Where migrate, hybrid and overlap learn."""
    max_lag: int = 0
    """1 lets auto take overlap, whose rollouts come from parameters one update old."""
    run_dir: Path | None = None
    """The folder to make and write to; without it, a fresh one under runs/."""
    evaluation_episodes: int = 0
    """Deterministic episodes to run after training."""
    num_workers: int | None = None
    """Processes that step the environments, each its share; 0 for none. By default one where sampling and learning
    overlap, and else none."""
    vectorization: Vectorization = "auto"
    """How copies are stepped: the environment's own vectorised form where it has one, else in turn (auto); in turn
    (sync); in a process each (async)."""
    autoreset_mode: AutoresetName | None = None
    """For vector environments that do not declare how they reset."""
    on_env_error: OnEnvError = "raise"
    """What to do where an environment fails, returns what cannot be used, or its worker process dies: raise an error,
    or restart it, drop its unfinished episode, and count that as env_restarts."""
    worker_timeout: float = WORKER_TIMEOUT
    """Seconds without a step after which a worker process counts as hung."""
    action_masks: bool = False
    """Choose only among the actions that the environment allows, in info["action_mask"]."""
    checkpoint_seconds: float = 60.0
    """How often to save, at least."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints to keep; the best of all by mean return is kept besides."""
    profile: bool = False
    """Write a trace of a few iterations into the run directory, for chrome://tracing or https://ui.perfetto.dev."""
    plot: bool = False
    """Draw the learning curve into the run directory, where matplotlib is installed."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""
    config: Annotated[PPOConfig, tyro.conf.arg(name="")] = field(default_factory=PPOConfig)

    def run(self) -> int:
        """Train, and say where the run lies."""
        seed = int(np.random.SeedSequence().generate_state(1)[0]) if self.seed is None else self.seed
        result = training.train(
            self.env_id,
            total_steps=self.total_steps,
            total_episodes=self.total_episodes,
            seed=seed,
            placement=self._placement(),
            config=self.config,
            run_dir=self.run_dir or training.default_run_dir(self.env_id, seed),
            evaluation_episodes=self.evaluation_episodes,
            num_workers=self.num_workers,
            vectorization=self.vectorization,
            autoreset_mode=self.autoreset_mode,
            on_env_error=self.on_env_error,
            worker_timeout=self.worker_timeout,
            action_masks=self.action_masks,
            checkpoint_seconds=self.checkpoint_seconds,
            keep_checkpoints=self.keep_checkpoints,
            profile=self.profile,
            progress=self.progress,
        )
        if self.plot and result.run_dir is not None:
            if has_matplotlib():
                print(f"learning curve: {plot_learning_curve(result.run_dir)}")
            else:
                print("no learning curve: matplotlib is not installed (pip install hybridppo[plot])")
        return _report(result)

    def _placement(self) -> Placement | Auto:
        if self.placement == "auto":
            return Auto(self.max_lag)
        return placements.make_placement(
            self.placement, sampling_device=self.sampling_device, learning_device=self.learning_device
        )


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest checkpoint."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder."""
    total_steps: int | None = None
    """A new goal; without it, the run's own."""
    total_episodes: int | None = None
    """A new limit, likewise."""
    placement: PlacementName | None = None
    """Another placement than the run's own."""
    num_workers: int | None = None
    """Another number of processes to step the environments than the run's own."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Resume, and say where the run lies."""
        result = training.resume(
            self.run_dir,
            total_steps=self.total_steps,
            total_episodes=self.total_episodes,
            placement=self.placement,
            num_workers=self.num_workers,
            progress=self.progress,
        )
        return _report(result)


@dataclass(frozen=True)
class Evaluate:
    """Run whole episodes with a checkpoint of a run."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder."""
    episodes: int = 20
    """How many episodes."""
    seed: int = 0
    """Of the environments, and of random actions."""
    deterministic: bool = True
    """Take the most probable actions."""
    checkpoint: WhichCheckpoint = "latest"
    """The latest, or the best: of those that were written, the one of the highest mean return over 100 episodes."""
    json: bool = False
    """Print the result as JSON."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Evaluate, and print mean and deviation."""
        evaluation = training.evaluate(
            self.run_dir,
            episodes=self.episodes,
            seed=self.seed,
            deterministic=self.deterministic,
            checkpoint=self.checkpoint,
            progress=self.progress,
        )
        if self.json:
            print(json.dumps(asdict(evaluation) | {"return_mean": evaluation.return_mean}))
        else:
            mean, deviation = evaluation.return_mean, evaluation.return_std
            print(f"return {mean:.2f} +- {deviation:.2f} over {self.episodes} episodes")
        return EXIT_DONE


@dataclass(frozen=True)
class Placements:
    """Predict how fast training is under each placement that this machine can run, and what auto would choose."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment, as registered with gymnasium."""
    total_steps: int = 500_000
    """Of the run that is planned; what starts once is spread over it."""
    max_lag: int = 0
    """1 lets auto take overlap, whose rollouts come from parameters one update old."""
    num_workers: int | None = None
    """Processes that step the environments; without it, every number that may be worth it."""
    vectorization: Vectorization = "auto"
    """How copies are stepped, as for train."""
    autoreset_mode: AutoresetName | None = None
    """For vector environments that do not declare how they reset."""
    action_masks: bool = False
    """Choose only among the actions that the environment allows, as for train."""
    measure: bool = False
    """Train under each for real, too, and put that beside the predictions."""
    seconds: float = 3.0
    """How long to train under each, after a warm-up."""
    plot: Path | None = None
    """Draw the table into this PNG, where matplotlib is installed."""
    json: bool = False
    """Print the table as JSON."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""
    config: Annotated[PPOConfig, tyro.conf.arg(name="")] = field(default_factory=PPOConfig)

    def run(self) -> int:
        """Predict, measure where asked, and print the table."""
        if self.plot is not None and not has_matplotlib():
            raise ConfigurationError("--plot needs matplotlib: pip install hybridppo[plot]")
        comparison = compare_placements(
            self.env_id,
            self.config,
            total_steps=self.total_steps,
            max_lag=self.max_lag,
            num_workers=self.num_workers,
            measured_seconds=self.seconds if self.measure else 0.0,
            options={
                "vectorization": self.vectorization,
                "autoreset_mode": self.autoreset_mode,
                "action_masks": self.action_masks,
            },
            progress=self.progress,
        )
        print(json.dumps(comparison, indent=1) if self.json else comparison_as_markdown(comparison))
        if self.plot is not None:
            plot_placements(rows_of(comparison), f"{self.env_id}, seconds by part", self.plot)
        return EXIT_DONE


Command = Train | Resume | Evaluate | Placements


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; never returns."""
    commands = Annotated[Train, tyro.conf.subcommand("train")] | Annotated[Resume, tyro.conf.subcommand("resume")]
    commands |= Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    commands |= Annotated[Placements, tyro.conf.subcommand("placements")]

    def parse() -> Command:
        parsed: Command = tyro.cli(
            commands,
            args=arguments,
            prog="hybridppo",
            description=__doc__,
            config=(tyro.conf.OmitArgPrefixes,),
        )
        return parsed

    sys.exit(run_command(parse))


def run_command(parse: Callable[[], Command]) -> int:
    """Parse and run a command; its exit code, after one clear message where there is an error."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        command = parse()
    except ConfigurationError as error:  # a value that its flag admits, and the configuration does not
        return _fail(error, EXIT_USAGE)
    try:
        with as_keyboard_interrupts():  # but while training, when they are requests
            return command.run()
    except ConfigurationError as error:
        return _fail(error, EXIT_USAGE, command.debug)
    except HybridPPOError as error:
        return _fail(error, EXIT_ERROR, command.debug)
    except Exception as error:  # not the library's own, as from an environment's code
        return _fail(error, EXIT_ERROR, command.debug)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _fail(error: Exception, code: int, debug: bool = False) -> int:
    if debug:
        traceback.print_exception(error)
    elif isinstance(error, HybridPPOError):
        print(f"hybridppo: error: {error}", file=sys.stderr)
    else:
        print(f"hybridppo: error: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
    return code


def _report(result: training.TrainResult) -> int:
    if not result.saved:
        print(
            f"hybridppo: error: the last checkpoint is not on the disk (see above): {result.run_dir} ends with the one "
            "before it; make room and resume",
            file=sys.stderr,
        )
        return EXIT_ERROR
    if result.interrupted:
        print(f"interrupted; go on with: hybridppo resume {result.run_dir}", file=sys.stderr)
        return EXIT_INTERRUPTED
    if result.evaluation is not None:
        mean, deviation = result.evaluation.return_mean, result.evaluation.return_std
        print(f"evaluation: return {mean:.2f} +- {deviation:.2f} over {len(result.evaluation.returns)} episodes")
    print(f"run directory: {result.run_dir}")
    return EXIT_DONE
