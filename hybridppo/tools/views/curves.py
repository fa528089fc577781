"""Learning curves of several runs, and what they say together.

Of seeds, the interquartile mean and a bootstrap band are drawn, after Agarwal et al., "Deep Reinforcement Learning at
the Edge of the Statistical Precipice", 2021: a few seeds have outliers, which a mean follows and a median wastes.
"""

import functools
import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import ConfigurationError, RunDirectoryError
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.lines import read_lines
from hybridppo.runs.settings import settings_of_result

logger = logging.getLogger(__name__)

Array = NDArray[Any]
Axis = Literal["steps", "seconds"]

COLUMNS: dict[Axis, str] = {"steps": "env_steps", "seconds": "seconds"}
"""Of `metrics.jsonl`, what a curve is drawn over."""
NUM_POINTS = 200
"""Where a group is looked at."""
MOST_IN_LABEL = 3
"""Settings that a label names, if they are all that groups differ in; else those by which they can be told apart."""
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
    label: str = ""
    """What somebody called it."""

    @property
    def env_id(self) -> str:
        """The environment, and whose returns in it these are."""
        env_id = str(self.config["env_id"])
        return f"{env_id}, {self.policy}" if self.policy else env_id

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All settings but the seed that can change the result; each of `env_kwargs` is one of its own."""
        settings = settings_of_result(self.config)
        flat = {name: value for name, value in settings.items() if not isinstance(value, dict)}
        of_dicts = [(name, value) for name, value in settings.items() if isinstance(value, dict)]
        return {**flat, **{f"{name}.{key}": each for name, value in of_dicts for key, each in value.items()}}

    @property
    def alike(self) -> str:
        """A text that is the same for runs of the same settings, whatever their seeds and environments."""
        return json.dumps(
            {name: value for name, value in self.settings.items() if value is not None}, sort_keys=True, allow_nan=True
        )

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
    """One of each seed: the one that has come farthest."""
    left_out: list[Run] = field(default_factory=list)
    """Others of the same seeds, which would count one result twice."""


@dataclass(frozen=True)
class Band:
    """What a group has reached, `[NUM_POINTS]` each, as far as all of its runs have come."""

    at: Array
    middle: Array
    """The interquartile mean of the runs."""
    low: Array
    high: Array


def read_run(path: str | Path, label: str = "") -> Run:
    """A run, finished or not.

    Raises:
        RunDirectoryError: if it is none, or has no metrics yet.
    """
    directory = RunDirectory.open(path)
    lines = read_lines(directory.path / "metrics.jsonl")
    if not lines:
        raise RunDirectoryError(f"{path} has no metrics yet: wait for its first iteration")
    return Run(directory.path, directory.config, lines, label=label)


def read_policies(path: str | Path, label: str = "") -> list[Run]:
    """A run as one for each of its policies: itself, where there is but one.

    Raises:
        RunDirectoryError: as `read_run`.
    """
    run = read_run(path, label)
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
    return Run(run.path, {**run.config, "config": run.config["policies"][name]}, lines, name, run.label)


def find_runs(paths: Sequence[str | Path]) -> list[Path]:
    """The run directories that are named, and those right below a folder that is none itself.

    Raises:
        RunDirectoryError: if there is none.
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


def labelled(runs: Sequence[Run], labels: Sequence[str]) -> list[Run]:
    """The runs with labels, one for each configuration, in the order in which they come.

    Raises:
        ConfigurationError: if there are more or fewer configurations.
    """
    alike = list(dict.fromkeys(run.alike for run in runs))
    if len(labels) != len(alike):
        raise ConfigurationError(
            "there must be one label for each folder that is named, or one for each configuration among the runs "
            f"({len(alike)}), got {len(labels)}: {', '.join(labels)}"
        )
    return [replace(run, label=labels[alike.index(run.alike)]) for run in runs]


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Runs of one environment, one label and the same settings together; labelled by what they differ in as well."""
    together: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        together.setdefault((run.env_id, run.label, run.alike), []).append(run)
    labels = _labels([members[0] for members in together.values()])
    groups = []
    for label, members in zip(labels, together.values(), strict=True):
        farthest = sorted(members, key=lambda run: -int(run.lines[-1]["env_steps"]))
        of_seeds = {run.config["seed"]: run for run in reversed(farthest)}
        kept = [run for run in members if of_seeds[run.config["seed"]] is run]
        left_out = [run for run in members if run not in kept]
        for run in left_out:
            logger.warning(
                "%s is left out: %s is of the same seed and settings, and one result does not count twice; labels tell "
                "such runs apart",
                run.path,
                of_seeds[run.config["seed"]].path,
            )
        groups.append(Group(members[0].env_id, label, kept, left_out))
    return groups


def _labels(runs: Sequence[Run]) -> list[str]:
    """A label for each run: its own, and what it differs in from the others of its environment that have the same."""
    labels = []
    for mine in runs:
        others = [run.settings for run in runs if (run.env_id, run.label) == (mine.env_id, mine.label)]
        label = ", ".join(filter(None, (mine.label, _differences(mine.settings, others))))
        labels.append(label or mine.env_id)
    return labels


def _differences(mine: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """What settings differ in from others, themselves among them, in a few words."""
    agents = {other["agent"] for other in others}
    others = [other for other in others if other["agent"] == mine["agent"]]  # other agents have other settings
    pairs = list(itertools.combinations(others, 2))
    every = {name: None for other in others for name in other}
    names = [name for name in every if any(_differs(name, *pair) for pair in pairs)]
    shown = names if len(names) <= MOST_IN_LABEL else _telling_apart(pairs, names)
    texts = [_shown(name, mine.get(name)) for name in shown if name in mine or "." in name]
    more = [f"and {len(names) - len(shown)} more"] if len(shown) < len(names) else []
    return ", ".join([*([mine["agent"]] if len(agents) > 1 else []), *texts, *more])


def _telling_apart(pairs: list[tuple[dict[str, Any], dict[str, Any]]], names: list[str]) -> list[str]:
    """A few of the names, such that pairs of settings that differ in any of them differ in one of the few."""
    found: list[str] = []
    left = [pair for pair in pairs if any(_differs(name, *pair) for name in names)]
    while left:
        found.append(max(names, key=lambda name: sum(_differs(name, *pair) for pair in left)))
        left = [pair for pair in left if not _differs(found[-1], *pair)]
    return found


def _differs(name: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs differ in a setting that both have; one of `env_kwargs` may be given to one alone."""
    return one.get(name) != other.get(name) and ((name in one and name in other) or "." in name)


def _shown(name: str, value: Any) -> str:
    short = name.rpartition(".")[2]
    if value is None and "." in name:
        return f"{short} not given"
    if name == "start_from" and value is not None:
        return f"{short} {Path(value).name}"
    if isinstance(value, bool):
        return short if value else f"no {short}"
    return f"{short} {'x'.join(map(str, value)) if isinstance(value, list) else value}"


def band_of(group: Group, by: Axis, *, confidence: float = 0.95) -> Band:
    """The interquartile mean of a group's runs, and the band in which it lies with so much confidence.

    Runs are looked at where all of them have been; between two iterations a curve is a straight line. The band is the
    percentile bootstrap over runs; of one run it has no width.

    Raises:
        ConfigurationError: if no run has ended an episode, or there is nowhere that all have been.
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
