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

import defaults
import field
import gpu
import images
import learning
import machine
import memory
import placements
import research
import scale
import speed

DOCUMENT = Path(__file__).with_name("README.md")
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Result = dict[str, Any]
TABLES: dict[str, Callable[[Result], str]] = {
    "beta": lambda result: defaults.table(result["runs"]),
    "defaults": lambda result: defaults.table(result["runs"]),
    "field": field.as_markdown,
    "gpu": gpu.as_markdown,
    "images": field.as_markdown,
    "images_parts": images.as_markdown,
    "learning": lambda result: learning.as_markdown(result["rows"]),
    "memory": memory.as_markdown,
    "placements": lambda result: placements.as_markdown(result["rows"]),
    "placements-cuda": lambda result: placements.as_markdown(result["rows"]),
    "research": research.as_markdown,
    "scale": scale.as_markdown,
    "speed": speed.as_markdown,
    "statistics": lambda result: defaults.of_normalisations(result["runs"]),
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
