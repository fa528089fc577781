"""Writes a run as one HTML page that needs no other file, no network and no script, light and dark.

hybridppo.write_report("runs/CartPole-v1-20260101-120000-seed0")
"""

import base64
import statistics
import string
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from html import escape
from pathlib import Path
from typing import Any

from hybridppo.agents.registry import AGENTS
from hybridppo.errors import RunDirectoryError
from hybridppo.run_directory.files import making, replace_synced
from hybridppo.run_directory.lines import read_lines, read_object
from hybridppo.runs.options import GROUPS, fields_of
from hybridppo.runs.settings import settings_of_result
from hybridppo.system.figures import shown_clock, shown_number
from hybridppo.system.validation import is_number
from hybridppo.tools.curves import PHASES, Run, names_of, policy_of, read_run, result_of
from hybridppo.tools.svg import line_chart, stacked_bar

NAME, VIDEO = "report.html", "video.mp4"
LARGEST_VIDEO = 20 * 2**20
"""Size in bytes; a larger video is linked."""
FIRST = ("episode_return_mean", "evaluation_return_mean", "episode_length_mean", "steps_per_second")
"""The metrics of the first curves, in order; they are drawn even if they never move."""
NO_CURVES = {
    "iteration", "env_steps", "seconds", "episodes", "agent_steps", "evaluation_env_steps",
    *(f"seconds_{phase}" for phase in PHASES),
}  # fmt: skip
"""Metrics without a curve: axes, counts, and those shown elsewhere."""

