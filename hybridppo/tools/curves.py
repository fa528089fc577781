"""Learning curves of several runs, and what they say together.

Of seeds, the interquartile mean and a bootstrap band are drawn, after Agarwal et al., "Deep Reinforcement Learning at
the Edge of the Statistical Precipice", 2021: a few seeds have outliers, which a mean follows and a median wastes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import ConfigurationError, RunDirectoryError
from hybridppo.run_directory.directory import RunDirectory

Array = NDArray[Any]
Axis = Literal["steps", "seconds"]

COLUMNS: dict[Axis, str] = {"steps": "env_steps", "seconds": "seconds"}
"""Of `metrics.jsonl`, what a curve is drawn over."""
NUM_POINTS = 200
"""Where a group is looked at."""
RESAMPLES = 2000
"""Of the runs, with replacement, for a band."""


@dataclass(frozen=True)
class Run:
    """A run as pictures need it."""

    path: Path
    config: dict[str, Any]
    lines: list[dict[str, Any]]
    """Of `metrics.jsonl`."""
    policy: str = ""
    """Whose it is, where several were trained together."""

    @property
    def env_id(self) -> str:
        """The environment, and whose returns in it these are."""
        env_id = str(self.config["env_id"])
        return f"{env_id}, {self.policy}" if self.policy else env_id

    @property
    def settings(self) -> dict[str, Any]:
        """What one run may differ in from another, but for the seed and how it was saved."""
        options = {name: self.config.get(name) for name in ("num_workers", "vectorization", "action_masks", "own")}
        return {**self.config["config"], "placement": self.config["placement"], **options}

    def curve(self, by: Axis) -> tuple[Array, Array]:
        """Where on the axis, and the mean return of the last 100 episodes there; `[n]` each."""
        column = COLUMNS[by]
        points = [(m[column], m["episode_return_mean"]) for m in self.lines if m["episode_return_mean"] is not None]
        found = np.asarray(points, np.float64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    env_id: str
    label: str
    runs: list[Run]


@dataclass(frozen=True)
class Band:
    """What a group has reached, `[NUM_POINTS]` each, as far as all of its runs have come."""

    at: Array
    middle: Array
    """The interquartile mean of the runs."""
    low: Array
    high: Array


def read_run(path: str | Path) -> Run:
    """A run, finished or not.

    Raises:
        RunDirectoryError: where it is none, or has no metrics yet.
    """
    directory = RunDirectory.open(path)
    lines = read_lines(directory.path / "metrics.jsonl")
    if not lines:
        raise RunDirectoryError(f"{path} has no metrics yet: wait for its first iteration")
    return Run(directory.path, directory.config, lines)


def read_policies(path: str | Path) -> list[Run]:
    """A run as one for each of its policies: itself, where there is but one.

    Raises:
        RunDirectoryError: as `read_run`.
    """
    run = read_run(path)
    return [policy_of(run, name) for name in names_of(run.config)] or [run]


def names_of(config: dict[str, Any]) -> list[str]:
    """Of the policies that were trained together, by a run's `config.json`; none, where there is but one."""
    return list(config.get("policies", ()))


def policy_of(run: Run, name: str) -> Run:
    """What a run says of one of its policies, as if it were the only one."""
    start = f"{name}/"
    lines = [
        {key.removeprefix(start): value for key, value in line.items() if key.startswith(start) or "/" not in key}
        for line in run.lines
    ]
    return Run(run.path, {**run.config, "config": run.config["policies"][name]}, lines, name)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` that are whole: the last may be under way.

    Raises:
        RunDirectoryError: where another than the last is damaged.
    """
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            metrics = json.loads(line)
            assert isinstance(metrics, dict)
        except (ValueError, AssertionError):
            raise RunDirectoryError(f"{path} is damaged: line {number} is no object of JSON") from None
        found.append(metrics)
    return found


def find_runs(paths: Sequence[str | Path]) -> list[Path]:
    """The run directories that are named, and those right below a folder that is none itself.

    Raises:
        RunDirectoryError: where there is none.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if (path / "config.json").exists() or not path.is_dir():
            found.append(path)  # if it is no run, reading it says so
            continue
        below = sorted(config.parent for config in path.glob("*/config.json"))
        if not below:
            raise RunDirectoryError(f"{path} is no run directory, and there is none in it")
        found += below
    unique = list(dict.fromkeys(path.resolve() for path in found))
    if not unique:
        raise ConfigurationError("name at least one run directory")
    return unique


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Runs of one environment and the same settings together, labelled by the settings in which groups differ."""
    together: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        together.setdefault((run.env_id, json.dumps(run.settings, sort_keys=True)), []).append(run)
    groups = []
    for (env_id, _), members in together.items():
        others = [found[0].settings for (env, _), found in together.items() if env == env_id]
        mine = members[0].settings
        names = [name for name in mine if any(other.get(name) != mine[name] for other in others)]
        label = ", ".join(f"{name} {_shown(mine[name])}" for name in names)
        groups.append(Group(env_id, label or env_id, members))
    return groups


def _shown(value: Any) -> str:
    if isinstance(value, dict):  # a placement, or what is of one's own
        return " ".join(str(part) for part in value.values() if part not in (None, False)) or "none"
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def band_of(group: Group, by: Axis, *, confidence: float = 0.95) -> Band:
    """The interquartile mean of a group's runs, and the band in which it lies with so much confidence.

    Runs are looked at where all of them have been; between two iterations a curve is a straight line. The band is the
    percentile bootstrap over runs; of one run it has no width.

    Raises:
        ConfigurationError: where no run has ended an episode, or there is nowhere that all have been.
    """
    curves = [run.curve(by) for run in group.runs]
    empty = [run.path for run, (at, _) in zip(group.runs, curves, strict=True) if not len(at)]
    if empty:
        raise ConfigurationError(f"no episode has ended in {empty[0]}: leave it out")
    start, end = max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves)
    if start > end:
        raise ConfigurationError(f"the runs of {group.label} have no {by} in common: draw them by another axis")
    at = np.linspace(start, end, NUM_POINTS)
    returns = np.stack([np.interp(at, *curve) for curve in curves])
    middle = interquartile_mean(returns)
    if len(returns) == 1:
        return Band(at, middle, middle, middle)
    low, high = bootstrap_interval(returns, confidence)
    return Band(at, middle, low, high)


def bootstrap_interval(values: Array, confidence: float = 0.95) -> tuple[Any, Any]:
    """Between which the interquartile mean of `[n, ...]` lies, by the percentile bootstrap over `n`."""
    generator = np.random.default_rng(0)  # the same runs give the same picture
    chosen = generator.integers(len(values), size=(RESAMPLES, len(values)))
    means = np.stack([interquartile_mean(values[rows]) for rows in chosen])
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(means, (tail, 1.0 - tail), axis=0)
    return low, high


def interquartile_mean(values: Array) -> Array:
    """Of `[n, ...]`, the mean over `n` without its lowest and its highest quarter, each rounded down."""
    cut = len(values) // 4
    kept: Array = np.sort(values, axis=0)[cut : len(values) - cut].mean(0)
    return kept
