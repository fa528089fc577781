"""Reads runs, groups those that differ only in their seeds, and draws them with matplotlib (the extra `plot`).

    hybridppo.plot_runs(["runs/a-seed0", "runs/a-seed1"], "curves.svg")

Seeds are summarised by the interquartile mean and a bootstrap band, after Agarwal et al., "Deep Reinforcement Learning
at the Edge of the Statistical Precipice", 2021: among few seeds, a mean follows outliers, and a median wastes data.
"""

import functools
import io
import json
import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from hybridppo.errors import ConfigurationError, RunDirectoryError, hint, is_installed, pip_install, shown
from hybridppo.run_directory.checkpoints import iteration_of_newest
from hybridppo.run_directory.directory import METRICS, RunDirectory, missing_lines, path_of
from hybridppo.run_directory.files import making, read_lines, read_object, replace_synced
from hybridppo.settings import Settings, settings_of_result
from hybridppo.spaces.arrays import Array
from hybridppo.system.messages import markdown_table, printable, shown_number
from hybridppo.system.validation import is_number, require_path

logger = logging.getLogger(__name__)

Axis = Literal["steps", "seconds"]

COLUMNS: dict[Axis, str] = {"steps": "env_steps", "seconds": "seconds"}
"""The column of `metrics.jsonl` that a curve is drawn over."""
RETURN = "episode_return_mean"
AXES = {RETURN: "return, mean of the last 100 episodes", "evaluation_return_mean": "return, mean of an evaluation"}
"""What the vertical axis says; for other metrics, their name."""
PHASES = ("sampling", "learning", "copying", "other", "overlapped")
"""The parts of an iteration, whose seconds are columns of `metrics.jsonl`; `overlapped` is sampling during learning."""
NUMBERS_OF_RESULT = ("env_steps", "evaluation_return_mean", "evaluation_return_std")
NUM_POINTS = 200
"""Points of a group's curve."""
MOST_IN_LABEL = 3
"""If groups differ in more settings, a label is the name of a run's folder."""
RESAMPLES = 2000
"""Bootstrap samples for a band."""
SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that colour-blind people can distinguish: Okabe and Ito, "Color universal design", 2008."""
LINES = ("-", "--", "-.", ":")
"""Line styles; the next one is used when the colours are used up."""


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
    gap: str = field(default="", repr=False)
    """What is missing in the lines, if anything is."""

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
        settings: dict[str, Any] = {}
        for name, value in settings_of_result(self.config).items():
            settings |= (
                {f"{name}.{key}": own for key, own in value.items()} if isinstance(value, dict) else {name: value}
            )
        for policy, config in self.config.get("policies", {}).items():
            start = "" if policy == self.policy else f"{policy} "
            found = settings_of_result({**self.config, "config": config})
            settings |= {f"{start}{name}": found[name] for name in config if name in found}
            settings[f"{start}played"] = policy in self.config.get("played", ())
        return settings

    @property
    def settings_key(self) -> str:
        """A text that is equal for runs with equal settings, whatever their seeds and environments."""
        given = {name: value for name, value in self.settings.items() if value is not None}
        return json.dumps(given, sort_keys=True, allow_nan=True)

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return int(self.lines[-1]["env_steps"]) if self.lines else 0

    @property
    def has_returns(self) -> bool:
        """Whether an episode has ended."""
        return any(line.get(RETURN) is not None for line in self.lines)

    def points(self, by: Axis, metric: str = RETURN) -> list[tuple[float, float]]:
        """The values of a metric, each after its position on the axis."""
        # A line has the result of an evaluation when it is reported, which may be some steps later.
        is_of_evaluation = any(part.startswith("evaluation_") for part in metric.split("/"))
        column = "evaluation_env_steps" if is_of_evaluation and by == "steps" else COLUMNS[by]
        lines = [line for line in self.lines if is_number(line.get(metric))]
        return [(line.get(column, line[COLUMNS[by]]), line[metric]) for line in lines]

    def curve(self, by: Axis, metric: str = RETURN) -> tuple[Array, Array]:
        """The positions on the axis, and the values of a metric there; `[n]` each."""
        found = np.asarray(self.points(by, metric), np.float64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds: one of each seed, the one with the most steps."""

    env_id: str
    label: str
    runs: list[Run]

    def final(self, metric: str = RETURN, confidence: float = 0.95) -> tuple[float, float, float]:
        """The interquartile mean of the runs' last values of a metric, and its confidence interval."""
        every = [points for run in self.runs if (points := run.points("steps", metric))] or [[(0.0, math.nan)]]
        return summary_of([points[-1][1] for points in every], confidence)


