"""What tests read in the folder of a run, and take away from it."""

import json
import shutil
from pathlib import Path
from typing import Any


def lines_of(run_dir: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def timeless_lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of every iteration, without times."""
    return [{k: v for k, v in line.items() if "second" not in k} for line in lines_of(run_dir)]


def remove_last_checkpoint(run_dir: Path) -> int:
    """Make a run as if it had been stopped before its last checkpoint; the number of the one before."""
    *_, before, last = sorted((run_dir / "checkpoints").iterdir())
    shutil.rmtree(last)
    return int(before.name)
