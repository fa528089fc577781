"""Learning curves of several runs.

Seeds are summarised by the interquartile mean and a bootstrap band, after Agarwal et al., "Deep Reinforcement Learning
at the Edge of the Statistical Precipice", 2021: among few seeds, a mean follows outliers, and a median wastes data.
"""

import functools
import itertools
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hybridppo.errors import ConfigurationError, RunDirectoryError
from hybridppo.run_directory.directory import RunDirectory, path_of
from hybridppo.run_directory.lines import read_lines, read_object
from hybridppo.runs.settings import config_to_show, settings_of_result
from hybridppo.spaces.arrays import Array

logger = logging.getLogger(__name__)

Axis = Literal["steps", "seconds"]

COLUMNS: dict[Axis, str] = {"steps": "env_steps", "seconds": "seconds"}
"""The column of `metrics.jsonl` that a curve is drawn over."""
PHASES = ("sampling", "learning", "copying", "other")
"""The parts of an iteration, whose seconds are columns of `metrics.jsonl`."""
NUMBERS_OF_RESULT = ("env_steps", "evaluation_return_mean", "evaluation_return_std")
"""The numbers in `result.json` with which views calculate."""
NUM_POINTS = 200
"""Points of a group's curve."""
MOST_IN_LABEL = 3
"""If groups differ in at most this number of settings, a label names all; else only those that distinguish groups."""
RESAMPLES = 2000
"""Bootstrap samples for a band."""


@dataclass(frozen=True)
class Run:
    """A run's settings and metrics."""

    path: Path
    config: dict[str, Any] = field(repr=False)
    lines: list[dict[str, Any]] = field(repr=False)
    """The lines of `metrics.jsonl`."""
    policy: str = ""
    """The policy's name, if several were trained together."""
    label: str = ""
    """The user's label."""

    @property
    def env_id(self) -> str:
        """The environment, and the policy if there are several."""
        env_id = str(self.config["env_id"])
        return f"{env_id}, {self.policy}" if self.policy else env_id

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All settings that can change the result, except the seed; nested settings are named `name.key`.

        Those of other policies that were trained together with this one are named `policy key`.
        """
        others = {name: own for name, own in self._of_policies.items() if name != self.policy}
        return {**self._own, **{f"{name} {key}": each for name, own in others.items() for key, each in own.items()}}

    @functools.cached_property
    def _own(self) -> dict[str, Any]:
        """The settings of the run and of this policy."""
        settings = settings_of_result(self.config)
        flat = {name: value for name, value in settings.items() if not isinstance(value, dict)}
        of_dicts = [(name, value) for name, value in settings.items() if isinstance(value, dict)]
        return {**flat, **{f"{name}.{key}": each for name, value in of_dicts for key, each in value.items()}}

    @functools.cached_property
    def _of_policies(self) -> dict[str, dict[str, Any]]:
        """The settings of each policy that can change the result, and whether it was not trained; empty for one."""
        found: dict[str, dict[str, Any]] = {}
        for name, config in self.config.get("policies", {}).items():
            settings = settings_of_result({**self.config, "config": config})
            found[name] = {field: settings[field] for field in config if field in settings}
            found[name]["played"] = name in self.config.get("played", ())
        return found

    @property
    def settings_key(self) -> str:
        """A text that is equal for runs with equal settings, whatever their seeds and environments."""
        settings = {**self._own, "policies": self._of_policies}
        return json.dumps(
            {name: value for name, value in settings.items() if value is not None}, sort_keys=True, allow_nan=True
        )

    def curve(self, by: Axis) -> tuple[Array, Array]:
        """The positions on the axis, and the mean return of the last 100 episodes there; `[n]` each."""
        column = COLUMNS[by]
        pairs = [(m[column], m.get("episode_return_mean")) for m in self.lines]
        points = [(at, value) for at, value in pairs if value is not None]
        found = np.asarray(points, np.float64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    env_id: str
    label: str
    runs: list[Run]
    """One run of each seed, the one with the most steps."""
    left_out: list[Run] = field(default_factory=list)
    """Further runs with the same seeds, which would count a result twice."""


@dataclass(frozen=True)
class Band:
    """The curve of a group, `[NUM_POINTS]` each, over the steps that all of its runs have reached."""

    at: Array
    middle: Array
    """The interquartile mean of the runs."""
    low: Array
    high: Array


def read_run(path: str | Path, label: str = "") -> Run:
    """Read a run, finished or not.

    Raises:
        RunDirectoryError: if it is no run directory, is damaged, or has no metrics yet.
    """
    directory = RunDirectory.open(path)
    config = config_to_show(directory)
    lines = read_lines(directory.path / "metrics.jsonl", **fields_shown(config))
    if not lines:
        raise RunDirectoryError(f"{path} has no metrics yet: wait for its first iteration")
    return Run(directory.path, config, lines, label=label)


def fields_shown(config: dict[str, Any]) -> dict[str, Sequence[str]]:
    """The numbers in `metrics.jsonl` with which views calculate, as arguments of `Tail`."""
    returns = [f"{name}/episode_return_mean" for name in names_of(config)]
    seconds = [f"seconds_{phase}" for phase in (*PHASES, "overlapped")]
    optional = ["episode_return_mean", "steps_per_second", *seconds, *returns]
    return {"numbers": ["iteration", *COLUMNS.values()], "optional": optional}


def read_policies(path: str | Path, label: str = "") -> list[Run]:
    """Read a run as one run for each of its policies.

    Raises:
        RunDirectoryError: as `read_run`.
    """
    run = read_run(path, label)
    return [policy_of(run, name) for name in names_of(run.config)] or [run]


def result_of(path: Path, lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of a run with these lines of metrics; None if it has not ended, or was resumed and has gone on.

    Raises:
        RunDirectoryError: if the file is damaged.
    """
    result = read_object(path / "result.json", optional=NUMBERS_OF_RESULT)
    has_gone_on = result is not None and bool(lines) and (result.get("env_steps") or 0) < lines[-1]["env_steps"]
    return None if has_gone_on else result


