"""The benchmark of crossings: every figure is there, and adds up."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import crossing


def test_a_size_is_measured_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--hidden-sizes", "4", "--seconds", "0.01", "--num-envs", "2", "--output", str(tmp_path)]
    crossing.main(options)
    (row,) = json.loads((tmp_path / "crossing.json").read_text())["rows"]
    assert row["publish_bytes"] == 4 * (4 * 4 + 4 + 4 * 2 + 2)  # the actor: 4 inputs, 4 hidden, 2 outputs
    for name in ("publish", "rollout"):
        assert row[f"{name}_bytes_per_second"] == pytest.approx(row[f"{name}_bytes"] / row[f"{name}_seconds"])
    turns = row["by_turns"]
    assert row["longer_part"] == max(turns["seconds_sampling"], turns["seconds_learning"])
    assert row["overlap_over_longer_part"] == pytest.approx(row["overlap"]["seconds"] / row["longer_part"])
    assert "| overlap / longer part |" in capsys.readouterr().out
