"""Trains suites of environments on several seeds side by side, and makes a table and a picture.

hybridppo.run_benchmark("classic", seeds=5, output="benchmark")
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from hybridppo.agents import PPOConfig
from hybridppo.environments.packages import source_of
from hybridppo.errors import ConfigurationError
from hybridppo.run_directory.files import as_json, locked, replace_synced
from hybridppo.system.messages import markdown_table, shown_number
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_bools, require_path, require_whole
from hybridppo.tools.hyperparameters import known_environments, tuned_entry
from hybridppo.tools.jobs import Run, train_missing
from hybridppo.tools.plot import plot_runs, summary_of

logger = logging.getLogger(__name__)

Settings = Literal["tuned", "defaults"]

SUITES: dict[str, tuple[str, ...]] = {
    "classic": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    "box2d": ("LunarLander-v3", "BipedalWalker-v3"),
    "mujoco": (
        "HalfCheetah-v5",
        "Hopper-v5",
        "Walker2d-v5",
        "Ant-v5",
        "Swimmer-v5",
        "Reacher-v5",
        "InvertedPendulum-v5",
    ),
}
"""The environments of each suite."""
EVALUATION_EPISODES = 20


@dataclass(frozen=True)
class Case:
    """A row of the table: a training, repeated on every seed."""

    name: str
    """The environment's id."""
    total_steps: int
    config: PPOConfig
    published: float | None = None
    """The return that the source of the hyperparameters has published."""


@dataclass(frozen=True)
class Row:
    """The results of a case."""

    case: Case
    returns: list[float]
    """The mean return after training with deterministic actions, for each seed."""
    seconds: list[float]
    """Seconds of training, for each seed."""
    middle: float
    """The interquartile mean of `returns`."""
    low: float
    high: float
    """The bounds of its 95 % confidence interval, by bootstrap over the seeds."""


def run_benchmark(
    suite: str,
    *,
    seeds: int = 5,
    settings: Settings = "tuned",
    total_steps: int | None = None,
    output: str | Path = "benchmark",
    jobs: int | None = None,
    progress: bool = True,
) -> list[Row]:
    """Train every environment of a suite on several seeds.

    Every run is a process and a run directory below `output`. A benchmark may be stopped at any time: the same call
    continues the unfinished runs. It writes `benchmark.json`, `benchmark.md` and, if matplotlib is installed,
    `curves.png`.

    Args:
        suite: the name of a suite (`classic`, `box2d`, `mujoco`), or environment ids separated by commas.
        seeds: number of runs for each environment.
        settings: `tuned`, with the steps that the settings were made for, or the library's `defaults`.
        total_steps: steps of each run, in place of the tuned ones; needed with `defaults`.
        output: the folder.
        jobs: number of runs at once; None for as many as there are cores.
        progress: whether to show a progress bar.

    Returns:
        A row for each case.

    Raises:
        ConfigurationError: if an argument is invalid, or `output` has runs with other settings.
        HybridPPOError: if a run ends with an error.
    """
    require_bools(progress=progress)
    seeds = require_whole("seeds", seeds)
    jobs = cpu_cores() if jobs is None else require_whole("jobs", jobs)
    output = require_path("output", output)
    cases = cases_of(suite, settings, total_steps)
    runs = {case.name: [_run(case, seed, output) for seed in range(seeds)] for case in cases}
    every = [run for of_a_case in runs.values() for run in of_a_case]
    for case in cases:
        source_of(case.name)  # an unknown module is refused before anything is written, and processes find the others
    with locked(output):
        train_missing(every, jobs=jobs, progress=progress)
        rows = [_row(case, runs[case.name]) for case in cases]
        replace_synced(output / "benchmark.json", as_json([asdict(row) for row in rows]).encode())
        replace_synced(output / "benchmark.md", f"{table(rows)}\n".encode())
        try:
            plot_runs([run.run_dir for run in every], output / "curves.png")
        except ConfigurationError as error:  # matplotlib is not installed, or no episode has ended
            logger.warning("no picture: %s", error)
    return rows


def cases_of(suite: str, settings: Settings = "tuned", total_steps: int | None = None) -> list[Case]:
    """The cases of a suite.

    Raises:
        ConfigurationError: if there is no such suite, or it has no settings.
    """
    if settings not in get_args(Settings):
        raise ConfigurationError(f"settings must be one of {', '.join(get_args(Settings))}, got {settings!r}")
    if total_steps is not None:
        total_steps = require_whole("total_steps", total_steps)
    env_ids = SUITES.get(suite) or [name.strip() for name in suite.split(",") if name.strip()]
    if not env_ids:
        raise ConfigurationError(f"a suite is one of {', '.join(SUITES)}, or ids with commas between")
    if settings == "defaults":
        if total_steps is None:
            raise ConfigurationError("the defaults are for no number of steps of their own: say total_steps, too")
        return [Case(env_id, total_steps, PPOConfig()) for env_id in dict.fromkeys(env_ids)]
    unknown = [env_id for env_id in env_ids if env_id not in known_environments()]
    if unknown:
        raise ConfigurationError(
            f"there are no tuned hyperparameters for {', '.join(unknown)}: ask for settings 'defaults'. "
            f"Suites: {', '.join(SUITES)}"
        )
    found = {env_id: tuned_entry(env_id) for env_id in env_ids}
    return [
        Case(env_id, total_steps or entry.total_steps, entry.config, entry.published_return)
        for env_id, entry in found.items()
    ]


def _run(case: Case, seed: int, output: Path) -> Run:
    folder = output / "runs" / case.name.replace("/", "-").replace(":", "-") / f"seed{seed}"
    options = {"placement": "cpu", "evaluation_episodes": EVALUATION_EPISODES}  # each run has one core
    return Run(folder, case.name, case.total_steps, seed, case.config, options)


def _row(case: Case, runs: Sequence[Run]) -> Row:
    results = [result for run in runs if (result := run.result()) is not None]
    returns = [float(result["evaluation_return_mean"]) for result in results]
    seconds = [float(result["seconds"]) for result in results]
    return Row(case, returns, seconds, *summary_of(returns))


def table(rows: Sequence[Row]) -> str:
    """A table in Markdown, with a line for each case."""
    heads = ("environment", "steps", "seeds", "return", "95 %", "lowest", "highest", "published", "seconds a run")
    lines = []
    for row in rows:
        case = row.case
        lines.append(
            [
                case.name,
                f"{case.total_steps:,}",
                str(len(row.returns)),
                shown_number(row.middle),
                f"{shown_number(row.low)} to {shown_number(row.high)}" if len(row.returns) > 1 else "",
                shown_number(min(row.returns)),
                shown_number(max(row.returns)),
                "" if case.published is None else f"{case.published:g}",
                f"{float(np.median(row.seconds)):,.1f}",
            ]
        )
    return markdown_table(heads, lines)
