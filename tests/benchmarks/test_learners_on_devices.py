"""The table of learners on several devices, with the CPU in place of each."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.extras
def test_every_row_is_measured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from learners import on_devices, table

    rows = on_devices("cpu", 2, iterations=1, envs_per_learner=4)
    assert [(row["distributed"], row["learners"]) for row in rows] == [
        ("multi", 1), ("gpu", 1), ("multi", 2), ("gpu", 2),
    ]  # fmt: skip
    assert all(row["steps_per_second"] > 0.0 for row in rows)
    assert table(rows).count("\n") == 5


@pytest.mark.extras
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_nothing_is_measured_without_a_device() -> None:
    command = [sys.executable, str(BENCHMARKS / "learners.py"), "--devices"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "no CUDA device: nothing is measured\n"
