"""The tables of benchmarks/README.md are those of the results."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    # In a process of its own: benchmarks import each other by names that are anybody's.
    return run_python(*arguments, cwd=BENCHMARKS)


@pytest.mark.extras
def test_the_tables_are_those_of_the_results() -> None:
    process = python("tables.py", "--check")
    assert process.returncode == 0, process.stderr


def test_a_table_is_made_from_its_result(tmp_path: Path) -> None:
    machine: dict[str, Any] = {"cpu": "a processor", "cores": 2, "memory_gib": None, "cuda_device": None}
    machine |= dict.fromkeys(("python", "torch", "gymnasium", "numpy"), "1.2")
    turn = {"steps_per_second": 1000.0, "ms_sampling": 1.5, "ms_learning": 2.5}
    rounds = [{"hybridppo cpu": {**turn, "steps_per_second": 3000.0}, "stable-baselines3": turn}]
    result = {"date": "2030-01-02", "machine": machine, "cases": {"small": {"rounds": rounds}}}
    (tmp_path / "speed.json").write_text(json.dumps(result))
    text = "a\n<!-- table: speed -->\nold\n<!-- end -->\n<!-- table: memory -->\n<!-- end -->\nb\n"
    code = f"import pathlib, tables; print(tables.filled({text!r}, pathlib.Path({str(tmp_path)!r})))"
    process = python("-c", code)
    assert process.returncode == 0, process.stderr
    assert "old" not in process.stdout
    assert "| hybridppo cpu | 3,000 (3,000 to 3,000) | 1.5 | 2.5 | 3.00 (3.00) |" in process.stdout
    assert "Measured on 2030-01-02: a processor, 2 cores" in process.stdout
    assert process.stdout.count("No figures yet.") == 1  # of memory
    assert process.stdout.startswith("a\n")
    assert process.stdout.endswith("b\n\n")


def test_results_have_the_figures_of_their_runs(tmp_path: Path) -> None:
    """Of runs that are a dict, only the names would be written."""
    for path in sorted((BENCHMARKS / "results").glob("*.json")):
        runs = json.loads(path.read_text(encoding="utf-8")).get("runs", [])
        assert all(isinstance(run, dict) for run in runs), path.name
    code = f"import machine, pathlib; machine.save('a', {{'runs': {{'first': 1}}}}, pathlib.Path({str(tmp_path)!r}))"
    process = python("-c", code)
    assert "runs must be a list, got a dict" in process.stderr
