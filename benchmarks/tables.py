"""The tables of benchmarks/README.md, made from results/*.json: nobody copies figures by hand.

    python benchmarks/tables.py
    python benchmarks/tables.py --check

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, NAME being a result's. `--check` writes nothing, and
exits with 1 where a table is not that of its result.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import auto
import fixed_work
import import_time
import learning
import machine
import memory
import pieces
import wall_clock
import workers

README = Path(__file__).parent / "README.md"
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Result = dict[str, Any]


def _fixed_work(result: Result) -> str:
    return "\n\n".join(fixed_work.as_markdown(name, case["summary"]) for name, case in result["cases"].items())


TABLES: dict[str, Callable[[Result], str]] = {
    "auto": auto.result_as_markdown,
    "fixed_work": _fixed_work,
    "import_time": lambda result: import_time.as_markdown(result["median_seconds"]),
    "learning": lambda result: learning.as_markdown(result["cases"]),
    "memory": memory.as_markdown,
    "pieces": pieces.as_markdown,
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
    """The text with every table in it made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{render(found[2], results)}\n\n{found[3]}", text)


def main() -> int:
    """Write the tables, or say whether they are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a table is stale")
    arguments = parser.parse_args()
    before = README.read_text(encoding="utf-8")
    after = filled(before)
    if arguments.check:
        if after != before:
            print(f"{README} is not what results/ say: run python benchmarks/tables.py", file=sys.stderr)
        return int(after != before)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
