"""Pictures of a run; needs matplotlib (`pip install hybridppo[plot]`)."""

import json
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
