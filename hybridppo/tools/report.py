"""Writes a run as one HTML page that needs no other file, no network and no script (the extra `plot`).

hybridppo.write_report("runs/CartPole-v1-20260101-120000-seed0")
"""

import base64
import io
import math
import statistics
import string
from collections.abc import Collection, Iterable, Sequence
from dataclasses import MISSING
from html import escape
from pathlib import Path
from typing import Any

from hybridppo.agents.registry import AGENTS
from hybridppo.errors import RunDirectoryError
from hybridppo.options import GROUPS, fields_of
from hybridppo.run_directory.files import making, read_lines, read_object, replace_synced
from hybridppo.system.messages import shown_clock, shown_number
from hybridppo.system.validation import is_number
from hybridppo.tools.plot import PHASES, Run, by_policy, panels_of, read_run, require_matplotlib, result_of

VIDEO = "video.mp4"
LARGEST_VIDEO = 20 * 2**20
"""Size in bytes; a larger video is linked."""
FIRST = ("episode_return_mean", "evaluation_return_mean", "episode_length_mean", "steps_per_second")
"""The metrics of the first curves, in order; they are drawn even if they never move."""
NO_CURVES = {"iteration", "env_steps", "seconds", "episodes", "agent_steps", "evaluation_env_steps"}
"""Metrics without a curve, besides the seconds of phases, which have a table."""
MOST_POINTS = 400
"""The most points of a curve, because more points than pixels cannot be seen."""
TEMPLATE = Path(__file__).with_name("report.html")
"""The page, with a `$name` in each place for a run's data."""


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` into the run directory of a run, finished or not; the page's path.

    Raises:
        ConfigurationError: if matplotlib is not installed.
        RunDirectoryError: if it is no run directory, is damaged, has no metrics yet, or cannot be written to.
    """
    require_matplotlib()
    run = read_run(run_dir)
    if not run.lines:
        raise RunDirectoryError(f"{run_dir} has no metrics yet: wait for its first iteration")
    path = run.path / "report.html"
    with making(path):
        replace_synced(path, page(run).encode(errors="backslashreplace"))  # a name of a file may be no Unicode
    return path


def page(run: Run) -> str:
    """The page."""
    config = run.config
    result = result_of(run.path, run.lines)
    spaces = {name: _space(config[name]) for name in ("observation_space", "action_space")}
    versions = config["versions"]
    sections = {
        "Curves": _curves(run),
        "Where the seconds went": _phases(run),
        "Placement": _placement(run),
        "Video": _video(run.path / VIDEO),
        "Result": _table(result.items()) if result else "<p>The run has not ended, or was interrupted.</p>",
        "Environment": _table({"env_id": config["env_id"], **spaces, **config.get("origin", {}), **versions}.items()),
        "Settings": _settings(run),
    }
    parts = {
        "title": escape(f"{run.env_id}, seed {config['seed']}"),
        "subtitle": escape(f"{run.path.name}, hybridppo {versions['hybridppo']}"),
        "cards": _cards(run, result),
        "body": "\n".join(f"<section>\n<h2>{name}</h2>\n{text}\n</section>" for name, text in sections.items() if text),
    }
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _cards(run: Run, result: dict[str, Any] | None) -> str:
    last = run.lines[-1]
    steps, seconds, goal = last["env_steps"], last["seconds"], run.config["total_steps"]
    cards = {
        ", ".join(filter(None, ("return, last 100 episodes", each.policy))): each.lines[-1].get("episode_return_mean")
        for each in by_policy(run)
    }
    if result and result.get("evaluation_return_mean") is not None:
        cards["evaluation"] = result["evaluation_return_mean"]
    cards |= {
        "environment steps": f"{steps:,}",
        "training": shown_clock(seconds),
        "steps a second": steps / seconds if seconds else None,
        "state": "finished" if result else f"{min(1.0, steps / goal):.0%} of {goal:,} steps",
    }
    texts = {
        name: shown_number(float(value)) if is_number(value) and value is not None else _text(value)
        for name, value in cards.items()
    }
    return "\n".join(
        f'<div class="card"><span class="soft">{escape(name)}</span><b>{escape(text)}</b></div>'
        for name, text in texts.items()
    )


def _curves(run: Run) -> str:
    """A picture of all metrics that move."""
    from matplotlib import rc_context

    charts = curves_of(run)
    panels, figure = panels_of(len(charts), width=3.4, height=2.0)
    for panel, (name, points) in zip(panels, charts.items(), strict=True):
        panel.plot(*zip(*points[:: math.ceil(len(points) / MOST_POINTS)], strict=True))
        panel.set_title(name.replace("/", ", ").replace("_", " "), parse_math=False)
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return file.getvalue()[file.getvalue().index("<svg") :]


def curves_of(run: Run) -> dict[str, list[tuple[float, float]]]:
    """The points of every metric that is drawn, by the metric's name; a policy's metric is `policy/metric`."""
    # A line of metrics has the result of an evaluation during the training when it is reported, at a later step.
    evaluations = read_lines(run.path / "evaluations.jsonl", numbers=["env_steps"])
    found: dict[str, list[tuple[float, float]]] = {}
    for name in sorted(dict.fromkeys(name for line in run.lines for name in line), key=_place):
        lines = evaluations if any(part.startswith("evaluation_") for part in name.split("/")) else run.lines
        points = [(line["env_steps"], line[name]) for line in lines if is_number(line.get(name))]
        last = name.rpartition("/")[2]
        moves = last in FIRST or len({value for _, value in points}) > 1
        if points and moves and last not in NO_CURVES and last.removeprefix("seconds_") not in PHASES:
            found[name] = points
    return found


def _place(name: str) -> int:
    last = name.rpartition("/")[2]
    return FIRST.index(last) if last in FIRST else len(FIRST)


def _phases(run: Run) -> str:
    columns = {phase: [line.get(f"seconds_{phase}") or 0.0 for line in run.lines] for phase in PHASES}
    whole = sum(sum(values) for phase, values in columns.items() if phase != "overlapped") or 1.0
    rows = [
        (phase, f"{1e3 * statistics.median(values):.2f}", f"{1e3 * max(values):.2f}", f"{sum(values) / whole:.1%}")
        for phase, values in columns.items()
    ]
    note = '<p class="soft">An iteration; overlapped: sampling during learning, not part of the others.</p>\n'
    return note + _table(rows, heads=("phase", "median ms", "longest ms", "share"))


def _placement(run: Run) -> str:
    text = f"<p>{escape(_text(run.config['placement']))}</p>"
    table = read_object(run.path / "placements.json")
    if not table:
        return text
    try:
        columns = ("iteration", "sampling", "learning", "copying")
        trials = table.get("trials", ())
        rows = [(each["label"], *(f"{1e3 * each[part]:.2f}" for part in columns)) for each in trials]
        text += f"<p>auto: {escape(str(table['line']))}</p>"
        heads = ("tried", *(f"{part} ms" for part in columns))
        return text + (_table(rows, heads=heads, bold={table["chosen"]}) if rows else "")
    except (KeyError, TypeError, AttributeError) as error:
        message = f"{run.path / 'placements.json'} is damaged: {type(error).__name__}: {error}"
        raise RunDirectoryError(message) from error


def _video(path: Path) -> str:
    if not path.exists():
        return ""
    if path.stat().st_size > LARGEST_VIDEO:
        return f'<p>Too large to be held by this page: <a href="{VIDEO}">{VIDEO}</a></p>'
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<video controls muted loop src="data:video/mp4;base64,{data}"></video>'


def _space(space: dict[str, Any]) -> str:
    """A space in one line, without long bounds."""
    return ", ".join(f"{name} {value}" for name, value in space.items() if len(str(value)) <= 120)


def _settings(run: Run) -> str:
    """A table of the options of each policy; those that differ from their defaults are bold."""
    tables = []
    for each in by_policy(run):
        options = fields_of(AGENTS[each.config.get("agent", "ppo")].config, *GROUPS)
        values = {**each.config, **each.config["config"]}
        found = {name: values[name] for name in options if name in values}
        usual = {name: option.default for name, option in options.items() if option.default is not MISSING}
        changed = {name for name, value in found.items() if _text(value) != _text(usual.get(name, value))}
        title = f"<h3>{escape(each.policy)}</h3>" if each.policy else ""
        tables.append(title + _table(found.items(), heads=("setting", "value"), bold=changed))
    return f'<p class="soft">Bold: other than the default.</p>{"".join(tables)}'


def _table(rows: Iterable[Sequence[Any]], *, heads: Sequence[str] = (), bold: Collection[str] = ()) -> str:
    """A table; rows whose first cell is in `bold` are bold."""
    lines = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"] if heads else []
    for row in rows:
        kind = ' class="changed"' if row[0] in bold else ""
        lines.append(f"<tr{kind}>{''.join(f'<td>{escape(_text(cell))}</td>' for cell in row)}</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return " x ".join(map(_text, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) and abs(value) < 1e5 else str(value)
