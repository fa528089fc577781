"""Make the tables of benchmarks/README.md from results/*.json, so that nobody copies figures by hand.

    python benchmarks/tables.py
    python benchmarks/tables.py --check

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a result's name. `--check` writes nothing, and
exits with 1 if a table differs from its result.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import against_textbook
import atari
import atari_learned
import auto
import cluster
import comparison
import compiled
import compiled_gpu
import crossing
import defaults
import field
import fixed_work
import import_time
import lag
import learning
import machine
import many_agents_learned
import memory
import off_policy_steps
import options
import parity
import pieces
import placements
import pool
import publishing
import scaled
import self_play
import tag
import tag_learned
import tensors
import uneven
import updates
import wall_clock
import workers
from published import run as published

DOCUMENT = Path(__file__).with_name("README.md")
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Result = dict[str, Any]


def _fixed_work(result: Result) -> str:
    return "\n\n".join(fixed_work.as_markdown(name, case["summary"]) for name, case in result["cases"].items())


def _comparison(picture: str) -> Callable[[Result], str]:
    def table(result: Result) -> str:
        markdown = comparison.as_markdown(result["rows"], [])
        return f"![microseconds per environment step, by placement](../docs/pictures/{picture})\n\n{markdown}"

    return table


def _textbook(result: Result) -> str:
    markdown = against_textbook.as_markdown(result["rows"], result["summary"])
    picture = "![microseconds per step, this library and the textbook's loop](../docs/pictures/textbook.png)"
    return f"{picture}\n\n{markdown}"


def _memory_tasks(result: Result) -> str:
    lines = ["| task | steps | memory | mean return, a figure for each seed |", "|---|---:|---|---|"]
    for run in result["runs"]:
        returns = ", ".join(f"{mean:.4g}" for mean in run["evaluations"])
        lines.append(f"| {run['task']} | {run['total_steps']:,} | {run['memory'] or 'none'} | {returns} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Result], str]] = {
    "atari": atari.as_markdown,
    "atari_learned": lambda result: atari_learned.as_markdown(result["runs"]),
    "auto": auto.result_as_markdown,
    "auto-cuda": auto.result_as_markdown,
    "comparison": _comparison("comparison.png"),
    "comparison-cuda": _comparison("comparison-cuda.png"),
    "cluster": lambda result: cluster.table(result["rows"]),
    "compiled": compiled.as_markdown,
    "compiled_gpu": compiled_gpu.as_markdown,
    "crossing-cuda": lambda result: crossing.copies_as_markdown(result["rows"]),
    "parity": lambda result: parity.table(result["runs"]),
    "defaults": lambda result: defaults.table(result["runs"], defaults.PUBLISHED),
    "field": field.as_markdown,
    "fixed_work": _fixed_work,
    "fixed_work-compiled": _fixed_work,
    "import_time": lambda result: import_time.as_markdown(result["median_seconds"]),
    "lag": lambda result: lag.table(result["runs"]),
    "learning": lambda result: learning.as_markdown(result["rows"]),
    "many_agents_learned": lambda result: many_agents_learned.as_markdown(result["runs"]),
    "memory": memory.as_markdown,
    "memory_tasks": _memory_tasks,
    "off_policy_steps": off_policy_steps.as_markdown,
    "options": lambda result: options.table(result["runs"]),
    "pieces": pieces.as_markdown,
    "placements-cuda": placements.as_markdown,
    "pool": lambda result: pool.table(result["runs"]),
    "published": lambda result: published.as_markdown(result["runs"]),
    "publishing": publishing.as_markdown,
    "publishing-cuda": publishing.as_markdown,
    "self_play": lambda result: self_play.as_markdown(result["runs"]),
    "scaled": lambda result: scaled.table(result["rows"]),
    "stragglers": lambda result: lag.table_of_stragglers(result["rows"]),
    "tag": tag.as_markdown,
    "tag_learned": lambda result: tag_learned.as_markdown(result["seeds"]),
    "tensors": tensors.as_markdown,
    "textbook": _textbook,
    "uneven": lambda result: uneven.table(result["rows"]),
    "updates": updates.as_markdown,
    "updates_memory": updates.as_markdown,
    "wall_clock": wall_clock.as_markdown,
    "workers": workers.as_markdown,
}


def render(name: str, results: Path) -> str:
    """The table of a result, and below it when and where it was measured."""
    path = results / f"{name}.json"
    if not path.exists():
        return "No figures yet."
    result = json.loads(path.read_text(encoding="utf-8"))
    return f"{TABLES[name](result)}\n\nMeasured on {result['date']}: {machine.in_one_line(result['machine'])}."


def filled(text: str, results: Path = machine.RESULTS) -> str:
    """The text with all of its tables remade."""
    return MARKED.sub(lambda found: f"{found[1]}\n{render(found[2], results)}\n\n{found[3]}", text)


def main() -> int:
    """Write the tables, or say whether they are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a table is stale")
    arguments = parser.parse_args()
    before = DOCUMENT.read_text(encoding="utf-8")
    after = filled(before)
    if not arguments.check:
        DOCUMENT.write_text(after, encoding="utf-8")
    elif after != before:
        print(f"{DOCUMENT} differs from results/: run python benchmarks/tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
