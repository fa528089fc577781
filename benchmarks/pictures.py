"""Draw pictures of results, from their JSON.

    python benchmarks/pictures.py

draws the documentation's, in `docs/pictures/`, from `benchmarks/results/`. Needs matplotlib.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import turns
from field import in_words
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from placement_turn import BY_EPISODE, BY_ROLLOUT

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
PARTS = {"sampling": "#4477aa", "learning": "#ee6677", "copying": "#ccbb44", "rest": "#bbbbbb"}
BAR = 0.28
"""Inches per bar."""
BARS = {
    "hybridppo cpu": "hybridppo, default",
    "hybridppo overlap": "hybridppo, overlap",
    "hybridppo cpu-compiled-fused": "hybridppo, compiled",
    "stable-baselines3": "stable-baselines3",
}
"""The contestants of `speed.py`'s small case that are drawn, and their labels."""
SPEEDS = "environment steps per second, sampled and learned from: longer is faster"
LONGEST = 8.0
"""A bar longer than the shortest by more than this factor is cut off, so that the others can be told apart."""


def stacked_bars(axes: Axes, names: Sequence[str], parts: dict[str, Sequence[float]]) -> None:
    """A horizontal bar for each name, of the parts one after the other, with the whole written at its end.

    A bar much longer than the shortest is cut off, and says so.
    """
    left = [0.0] * len(names)
    positions = range(len(names))
    for part, lengths in parts.items():
        axes.barh(positions, lengths, left=left, color=PARTS[part], height=0.75, label=part)
        left = [a + b for a, b in zip(left, lengths, strict=True)]
    end = min(1.15 * max(left), LONGEST * min(left))
    for position, whole in zip(positions, left, strict=True):
        text = f"{whole:.1f}" if whole <= end else f"{whole:,.0f}, cut off"
        axes.annotate(
            text, (min(whole, 0.87 * end), position), (3, 0), textcoords="offset points", va="center", fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    axes.set_yticks(list(positions), names, fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0.0, end)
    axes.spines[["top", "right"]].set_visible(False)


def parts_of(row: dict[str, Any]) -> dict[str, float]:
    """Microseconds of an environment step, by part."""
    parts = {part: row[f"us_{part}"] for part in ("sampling", "learning", "copying")}
    return {**parts, "rest": max(0.0, row["us_per_step"] - sum(parts.values()))}


def comparison(results: Path, picture: Path | None = None) -> Path:
    """What `scripts/compare_placements.py` measured: a panel for each network and rollout; the picture's path."""
    content = json.loads(results.read_text(encoding="utf-8"))
    rows = [row for row in content["rows"] if "us_per_step" in row and row["rollout"] in (BY_EPISODE, BY_ROLLOUT)]
    rollouts = list(dict.fromkeys(row["rollout"] for row in rows))
    sizes = list(dict.fromkeys(tuple(row["hidden_sizes"]) for row in rows))
    cells = {
        (size, rollout): [row for row in rows if (tuple(row["hidden_sizes"]), row["rollout"]) == (size, rollout)]
        for size in sizes
        for rollout in rollouts
    }
    heights = [2 + max(len(cells[size, rollout]) for rollout in rollouts) for size in sizes]
    figure = _figure(11, 0.9 + BAR * sum(heights))
    grid = figure.subplots(len(sizes), len(rollouts), squeeze=False, gridspec_kw={"height_ratios": heights})
    for size, panels in zip(sizes, grid, strict=True):
        for rollout, axes in zip(rollouts, panels, strict=True):
            split = [parts_of(row) for row in cells[size, rollout]]
            names = [row["candidate"] for row in cells[size, rollout]]
            stacked_bars(axes, names, {part: [each[part] for each in split] for part in PARTS})
            axes.set_title(f"hidden layers {' and '.join(map(str, size))}, an update per {rollout}", fontsize=8)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    title = "microseconds per environment step: shorter is faster"
    return _save(figure, content, picture or results.with_suffix(".png"), title)


def speed(results: Path, picture: Path) -> Path:
    """Steps per second beside stable-baselines3, in letters for a narrow screen; the picture's path."""
    rounds = json.loads(results.read_text(encoding="utf-8"))["cases"]["small"]["rounds"]
    figure = _figure(6, 2.4)
    axes = figure.subplots()
    speeds = {label: turns.medians(rounds, name)["steps_per_second"] for name, label in BARS.items()}
    _draw_speeds(axes, speeds, "CartPole: environment steps per second", size=13)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    figure.savefig(picture, dpi=160, metadata={"Software": None})
    return picture


def field(results: Path, picture: Path) -> Path:
    """What `field.py` measured: a panel for each case, the fastest on top; the picture's path."""
    content = json.loads(results.read_text(encoding="utf-8"))
    runs = content["measured"]
    content["machine"]["cpu"] = " or ".join(dict.fromkeys(run["cpu"] for run in runs))
    rows = (len(runs) + 1) // 2
    figure = _figure(10, 0.6 + rows * (0.6 + 0.2 * max(len(run["rounds"][0]) for run in runs)))
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes in panels[len(runs) :]:
        axes.set_axis_off()
    for axes, run in zip(panels, runs, strict=False):
        speeds = {
            name: statistics.median(turns[name]["steps_per_second"] for turns in run["rounds"] if name in turns)
            for name in dict.fromkeys(name for turns in run["rounds"] for name in turns)
        }
        fastest_first = dict(sorted(speeds.items(), key=lambda named: -named[1]))
        _draw_speeds(axes, fastest_first, f"{in_words(run)}: {run['words'].split(',')[0]}")
    return _save(figure, content, picture, SPEEDS)


def _draw_speeds(axes: Axes, speeds: dict[str, float], title: str, size: float = 7) -> None:
    """A bar for each contestant's steps per second, the first on top."""
    colours = [PARTS["sampling" if name.startswith("hybridppo") else "rest"] for name in speeds]
    bars = axes.barh(list(speeds), list(speeds.values()), color=colours)
    axes.bar_label(bars, [f"{value:,.0f}" for value in speeds.values()], padding=3, fontsize=size)
    axes.invert_yaxis()
    axes.set_xlim(right=1.2 * max(speeds.values()))
    axes.tick_params(labelsize=size)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(title, fontsize=size + 1)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # drawn straight to a file: no window, no global state
    return figure


def _save(figure: Figure, content: dict[str, Any], picture: Path, title: str) -> Path:
    figure.suptitle(f"{title}\n{machine.in_one_line(content['machine'])}", fontsize=7)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=100, metadata={"Software": None})
    return picture


def main() -> None:
    """Draw what has been measured."""
    pictures = {
        "speed": ("speed", speed),
        "field": ("field", field),
        "comparison": ("placements", comparison),
        "comparison-cuda": ("placements-cuda", comparison),
    }
    drawn = [
        draw(results, FOLDER / f"{picture}.png")
        for picture, (name, draw) in pictures.items()
        if (results := machine.RESULTS / f"{name}.json").exists()
    ]
    print("\n".join(map(str, drawn)))


if __name__ == "__main__":
    main()