@dataclass(frozen=True)
class Band:
    """The curve of a group, `[NUM_POINTS]` each, over the steps that all of its runs have reached."""

    at: Array
    middle: Array
    """The interquartile mean of the runs."""
    low: Array
    high: Array


def read_run(path: str | Path, label: str = "") -> Run:
    """Read a run, finished or not. A warning says if lines of its metrics are missing.

    Raises:
        RunDirectoryError: if it is no run directory, or is damaged.
    """
    directory = RunDirectory.open(path)
    Settings.read(directory)  # refuses settings that are damaged
    path, config = directory.path, directory.config
    saved = iteration_of_newest(path / "checkpoints")  # before the lines, to which a training adds
    lines = read_lines(path / METRICS, **fields_shown(config))
    ended = max([saved, *(line["iteration"] for line in lines[-1:])])
    gap = missing_lines(path, ended, len(lines)) if len(lines) < ended else ""
    if gap:
        logger.warning("%s", gap)
    return Run(path, config, lines, label=label, gap=gap)


def fields_shown(config: dict[str, Any]) -> dict[str, Sequence[str]]:
    """The numbers in `metrics.jsonl` that are drawn and shown, as arguments of `Tail`."""
    returns = [f"{name}/episode_return_mean" for name in config.get("policies", ())]
    optional = ["episode_return_mean", "steps_per_second", *(f"seconds_{phase}" for phase in PHASES), *returns]
    return {"numbers": ["iteration", *COLUMNS.values()], "optional": optional}


def by_policy(run: Run) -> list[Run]:
    """The run as one run for each of its policies, with its own metrics and settings."""
    runs = []
    for name, config in run.config.get("policies", {}).items():
        start = f"{name}/"
        lines = [
            {key.removeprefix(start): value for key, value in line.items() if key.startswith(start) or "/" not in key}
            for line in run.lines
        ]
        runs.append(replace(run, config={**run.config, "config": config}, lines=lines, policy=name))
    return runs or [run]


