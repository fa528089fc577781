"""Shows a run: as one HTML page that needs no other file (the extra `plot`), or in the terminal while it trains.

    hybridppo.write_report("runs/CartPole-v1-20260101-120000-seed0")
    hybridppo watch runs/CartPole-v1-20260101-120000-seed0

Both only read the run's files, on this machine or on a shared disk.
"""

import base64
import io
import math
import shutil
import statistics
import string
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import MISSING
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hybridppo.agents.registry import AGENTS
from hybridppo.errors import RunDirectoryError, shown_error
from hybridppo.placements.placement import shown_placement
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.files import Tail, is_plain, making, read_object, replace_synced
from hybridppo.settings import GROUPS, Settings, fields_of
from hybridppo.system.messages import printable, shown_clock, shown_number
from hybridppo.system.validation import is_number
from hybridppo.tools.plot import (
    PHASES,
    Run,
    by_policy,
    fields_shown,
    panels_of,
    read_run,
    require_matplotlib,
    result_of,
)

RECENT = 20
"""Iterations over which phases are averaged."""
MOST_LINES = 2000
"""The most iterations that the curves show."""
SILENT_SECONDS = 30.0
"""Seconds without a new line of metrics after which the display says so."""
LEVELS = ".:-=+*#@"
"""The heights of a curve, which every terminal can show."""


VIDEO = "video.mp4"
LARGEST_VIDEO = 20 * 2**20
"""Size in bytes; a larger video is linked."""
FIRST = ("episode_return_mean", "evaluation_return_mean", "episode_length_mean", "steps_per_second")
"""The metrics of the first curves, in order; they are drawn even if they never move."""
NO_CURVES = {"iteration", "env_steps", "seconds", "episodes", "agent_steps", "evaluation_env_steps"}
"""Metrics without a curve, besides the seconds of phases, which have a table."""
MOST_POINTS = 400
"""The most points of a curve, because more points than pixels cannot be seen."""
TEMPLATE = resources.files("hybridppo.tools") / "report.html"
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
        replace_synced(path, printable(page(run)).encode())  # a name of a file may be no Unicode
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
    cards: dict[str, Any] = {
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
    texts = {name: shown_number(value) if is_number(value) else _text(value) for name, value in cards.items()}
    return "\n".join(
        f'<div class="card"><span class="soft">{escape(name)}</span><b>{escape(text)}</b></div>'
        for name, text in texts.items()
    )


def _curves(run: Run) -> str:
    """A picture of all metrics that move."""
    from matplotlib import rc_context

    charts = curves_of(run)
    if not charts:
        return ""
    panels, figure = panels_of(len(charts), width=3.4, height=2.0)
    for panel, (name, points) in zip(panels, charts.items(), strict=True):
        thinned = points[:: math.ceil(len(points) / MOST_POINTS)]
        panel.plot(*zip(*thinned, strict=True), marker="." if len(thinned) < 10 else "")
        panel.set_title(printable(name).replace("/", ", ").replace("_", " "), parse_math=False)
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):  # text that can be searched
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    gap = f'<p class="soft">{escape(run.gap)}</p>\n' if run.gap else ""
    return gap + file.getvalue()[file.getvalue().index("<svg") :]