TEMPLATE = Path(__file__).with_name("report.html")
"""The page, with a `$name` in each place for a run's data."""


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` into the run directory of a run, finished or not; the page's path.

    Raises:
        RunDirectoryError: if it is no run directory, is damaged, has no metrics yet, or cannot be written to.
    """
    run = read_run(run_dir)
    path = run.path / NAME
    with making(path):
        replace_synced(path, page(run).encode(errors="backslashreplace"))  # a name of a file may be no Unicode
    return path


def page(run: Run) -> str:
    """The page."""
    title = f"{run.env_id}, seed {run.config['seed']}"
    sections = [
        ("Curves", _curves(run)),
        ("Where the seconds went", _phases(run)),
        ("Placement", _placement(run)),
        ("Video", _video(run)),
        ("Result", _result(run)),
        ("Environment", _environment(run)),
        ("Settings", _settings(run)),
    ]
    body = "\n".join(f"<section>\n<h2>{escape(name)}</h2>\n{text}\n</section>" for name, text in sections if text)
    subtitle = f"{run.path.name}, hybridppo {run.config.get('versions', {}).get('hybridppo', 'of an unknown version')}"
    parts = {"title": escape(title), "subtitle": escape(subtitle), "cards": _cards(run), "body": body}
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _cards(run: Run) -> str:
    last = run.lines[-1]
    result = result_of(run.path, run.lines)
    goal = run.config["total_steps"]
    of_policies = [(f", {name}", f"{name}/") for name in names_of(run.config)] or [("", "")]
    cards = [
        *((f"return, last 100 episodes{of}", _number(last.get(f"{at}episode_return_mean"))) for of, at in of_policies),
        ("environment steps", f"{last['env_steps']:,}"),
        ("training", _duration(last["seconds"])),
        ("steps a second", f"{last['env_steps'] / last['seconds']:,.0f}" if last["seconds"] else "-"),
        ("state", "finished" if result else f"{min(1.0, last['env_steps'] / goal):.0%} of {goal:,} steps"),
    ]
    if result and result.get("evaluation_return_mean") is not None:
        mean, deviation = result["evaluation_return_mean"], result.get("evaluation_return_std")
        cards.insert(1, ("evaluation", f"{_number(mean)} ± {_number(deviation)}"))
    inside = "\n".join(
        f'<div class="card"><span class="soft">{escape(name)}</span><b>{value}</b></div>' for name, value in cards
    )
    return f'<div class="cards">\n{inside}\n</div>'


def _curves(run: Run) -> str:
    found = dict.fromkeys(name for line in run.lines for name in line)  # not every iteration has every metric
    names = sorted(found, key=_place)
    # A line of metrics has the result of an evaluation beside the training when it is reported, at a later step.
    evaluations = read_lines(run.path / "evaluations.jsonl", numbers=["env_steps"])
    charts = []
    for name in names:
        lines = evaluations if any(part.startswith("evaluation_") for part in name.split("/")) else run.lines
        points = [(m["env_steps"], m[name]) for m in lines if is_number(m.get(name))]
        never_moves = _place(name) == len(FIRST) and len({value for _, value in points}) < 2
        if name.rpartition("/")[2] not in NO_CURVES and points and not never_moves:
            charts.append(line_chart(name.replace("/", ", ").replace("_", " "), points, "environment steps"))
    return '<div class="charts">\n' + "\n".join(charts) + "\n</div>"


def _place(name: str) -> int:
    """The place of a metric's curve; a policy's metric is `policy/metric`."""
    last = name.rpartition("/")[2]
    return FIRST.index(last) if last in FIRST else len(FIRST)


def _phases(run: Run) -> str:
    columns = {phase: [m.get(f"seconds_{phase}") or 0.0 for m in run.lines] for phase in PHASES}
    whole = sum(map(sum, columns.values()))
    if whole == 0.0:
        return ""
    bar = stacked_bar("seconds by phase", [(phase, sum(values)) for phase, values in columns.items()])
    rows = [
        (phase, f"{1e3 * statistics.median(values):.2f}", f"{1e3 * max(values):.2f}", f"{sum(values) / whole:.1%}")
        for phase, values in columns.items()
    ]
    overlapped = sum(m.get("seconds_overlapped") or 0.0 for m in run.lines)
    said = f"<p>Sampled beside the learning, no part of the above: {_duration(overlapped)}.</p>" if overlapped else ""
    heads = ("phase", "median ms", "longest ms", "share")
    return f'<div class="bar">{bar}</div>\n<p class="soft">An iteration:</p>\n{_table(heads, rows, numbers=3)}{said}'


def _placement(run: Run) -> str:
    placement = ", ".join(f"{name} {value}" for name, value in run.config["placement"].items())
    text = f"<p>{escape(placement)}</p>"
    table = read_object(run.path / "placements.json")
    try:
        return text + _choice(table) if table else text
    except (KeyError, TypeError, AttributeError) as error:
        message = f"{run.path / 'placements.json'} is damaged: {type(error).__name__}: {error}"
        raise RunDirectoryError(message) from error


def _choice(table: dict[str, Any]) -> str:
    """What `auto` chose, from `placements.json`."""
    text = f"<p>auto: {escape(str(table['line']))}</p>"
    trials: list[dict[str, Any]] = table["trials"]
    if not trials:
        return text
    rows = [
        (each["label"], *(f"{1e3 * each[part]:.2f}" for part in ("iteration", "sampling", "learning", "copying")))
        for each in trials
    ]
    heads = ("tried", "iteration ms", "sampling ms", "learning ms", "copying ms")
    chosen = {number for number, row in enumerate(rows) if row[0] == table["chosen"]}
    return text + _table(heads, rows, numbers=4, strong=chosen)


def _video(run: Run) -> str:
    path = run.path / VIDEO
    if not path.exists():
        return ""
    if path.stat().st_size > LARGEST_VIDEO:
        return f'<p>Too large to be held by this page: <a href="{VIDEO}">{VIDEO}</a></p>'
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<video controls muted loop src="data:video/mp4;base64,{data}"></video>'


def _result(run: Run) -> str:
    result = result_of(run.path, run.lines)
    return _pairs(result) if result else "<p>The run has not ended, or was interrupted.</p>"


def _environment(run: Run) -> str:
    spaces = {name: _space(run.config[name]) for name in ("observation_space", "action_space")}
    versions = ", ".join(f"{name} {version}" for name, version in run.config.get("versions", {}).items())
    return _pairs({"env_id": run.config["env_id"], **spaces, "versions": versions, **run.config.get("origin", {})})


def _space(space: dict[str, Any]) -> str:
    """A space in one line, without long bounds."""
    parts = {name: value for name, value in space.items() if name != "type"}
    said = ", ".join(f"{name} {value}" for name, value in parts.items() if len(str(value)) <= 120)
    return f"{space.get('type', '')} {said}".strip()


def _settings(run: Run) -> str:
    """Tables of the settings of each policy that can change the result, then of all other options."""
    of_policies = [policy_of(run, name) for name in names_of(run.config)] or [run]
    deciding = [settings_of_result(each.config) for each in of_policies]
    tables = []
    for each, settings in zip(of_policies, deciding, strict=True):
        title = ", ".join(filter(None, (each.policy, "what can change the result")))
        tables.append(f"<h3>{escape(title)}</h3>{_with_defaults(settings)}")
    options = {name: run.config.get(name) for name in fields_of(*GROUPS) if name not in deciding[0]}
    for each, settings in zip(of_policies, deciding, strict=True):
        fields = {name: value for name, value in each.config["config"].items() if name not in settings}
        options |= {f"{each.policy}, {name}" if each.policy else name: value for name, value in fields.items()}
    others = _pairs(options)
    return f'<p class="soft">Bold: other than the default.</p>{"".join(tables)}<h3>Other options</h3>{others}'


def _with_defaults(settings: dict[str, Any]) -> str:
    """A table of settings; those that differ from their defaults are bold."""
    kind = AGENTS[settings["agent"]].config
    default = {
        name: _plain(option.default)
        for name, option in fields_of(kind, *GROUPS).items()
        if option.default is not MISSING
    }
    changed = {at for at, (name, value) in enumerate(settings.items()) if value != default.get(name, value)}
    return _table(("setting", "value"), [(name, _text(value)) for name, value in settings.items()], strong=changed)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _pairs(values: dict[str, Any]) -> str:
    return _table((), [(name, _text(value)) for name, value in values.items()])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0, strong: Iterable[int] = ()) -> str:
    """Rows of text; the last `numbers` columns are numbers."""
    strong = set(strong)

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [""] * (len(row) - numbers) + [' class="n"'] * numbers
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    lines = [f"<tr>{cells('th', heads)}</tr>"] if heads else []
    for number, row in enumerate(rows):
        kind = ' class="changed"' if number in strong else ""
        lines.append(f"<tr{kind}>{cells('td', row)}</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " x ".join(map(_text, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) and abs(value) < 1e5 else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else shown_number(value)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else shown_clock(seconds)