def names_of(config: dict[str, Any]) -> list[str]:
    """The names of policies that were trained together; empty for a run of one policy."""
    return list(config.get("policies", ()))


def policy_of(run: Run, name: str) -> Run:
    """A run with the metrics of one of its policies, as if it were the only one."""
    start = f"{name}/"
    lines = [
        {key.removeprefix(start): value for key, value in line.items() if key.startswith(start) or "/" not in key}
        for line in run.lines
    ]
    return Run(run.path, {**run.config, "config": run.config["policies"][name]}, lines, name, run.label)


def find_runs(paths: Sequence[str | Path]) -> list[Path]:
    """The run directories among the paths, and those directly below a path that is no run directory.

    Among the latter, those in which no episode has ended are left out with a warning, unless there is no other.

    Raises:
        RunDirectoryError: if there is no run.
    """
    found: list[Path] = []
    for path in map(path_of, paths):
        if os.path.exists(path / "config.json") or not os.path.isdir(path):
            found.append(path)  # if it is not a run, reading it raises an error
            continue
        below = sorted(config.parent for config in path.glob("*/config.json"))
        if not below:
            raise RunDirectoryError(f"{path} is no run directory, and there is none in it")
        begun = [run for run in below if _has_returns(run)] or below
        for run in below:
            if run not in begun:
                logger.warning("no episode has ended yet in %s, and it is left out", run)
        found += begun
    unique = list(dict.fromkeys(path.resolve() for path in found))
    if not unique:
        raise ConfigurationError("name at least one run directory")
    return unique


def _has_returns(run: Path) -> bool:
    """Whether an episode has ended in a run."""
    lines = read_lines(run / "metrics.jsonl")
    return any(line.get("episode_return_mean") is not None for line in lines)


