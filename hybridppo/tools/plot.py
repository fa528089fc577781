"""Pictures of runs and of placements; needs matplotlib (the extra `plot`).

hybridppo.plot_runs(["runs/a-seed0", "runs/a-seed1"], "curves.svg")
"""

import io
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from hybridppo.auto.trials import PARTS
from hybridppo.errors import ConfigurationError, pip_install, shown
from hybridppo.run_directory.files import making, replace_synced
from hybridppo.system.validation import is_number, require_path
from hybridppo.tools.curves import Axis, Group, Run, band_of, find_runs, groups_of, labelled, read_policies

SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that colour-blind people can distinguish: Okabe and Ito, "Color universal design", 2008."""
LINES = ("-", "--", "-.", ":")
"""Line styles; the next one is used when the colours are used up."""


def plot_runs(
    run_dirs: Sequence[str | Path] | str | Path,
    output: str | Path,
    *,
    by: Axis = "steps",
    confidence: float = 0.95,
    labels: Sequence[str] = (),
) -> list[Group]:
    """Draw the returns of runs: a panel for each environment, and a line for each group of seeds.

    Runs of one environment are a group if they differ only in their seeds and in settings that change no result. A line
    shows a group's interquartile mean, with a bootstrap band around it. Groups are labelled by the settings in which
    they differ. If runs of a group have the same seed, the one with the most steps is drawn, with a warning.

    Args:
        run_dirs: run directories, or folders of run directories: one, or several.
        output: the picture; `.png`, `.svg` or `.pdf`.
        by: the horizontal axis: environment `steps`, or `seconds` of training.
        confidence: confidence of the band.
        labels: a label for each of `run_dirs`, where runs with different labels are different groups; or one for each
            configuration among the runs, in their order.

    Returns:
        The groups that were drawn.

    Raises:
        ConfigurationError: if matplotlib is not installed, or an argument is invalid.
        RunDirectoryError: if a folder has no run, or the picture cannot be written.
    """
    if isinstance(run_dirs, str) or not isinstance(run_dirs, Iterable):
        run_dirs = [run_dirs]
    output = require_path("output", output)
    if by not in get_args(Axis):
        raise ConfigurationError(f"by must be one of {', '.join(get_args(Axis))}, got {by!r}")
    if not (is_number(confidence) and 0.0 < confidence < 1.0):
        raise ConfigurationError(f"confidence must be a number between 0 and 1, got {shown(confidence)}")
    if not (isinstance(labels, (list, tuple)) and all(isinstance(label, str) for label in labels)):
        raise ConfigurationError(f"labels must be a list of texts, got {shown(labels)}")
    require_picture(output)
    groups = groups_of(_runs([*run_dirs], labels))
    env_ids = list(dict.fromkeys(group.env_id for group in groups))
    columns = min(3, len(env_ids))
    rows = -(-len(env_ids) // columns)
    figure = _figure(1.5 + 5.5 * columns, 0.6 + 3.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(env_ids) :]:
        panel.set_visible(False)
    for panel, env_id in zip(panels, env_ids, strict=False):
        _draw(panel, [group for group in groups if group.env_id == env_id], by, confidence)
    _save(figure, output, dpi=150)
    return groups


def plot_placements(comparison: dict[str, Any], title: str, path: Path) -> Path:
    """Draw the milliseconds of an iteration as stacked bars, one for each placement; the picture's path.

    Args:
        comparison: the result of `compare_placements`.
        title: the title of the picture.
        path: the picture; `.png`, `.svg` or `.pdf`.

    Raises:
        ConfigurationError: if matplotlib is not installed, or the picture cannot have this suffix.
        RunDirectoryError: if the picture cannot be written.
    """
    require_picture(path)
    rows = comparison["candidates"]
    figure = _figure(8, 1.4 + 0.4 * len(rows))
    axes, positions = figure.subplots(), range(len(rows))
    starts = [0.0] * len(rows)
    for part in PARTS:
        widths = [1e3 * row[part] for row in rows]
        axes.barh(positions, widths, left=starts, label=part)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for position, whole in enumerate(starts):
        axes.text(whole, position, f" {whole:.3g}" if whole < 100 else f" {whole:,.0f}", va="center")
    labels = [row["label"] for row in rows]
    axes.set(yticks=positions, yticklabels=labels, xlabel="milliseconds an iteration", title=title)
    axes.set_xlim(right=1.15 * max(starts))
    axes.invert_yaxis()  # the first on top
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=len(PARTS))
    _save(figure, path, dpi=120)
    return path


def require_picture(path: Path) -> None:
    """Refuse a picture of another kind than `SUFFIXES`, and to draw without matplotlib.

    Raises:
        ConfigurationError: with the remedy.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(f"the picture must end with one of {', '.join(SUFFIXES)}, got {path.name!r}")
    if find_spec("matplotlib") is None:
        raise ConfigurationError(f"pictures need matplotlib: {pip_install('plot')}")


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # drawn straight to a file: no window, no global state
    return figure


def _save(figure: Any, path: Path, dpi: int) -> None:
    file = io.BytesIO()  # an existing picture stays until the new one is whole
    figure.savefig(file, format=path.suffix[1:].lower(), dpi=dpi)
    with making(path):
        replace_synced(path, file.getvalue())


def _runs(run_dirs: Sequence[str | Path], labels: Sequence[str]) -> list[Run]:
    if labels and len(labels) == len(run_dirs):
        names = {path: label for run_dir, label in zip(run_dirs, labels, strict=True) for path in find_runs([run_dir])}
        return [run for path, label in names.items() for run in _policies_seen(path, label)]
    runs = [run for path in find_runs(run_dirs) for run in _policies_seen(path)]
    return labelled(runs, labels) if labels else runs


def _policies_seen(path: Path, label: str = "") -> list[Run]:
    """The policies of a run that have ended an episode, as a policy without a seat in self-play never does."""
    runs = read_policies(path, label)
    return [run for run in runs if len(run.curve("steps")[0])] or runs


def _draw(axes: Any, groups: list[Group], by: Axis, confidence: float) -> None:
    for number, group in enumerate(groups):
        band = band_of(group, by, confidence=confidence)
        colour = COLOURS[number % len(COLOURS)]
        line = LINES[number // len(COLOURS) % len(LINES)]
        seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else f"seed {group.runs[0].config['seed']}"
        axes.plot(band.at, band.middle, color=colour, linestyle=line, label=f"{group.label} ({seeds})")
        if len(group.runs) > 1:
            axes.fill_between(band.at, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
    label = "environment steps" if by == "steps" else "seconds of training"
    axes.set(title=groups[0].env_id, xlabel=label, ylabel="return, mean of the last 100 episodes")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if by == "steps" else f"{value:g}")
    axes.xaxis.get_major_locator().set_params(nbins=5)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
