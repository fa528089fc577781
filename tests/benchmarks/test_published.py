"""The rows of published tables."""

from pathlib import Path

import pytest
from processes import run_python

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

CODE = """
from pathlib import Path
from published import run
for row in run.ROWS:
    assert row.measure in (*run.KEYS, "best"), row
    asked = row.asked(1, Path("runs"))
    assert asked.total_steps == row.total_steps
    assert asked.seed == 1
row = next(row for row in run.ROWS if row.env == "CartPole-v1")
assert [run.verdict(row, *each) for each in ((484.0, 490.0), (470.0, 490.0), (470.0, 480.0))] == [
    "reached", "within", "missed"
]
found = [{"table": row.table, "env": row.env, "training": value} for value in (480.0, 490.0)]
lines = run.as_markdown(found).splitlines()
assert " 485 |" in next(line for line in lines if "CartPole" in line)
assert "not run" in next(line for line in lines if "Acrobot" in line)
seaquest = next(row for row in run.ROWS if row.env == "MinAtar/Seaquest-v1")  # of which nobody has a figure
assert run.verdict(seaquest, 1.0, 2.0) == ""
assert " none |" in next(line for line in lines if "Seaquest" in line)
"""


@pytest.mark.extras
def test_rows_are_settings_of_this_library_and_are_judged() -> None:
    # In a process of its own: benchmarks import each other by names that are anybody's.
    process = run_python("-c", CODE, cwd=BENCHMARKS)
    assert process.returncode == 0, process.stderr
