"""Trains suites of environments on several seeds side by side, and makes a table and a picture.

hybridppo.run_benchmark("classic", seeds=5, output="benchmark")
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import config_from_json, name_of
from hybridppo.errors import ConfigurationError, shown
from hybridppo.run_directory.files import as_json
from hybridppo.run_directory.lock import locked
from hybridppo.system.messages import markdown_table, shown_number
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import is_number, require_bools, require_path, require_whole
from hybridppo.tools.one_run import RunAsked
from hybridppo.tools.plot import bootstrap_interval, interquartile_mean, plot_runs
from hybridppo.tools.side_by_side import require_same, result_of, train_missing
from hybridppo.tools.tuned import known_environments, tuned_entry

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
PLACEMENT = {"placement": "cpu"}
"""The placement of every run: each has one core."""


@dataclass(frozen=True)
class Case:
    """A row of the table: a training, repeated on every seed."""

    name: str
    env_id: str
    total_steps: int
    agent: str
    config: dict[str, Any]
    published: float | None = None
    """The return that the source of the settings has published."""


@dataclass(frozen=True)
class Row:
    """The results of a case."""

    case: Case
    returns: list[float]
    """The mean return after training with the most probable actions, for each seed."""
    seconds: list[float]
    """Seconds of training, for each seed."""
    middle: float
    """The interquartile mean of `returns`."""
    low: float
    high: float
    """The bounds of its 95 % confidence interval, by bootstrap over the seeds."""


def run_benchmark(
    suite: str | Path,
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
        suite: the name of a suite (`classic`, `box2d`, `mujoco`), environment ids separated by commas, or a JSON file
            with `{"name": {"env_id": ..., "total_steps": ..., "agent": "ppo", "config": {...}}, ...}`.
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
    runs = {case.name: [_asked(case, seed, output) for seed in range(seeds)] for case in cases}
    asked = [run for of_a_case in runs.values() for run in of_a_case]
    owners: dict[str, str] = {}
    for name, of_a_case in runs.items():
        if (other := owners.setdefault(of_a_case[0].run_dir, name)) != name:
            raise ConfigurationError(
                f"the cases {other!r} and {name!r} would have the same folder, {of_a_case[0].run_dir}: rename one"
            )
    with locked(output):
        for run in asked:
            expected = {name: getattr(run, name) for name in ("env_id", "total_steps", "seed", "config")}
            require_same(Path(run.run_dir) / "config.json", expected)
        train_missing(asked, jobs=jobs, progress=progress)
        rows = [_row(case, runs[case.name]) for case in cases]
        (output / "benchmark.json").write_text(as_json([asdict(row) for row in rows]), "utf-8")
        (output / "benchmark.md").write_text(table(rows) + "\n", "utf-8")
        with contextlib.suppress(ConfigurationError):  # matplotlib is not installed, or no episode has ended
            plot_runs([run.run_dir for run in asked], output / "curves.png")
    return rows


def cases_of(suite: str | Path, settings: Settings = "tuned", total_steps: int | None = None) -> list[Case]:
    """The cases of a suite.

    Raises:
        ConfigurationError: if there is no such suite, or it has no settings.
    """
    if settings not in get_args(Settings):
        raise ConfigurationError(f"settings must be one of {', '.join(get_args(Settings))}, got {settings!r}")
    if total_steps is not None:
        total_steps = require_whole("total_steps", total_steps)
    if Path(suite).suffix == ".json":
        return _cases_in(Path(suite), total_steps)
    env_ids = SUITES.get(str(suite)) or [name.strip() for name in str(suite).split(",") if name.strip()]
    if not env_ids:
        raise ConfigurationError(f"a suite is one of {', '.join(SUITES)}, ids with commas between, or a .json file")
    if settings == "defaults":
        if total_steps is None:
            raise ConfigurationError("the defaults are for no number of steps of their own: say total_steps, too")
        config = PPOConfig().to_json()
        return [Case(env_id, env_id, total_steps, "ppo", config) for env_id in dict.fromkeys(env_ids)]
    unknown = [env_id for env_id in env_ids if env_id not in known_environments()]
    if unknown:
        raise ConfigurationError(
            f"there are no tuned settings for {', '.join(unknown)}: ask for settings 'defaults', or name a .json file. "
            f"Suites: {', '.join(SUITES)}"
        )
    found = {env_id: tuned_entry(env_id) for env_id in env_ids}
    return [
        Case(env_id, env_id, total_steps or entry.total_steps, "ppo", entry.config.to_json(), entry.published_return)
        for env_id, entry in found.items()
    ]


def _cases_in(path: Path, total_steps: int | None) -> list[Case]:
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the suite {path} cannot be read: {error}") from error
    if not isinstance(text, dict) or not all(isinstance(entry, dict) for entry in text.values()) or not text:
        raise ConfigurationError(f"the suite {path} must hold an object of objects, one for each case")
    cases = []
    for name, entry in text.items():
        unknown = set(entry) - {"env_id", "total_steps", "agent", "config", "published"}
        is_folder = Path(name).name == name and name != ".."
        if unknown or "env_id" not in entry or not is_folder:
            what = f"has {', '.join(sorted(unknown))}, which is unknown" if unknown else "needs an env_id"
            what = what if is_folder else "is no name that a folder can have"
            raise ConfigurationError(f"{path}: {name!r} {what}")
        agent = entry.get("agent", "ppo")
        try:
            config = config_from_json(agent, entry.get("config", {}))
        except (KeyError, TypeError, ConfigurationError) as error:
            raise ConfigurationError(f"{path}: {name!r} has settings that cannot be: {error}") from error
        steps = require_whole(f"{path}: total_steps of {name!r}", total_steps or entry.get("total_steps"))
        published = entry.get("published")
        if published is not None and not is_number(published):
            raise ConfigurationError(f"{path}: published of {name!r} must be a number, got {shown(published)}")
        cases.append(Case(name, entry["env_id"], steps, name_of(config), config.to_json(), published))
    return cases


def _asked(case: Case, seed: int, output: Path) -> RunAsked:
    folder = output / "runs" / case.name.replace("/", "-").replace(":", "-") / f"seed{seed}"
    options = {**PLACEMENT, "evaluation_episodes": EVALUATION_EPISODES}
    return RunAsked(str(folder), case.env_id, case.total_steps, seed, case.agent, case.config, options)


def _row(case: Case, runs: Sequence[RunAsked]) -> Row:
    results = [result for run in runs if (result := result_of(run)) is not None]
    returns = [float(result["evaluation_return_mean"]) for result in results]
    seconds = [float(result["seconds"]) for result in results]
    values = np.asarray(returns)
    low, high = map(float, bootstrap_interval(values))
    return Row(case, returns, seconds, float(interquartile_mean(values)), low, high)


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
