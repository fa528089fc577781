"""The report: one JSON, one Markdown, a line a case."""

import json
from pathlib import Path
from typing import Any

from hybridppo.run_directory.files import replace_synced
from hybridppo.run_directory.lines import as_json

MARKS = {"passed": "passed", "failed": "**failed**", "not possible here": "not possible here"}
JSON_NAME, MARKDOWN_NAME = "acceptance.json", "acceptance.md"

Report = dict[str, Any]
"""`machine`, what was run on; `outcomes`, a list of what each case or stage came to."""


def write(folder: Path, report: Report) -> None:
    """Both files, whole or as they were."""
    replace_synced(folder / JSON_NAME, as_json(report).encode())
    replace_synced(folder / MARKDOWN_NAME, as_markdown(report).encode())


def read(folder: Path) -> Report | None:
    """What an earlier run has left, if any."""
    path = folder / JSON_NAME
    report: Report | None = json.loads(path.read_text()) if path.exists() else None
    return report


def counts(report: Report) -> dict[str, int]:
    """How many outcomes there are of each kind."""
    found = [outcome["status"] for outcome in report["outcomes"]]
    return {status: found.count(status) for status in MARKS}


def in_a_line(report: Report) -> str:
    """The counts, for the end of a log."""
    return ", ".join(f"{count} {status}" for status, count in counts(report).items())


def as_markdown(report: Report) -> str:
    """The machine, the counts, what failed, and a line for each case."""
    machine = report["machine"]
    lines = ["# Acceptance", "", *(f"- {name}: {_shown(value)}" for name, value in machine.items()), ""]
    lines += [in_a_line(report), ""]
    failed = [outcome for outcome in report["outcomes"] if outcome["status"] == "failed"]
    if failed:
        lines += ["## Failed", "", *(f"- `{outcome['name']}`: {outcome['detail']}" for outcome in failed), ""]
    lines += ["## Every case", "", "| case | what | | seconds | found |", "|---|---|---|---:|---|"]
    for outcome in report["outcomes"]:
        status, seconds = MARKS[outcome["status"]], f"{outcome['seconds']:.1f}"
        cells = outcome["name"], outcome["what"], status, seconds, outcome["detail"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(_shown, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return str(value)