def result_of(path: Path, lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of a run with these lines of metrics; None if it has not ended, or was resumed and has gone on.

    Raises:
        RunDirectoryError: if the file is damaged.
    """
    result = read_object(path / "result.json", optional=NUMBERS_OF_RESULT)
    has_gone_on = result is not None and bool(lines) and (result.get("env_steps") or 0) < lines[-1]["env_steps"]
    return None if has_gone_on else result


def find_runs(path: str | Path, label: str = "") -> list[Run]:
    """The runs of a run directory, one for each policy; or those of the run directories directly below a folder.

    Runs in which no episode has ended are left out with a warning, unless there is no other.

    Raises:
        RunDirectoryError: if there is no run, or one is damaged.
    """
    path = path_of(path)
    paths = [path]
    if os.path.isdir(path) and not os.path.exists(path / "config.json"):
        paths = sorted(config.parent for config in path.glob("*/config.json"))
        if not paths:
            raise RunDirectoryError(f"{path} is no run directory, and there is none in it")
    runs = [run for each in paths for run in by_policy(read_run(each.resolve(), label))]
    begun = [run for run in runs if run.has_returns]
    for run in runs if begun else ():
        if not run.has_returns:
            logger.warning("no episode has ended yet in %s, and it is left out", run.path)
    return begun or runs


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Group the runs that have the same environment, label and settings; the groups' labels name their differences."""
    together: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        together.setdefault((run.env_id, run.label, run.settings_key), []).append(run)
    first = [members[0] for members in together.values()]
    groups = []
    for members in together.values():
        of_seeds = {run.config["seed"]: run for run in sorted(members, key=lambda run: run.env_steps)}
        for run in members:
            if (kept := of_seeds[run.config["seed"]]) is not run:
                logger.warning(
                    "%s is left out: %s is of the same seed and settings, and one result does not count twice; labels "
                    "tell such runs apart",
                    run.path,
                    kept.path,
                )
        others = [run for run in first if (run.env_id, run.label) == (members[0].env_id, members[0].label)]
        label = ", ".join(filter(None, (members[0].label, _differences(members[0], others)))) or members[0].env_id
        kept_runs = [run for run in members if of_seeds[run.config["seed"]] is run]
        groups.append(Group(members[0].env_id, label, kept_runs))
    return groups


def _differences(mine: Run, others: Sequence[Run]) -> str:
    """The differences between the settings of a run and of others (this one among them), in a few words."""
    agent = mine.settings["agent"]
    alike = [other.settings for other in others if other.settings["agent"] == agent]  # other agents have other settings
    every = dict.fromkeys(name for other in alike for name in other)
    names = [name for name in every if any(_differs(name, alike[0], other) for other in alike)]
    texts = [_shown(name, mine.settings.get(name)) for name in names if name in mine.settings or "." in name]
    if len(names) > MOST_IN_LABEL:
        texts = [mine.path.name]
    return ", ".join(texts if len(alike) == len(others) else [agent, *texts])


def _differs(name: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs differ in a setting that both have; a key of `env_kwargs` may be missing in one."""
    return one.get(name) != other.get(name) and ((name in one and name in other) or "." in name)


def _shown(name: str, value: Any) -> str:
    short = name.rpartition(".")[2]
    if isinstance(value, bool) or value == "":
        return short if value else f"no {short}"
    return f"{short} {'x'.join(map(str, value)) if isinstance(value, list) else value}"


def band_of(group: Group, by: Axis, metric: str = RETURN, *, confidence: float = 0.95) -> Band:
    """The interquartile mean of a metric of a group's runs, and its confidence band.

    The curve covers the steps that all runs have reached; between two iterations it is a straight line. The band is the
    percentile bootstrap over runs; for one run it has no width.

    Raises:
        ConfigurationError: if a run lacks the metric, or the runs have no steps in common.
    """
    curves = [run.curve(by, metric) for run in group.runs]
    for run, (at, _) in zip(group.runs, curves, strict=True):
        if not len(at) and metric == RETURN:
            raise ConfigurationError(f"no episode has ended in {run.path}: leave it out")
        if not len(at):
            names = dict.fromkeys(name for line in run.lines for name in line)
            meant = hint(metric, None, names) or f": it has {', '.join(names)}"
            raise ConfigurationError(f"{run.path} has no metric {shown(metric)}{meant}")
    start, end = max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves)
    if start > end:
        raise ConfigurationError(f"the runs of {group.label} have no {by} in common: draw them by another axis")
    at = np.linspace(start, end, NUM_POINTS)
    returns = np.stack([np.interp(at, *curve) for curve in curves])
    return Band(at, interquartile_mean(returns), *bootstrap_interval(returns, confidence))


def bootstrap_interval(values: Array, confidence: float = 0.95) -> tuple[Any, Any]:
    """The confidence interval of the interquartile mean of `[n, ...]`, by the percentile bootstrap over `n`."""
    generator = np.random.default_rng(0)  # the same runs give the same picture
    chosen = generator.integers(len(values), size=(RESAMPLES, len(values)))
    means = np.stack([interquartile_mean(values[rows]) for rows in chosen])
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(means, (tail, 1.0 - tail), axis=0)
    return low, high


def summary_of(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """The interquartile mean of values, and its confidence interval."""
    found = np.asarray(values, np.float64)
    low, high = bootstrap_interval(found, confidence)
    return float(interquartile_mean(found)), float(low), float(high)


def interquartile_mean(values: Array) -> Array:
    """The mean of `[n, ...]` over `n` without the lowest and the highest quarter, each rounded down."""
    quarter = len(values) // 4
    return np.sort(values, axis=0)[quarter : len(values) - quarter].mean(0)


def plot_runs(
    run_dirs: Sequence[str | Path] | str | Path,
    output: str | Path,
    *,
    by: Axis = "steps",
    metrics: Sequence[str] | str = RETURN,
    confidence: float = 0.95,
    labels: Sequence[str] = (),
) -> list[Group]:
    """Draw metrics of runs: a panel for each environment and metric, and a line for each group of seeds.

    Runs of one environment are a group if they differ only in their seeds and in settings that change no result. A line
    shows a group's interquartile mean, with a bootstrap band around it. Groups are labelled by the settings in which
    they differ. If runs of a group have the same seed, the one with the most steps is drawn, with a warning.

    Args:
        run_dirs: run directories, or folders of run directories: one, or several.
        output: the picture; `.png`, `.svg` or `.pdf`.
        by: the horizontal axis: environment `steps`, or `seconds` of training.
        metrics: names of metrics, as in `metrics.jsonl`: one, or several.
        confidence: confidence of the band.
        labels: a label for each of `run_dirs`; runs with different labels are different groups.

    Returns:
        The groups that were drawn; `group.final(metric)` has the interquartile mean of their last values.

    Raises:
        ConfigurationError: if matplotlib is not installed, or an argument is invalid.
        RunDirectoryError: if a folder has no run, or the picture cannot be written.
    """
    run_dirs = [run_dirs] if isinstance(run_dirs, str) or not isinstance(run_dirs, Iterable) else list(run_dirs)
    output, metrics = require_path("output", output), [metrics] if isinstance(metrics, str) else list(metrics)
    if by not in get_args(Axis):
        raise ConfigurationError(f"by must be one of {', '.join(get_args(Axis))}, got {by!r}")
    if not (is_number(confidence) and 0.0 < confidence < 1.0):
        raise ConfigurationError(f"confidence must be a number between 0 and 1, got {shown(confidence)}")
    names = list(labels) or [""] * len(run_dirs)
    if len(names) != len(run_dirs):
        raise ConfigurationError(f"there must be a label for each of {len(run_dirs)} folders, got {', '.join(names)}")
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(f"the picture must end with one of {', '.join(SUFFIXES)}, got {output.name!r}")
    require_matplotlib()
    every = [run for path, label in zip(run_dirs, names, strict=True) for run in find_runs(path, label)]
    if not every:
        raise ConfigurationError("name at least one run directory")
    groups = groups_of(list({(run.path, run.policy): run for run in every}.values()))
    shown_in = [(metric, env_id) for metric in metrics for env_id in dict.fromkeys(group.env_id for group in groups)]
    if not shown_in:
        raise ConfigurationError("name at least one metric")
    panels, figure = panels_of(len(shown_in), width=5.5, height=3.6)
    for panel, (metric, env_id) in zip(panels, shown_in, strict=True):
        _draw(panel, [group for group in groups if group.env_id == env_id], by, metric, confidence)
    file = io.BytesIO()  # an existing picture stays until the new one is whole
    figure.savefig(file, format=output.suffix[1:].lower(), dpi=150)
    with making(output):
        replace_synced(output, file.getvalue())
    return groups


def table_of(groups: Sequence[Group], metrics: Sequence[str] = (RETURN,), confidence: float = 0.95) -> str:
    """A table in Markdown of the last values of metrics: the interquartile mean (IQM) of seeds, and its interval."""
    rows = []
    for group in groups:
        for metric in metrics:
            middle, low, high = map(shown_number, group.final(metric, confidence))
            interval = f"{low} to {high}" if len(group.runs) > 1 else ""
            rows.append([group.env_id, group.label, metric, str(len(group.runs)), middle, interval])
    return markdown_table(["environment", "runs", "last value", "seeds", "IQM", f"{confidence:.0%} interval"], rows)


def require_matplotlib() -> None:
    """Refuse to draw without matplotlib.

    Raises:
        ConfigurationError: with the remedy.
    """
    if not is_installed("matplotlib"):
        raise ConfigurationError(f"pictures need matplotlib: {pip_install('plot')}")


def panels_of(count: int, *, width: float, height: float) -> tuple[list[Any], Any]:
    """So many axes in rows of three, each of this size in inches, and their figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(1.5 + width * columns, 0.6 + height * rows), layout="constrained")
    FigureCanvasAgg(figure)  # drawn straight to a file: no window, no global state
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
    for panel in panels[count:]:
        panel.set_visible(False)
    return panels[:count], figure


def _draw(axes: Any, groups: list[Group], by: Axis, metric: str, confidence: float) -> None:
    for number, group in enumerate(groups):
        band = band_of(group, by, metric, confidence=confidence)
        colour = COLOURS[number % len(COLOURS)]
        line = LINES[number // len(COLOURS) % len(LINES)]
        seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else f"seed {group.runs[0].config['seed']}"
        axes.plot(band.at, band.middle, color=colour, linestyle=line, label=printable(f"{group.label} ({seeds})"))
        if len(group.runs) > 1:
            axes.fill_between(band.at, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
    label = "environment steps" if by == "steps" else "seconds of training"
    axes.set_title(printable(groups[0].env_id), parse_math=False)
    axes.set(xlabel=label, ylabel=AXES.get(metric, printable(metric).replace("_", " ")))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if by == "steps" else f"{value:g}")
    axes.xaxis.get_major_locator().set_params(nbins=5)
    title = f"IQM of the seeds, {confidence:.0%} interval" if max(len(group.runs) for group in groups) > 1 else None
    for text in axes.legend(loc="best", fontsize="small", title=title, title_fontsize="small").get_texts():
        text.set_parse_math(False)  # a name may have dollars