def labelled(runs: Sequence[Run], labels: Sequence[str]) -> list[Run]:
    """The runs with labels, one for each configuration, in the order in which they come.

    Raises:
        ConfigurationError: if the numbers of labels and configurations differ.
    """
    alike = list(dict.fromkeys(run.settings_key for run in runs))
    if len(labels) != len(alike):
        raise ConfigurationError(
            "there must be one label for each folder that is named, or one for each configuration among the runs "
            f"({len(alike)}), got {len(labels)}: {', '.join(labels)}"
        )
    return [replace(run, label=labels[alike.index(run.settings_key)]) for run in runs]


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Group the runs that have the same environment, label and settings; the groups' labels name their differences."""
    together: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        together.setdefault((run.env_id, run.label, run.settings_key), []).append(run)
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
    """A label for each run: its own, and its differences from others with the same label and environment."""
    labels = []
    for mine in runs:
        others = [run.settings for run in runs if (run.env_id, run.label) == (mine.env_id, mine.label)]
        label = ", ".join(filter(None, (mine.label, _differences(mine.settings, others))))
        labels.append(label or mine.env_id)
    return labels


def _differences(mine: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """The differences between these settings and others (which include these), in a few words."""
    agents = {other["agent"] for other in others}
    others = [other for other in others if other["agent"] == mine["agent"]]  # other agents have other settings
    pairs = list(itertools.combinations(others, 2))
    every = {name: None for other in others for name in other}
    names = [name for name in every if any(_differs(name, *pair) for pair in pairs)]
    shown = names if len(names) <= MOST_IN_LABEL else _distinguishing(pairs, names)
    texts = [_shown(name, mine.get(name)) for name in shown if name in mine or "." in name]
    more = [f"and {len(names) - len(shown)} more"] if len(shown) < len(names) else []
    return ", ".join([*([mine["agent"]] if len(agents) > 1 else []), *texts, *more])


def _distinguishing(pairs: list[tuple[dict[str, Any], dict[str, Any]]], names: list[str]) -> list[str]:
    """A few of the names that still distinguish every pair of settings that differs in any of them."""
    found: list[str] = []
    left = [pair for pair in pairs if any(_differs(name, *pair) for name in names)]
    while left:
        found.append(max(names, key=lambda name: sum(_differs(name, *pair) for pair in left)))
        left = [pair for pair in left if not _differs(found[-1], *pair)]
    return found


def _differs(name: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs differ in a setting that both have; a key of `env_kwargs` may be missing in one."""
    return one.get(name) != other.get(name) and ((name in one and name in other) or "." in name)


def _shown(name: str, value: Any) -> str:
    short = name.rpartition(".")[2]
    if value is None and "." in name:
        return f"{short} not given"
    if name == "start_from" and value is not None:
        return f"{short} {Path(value).name}"
    if isinstance(value, bool) or value == "":
        return short if value else f"no {short}"
    return f"{short} {'x'.join(map(str, value)) if isinstance(value, list) else value}"


def band_of(group: Group, by: Axis, *, confidence: float = 0.95) -> Band:
    """The interquartile mean of a group's runs, and its confidence band.

    The curve covers the steps that all runs have reached; between two iterations it is a straight line. The band is the
    percentile bootstrap over runs; for one run it has no width.

    Raises:
        ConfigurationError: if a run has ended no episode, or the runs have no steps in common.
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
    """The confidence interval of the interquartile mean of `[n, ...]`, by the percentile bootstrap over `n`."""
    generator = np.random.default_rng(0)  # the same runs give the same picture
    chosen = generator.integers(len(values), size=(RESAMPLES, len(values)))
    means = np.stack([interquartile_mean(values[rows]) for rows in chosen])
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(means, (tail, 1.0 - tail), axis=0)
    return low, high


def interquartile_mean(values: Array) -> Array:
    """The mean of `[n, ...]` over `n` without the lowest and the highest quarter, each rounded down."""
    quarter = len(values) // 4
    mean: Array = np.sort(values, axis=0)[quarter : len(values) - quarter].mean(0)
    return mean
