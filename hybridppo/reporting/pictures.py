"""Pictures of a run; needs matplotlib (the extra `plot`)."""

import json
from collections.abc import Sequence
from pathlib import Path


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def plot_learning_curve(run_dir: Path) -> Path:
    """Draw the mean episode return of a run's `metrics.jsonl` over its steps; the picture's path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((run_dir / "config.json").read_text())
    points = [(m["env_steps"], m["episode_return_mean"]) for m in lines if m["episode_return_mean"] is not None]
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)  # drawn straight to a file: no window, no global state
    axes = figure.add_subplot()
    axes.plot([steps for steps, _ in points], [mean for _, mean in points])
    axes.set(
        xlabel="environment steps",
        ylabel="return, mean of the last 100 episodes",
        title=f"{config['env_id']}, seed {config['seed']}",
    )
    axes.grid(alpha=0.3)
    path = run_dir / "learning_curve.png"
    figure.savefig(path, dpi=120)
    return path


def plot_placements(bars: Sequence[tuple[str, dict[str, float]]], title: str, path: Path) -> Path:
    """Draw an iteration's seconds as stacked bars, one per placement; the picture's path.

    Args:
        bars: a label, and seconds by part, in the order in which they are stacked.
        title: above the picture.
        path: of the PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + 0.4 * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels, positions = [label for label, _ in bars], range(len(bars))
    starts = [0.0] * len(bars)
    for part in bars[0][1]:
        widths = [1e3 * parts[part] for _, parts in bars]
        axes.barh(positions, widths, left=starts, label=part)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for position, whole in enumerate(starts):
        axes.text(whole, position, f" {whole:.3g}" if whole < 100 else f" {whole:,.0f}", va="center")
    axes.set(yticks=positions, yticklabels=labels, xlabel="milliseconds an iteration", title=title)
    axes.set_xlim(right=1.15 * max(starts))
    axes.invert_yaxis()  # the first on top
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=len(bars[0][1]))
    figure.savefig(path, dpi=120)
    return path