def curves_of(run: Run) -> dict[str, list[tuple[float, float]]]:
    """The points of every metric that is drawn, by the metric's name; a policy's metric is `policy/metric`."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in sorted(dict.fromkeys(name for line in run.lines for name in line), key=_place):
        points = run.points("steps", name)
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
    text = f"<p>{escape(shown_placement(run.config['placement']))}</p>"
    table = read_object(run.path / "placements.json")
    if not table:
        return text
    try:
        columns = ("iteration", "sampling", "learning", "copying")
        trials = table.get("trials", ())
        rows = [(each["label"], *(f"{1e3 * each[part]:.2f}" for part in columns)) for each in trials]
        text += f"<p>auto: {escape(str(table['line']))}</p>"
        heads = ("tried", *(f"{part} ms" for part in columns))
        text += _table(rows, heads=heads, bold={table["chosen"]}) if rows else ""
        return text + "".join(f"<p>Not chosen: {escape(str(reason))}</p>" for reason in table.get("left_out", ()))
    except (KeyError, TypeError, AttributeError) as error:
        message = f"{run.path / 'placements.json'} is damaged: {shown_error(error)}"
        raise RunDirectoryError(message) from error


def _video(path: Path) -> str:
    if not path.exists():
        return ""
    # A link may lead to any file, which a page that is passed on must not have.
    if not is_plain(path) or path.stat().st_nlink > 1 or path.stat().st_size > LARGEST_VIDEO:
        return f'<p>Too large to be held by this page, or a link: <a href="{VIDEO}">{VIDEO}</a></p>'
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<video controls muted loop src="data:video/mp4;base64,{data}"></video>'


def _space(space: dict[str, Any]) -> str:
    """A space in one line, without long bounds."""
    return ", ".join(f"{name} {value}" for name, value in space.items() if len(str(value)) <= 120)


def _settings(run: Run) -> str:
    """A table of the options of each policy; those that differ from their defaults are bold."""
    tables = []
    for each in by_policy(run):
        options = fields_of(AGENTS[each.config.get("agent", "ppo")].config_type, *GROUPS)
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


def watch(
    run_dir: str | Path,
    *,
    seconds: float = 1.0,
    out: TextIO | None = None,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show a run until it ends. In a terminal, each frame replaces the one before.

    Args:
        run_dir: the run directory.
        seconds: seconds between two readings of its files.
        out: the stream to write to; None for the standard output.
        wait: waits for a number of seconds.
        clock: a monotonic clock in seconds.

    Raises:
        RunDirectoryError: if it is no run directory, or is damaged.
    """
    out = sys.stdout if out is None else out
    directory = RunDirectory.open(run_dir)
    Settings.read(directory)  # refuses settings that are damaged
    config = directory.config
    tail = Tail(directory.path / "metrics.jsonl", MOST_LINES, **fields_shown(config))
    shown, changed_at = list[str](), clock()
    while True:
        changed_at = clock() if tail.read() else changed_at
        if has_ended := result_of(directory.path, tail.lines) is not None:
            tail.read()  # the lines that came before the result
        is_silent = clock() - changed_at > SILENT_SECONDS and not has_ended
        before, shown = shown, frame(config, list(tail.lines), min(100, shutil.get_terminal_size().columns), is_silent)
        if shown != before:
            if before and out.isatty():
                out.write(f"\x1b[{len(before)}A\x1b[J")  # move up, and clear everything below
            out.write("\n".join(shown) + "\n")
            out.flush()
        if has_ended:
            out.write("the run has ended\n")
            return
        wait(seconds)


def frame(config: dict[str, Any], lines: Sequence[dict[str, Any]], width: int, is_silent: bool = False) -> list[str]:
    """The lines to show, none wider than `width`.

    Args:
        config: the settings of the run, as in `config.json`.
        lines: the lines of its metrics, oldest first.
        width: the width of the terminal.
        is_silent: whether there was no new line for long.
    """
    shown = [f"{config['env_id']}, seed {config['seed']}, placement {shown_placement(config['placement'])}"]
    shown += _numbers_shown(config, lines, max(10, width - 30)) if lines else ["no iteration has ended yet"]
    if is_silent:
        shown.append(f"nothing new for {SILENT_SECONDS:.0f} s: it is slow, or was stopped (Ctrl-C leaves)")
    return [printable(line, keep="")[:width] for line in shown]


def _numbers_shown(config: dict[str, Any], lines: Sequence[dict[str, Any]], room: int) -> list[str]:
    last, recent, goal = lines[-1], lines[-RECENT:], config["total_steps"]

    def mean(name: str) -> float:
        return statistics.fmean(line.get(name) or 0.0 for line in recent)

    steps, rate = last["env_steps"], mean("steps_per_second")
    left, share = max(0.0, goal - steps) / rate if rate else math.inf, min(1.0, steps / goal)
    shown = [
        f"{('#' * round(share * room)).ljust(room, '.')} {share:4.0%} {shown_clock(left)} left",
        f"{steps:,} of {goal:,} steps, iteration {last['iteration']:,}, {shown_clock(last['seconds'])}",
        "",
    ]
    returns = {f"{name}/episode_return_mean": name for name in config.get("policies", ())}
    curves = {**(returns or {"episode_return_mean": "return"}), "steps_per_second": "steps/s"}
    for name, label in curves.items():
        values = [float(line[name]) for line in lines if line.get(name) is not None]
        shown.append(f"{label[:10]:<10}{shown_number(values[-1]) if values else '-':>12}  {_line_of(values, room)}")
    shown += ["", f"an iteration, mean of the last {len(recent)}:"]
    means = {phase: mean(f"seconds_{phase}") for phase in PHASES}
    whole = max(sum(means.values()) - means["overlapped"], means["overlapped"]) or 1.0
    return shown + [f"{phase:<10}{1e3 * seconds:>9.2f} ms {seconds / whole:4.0%}" for phase, seconds in means.items()]


def _line_of(values: Sequence[float], room: int) -> str:
    """A curve of means of neighbours, scaled between the lowest and the highest."""
    if not values:
        return ""
    means = np.array([part.mean() for part in np.array_split(values, min(room, len(values)))])
    heights = (len(LEVELS) - 1) * (means - means.min()) / (np.ptp(means) or 1.0)
    return "".join(LEVELS[round(height)] for height in heights)
