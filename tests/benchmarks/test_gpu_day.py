"""A GPU's day: its budget, what becomes of rows that cannot be measured, and its tables."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import carry
import gpu
import turns
from ppo_settings import ppo_config
from watch import Watch

ROOT = Path(__file__).parents[2]


def test_time_that_a_part_leaves_goes_to_those_behind_it() -> None:
    parts = list(gpu.SHARES)
    assert sum(gpu.SHARES.values()) == pytest.approx(1.0)
    assert gpu.share_of("tests", parts, 1500.0) == pytest.approx(180.0)
    assert gpu.share_of("images", parts, 1400.0) == pytest.approx(1400.0 * 0.33 / 0.88)
    assert gpu.share_of("batched", parts, 321.0) == pytest.approx(321.0)
    assert gpu.share_of("images", ["images", "batched"], 43.0) == pytest.approx(33.0)


def test_images_have_up_to_two_workers_for_each_core_and_no_more_than_environments() -> None:
    cells = gpu.image_cells(16)
    assert len({json.dumps(cell) for cell in cells}) == len(cells)
    assert {cell["num_envs"] for cell in cells} == {8, 64, 256}
    for envs, most in ((8, 8), (64, 32), (256, 32)):
        assert max(cell.get("num_workers", 0) for cell in cells if cell["num_envs"] == envs) == most
    assert {cell["placement"] for cell in cells} <= set(gpu.PLACEMENTS)


def measured(placement: str, speed: float, **more: Any) -> dict[str, Any]:
    return {"env_id": "A-v0", "hidden_sizes": "8,8", "placement": placement, "steps_per_second": speed, **more}


def test_the_table_marks_the_fastest_and_names_what_was_not_measured() -> None:
    missing = {"env_id": "A-v0", "hidden_sizes": "8,8", "placement": "hybrid", "num_workers": 4, "left_out": "it hung"}
    other = measured("cuda", 5.0, num_envs=1024, share_of_bound=0.5)
    rows = [measured("cpu", 1000.0, gpu_percent=None), other, missing, measured("cuda", 2000.4, gpu_percent=None)]
    assert gpu.as_markdown({"rows": rows}).splitlines() == [
        "| | | steps/s | share of the bound |",
        "|---|---|---:|---:|",
        "| A-v0, layers of 8,8 | cpu | 1,000 |  |",
        "| A-v0, layers of 8,8 | **cuda** | 2,000 |  |",
        "| A-v0, layers of 8,8, 1,024 environments | **cuda** | 5 | 0.50 |",
        "",
        "- Not measured, because it hung: A-v0, layers of 8,8: hybrid, 4 workers.",
    ]


PRINTED = """\
[gw0] [ 50%] PASSED tests/test_a.py::test_one[result/overlap on one device]
[gw1] [100%] FAILED tests/test_a.py::test_two
tests/test_b.py::test_three[a b] SKIPPED (no CUDA device)      [ 33%]
tests/test_b.py::test_four ERROR                               [ 66%]
"""
FINISHED = """\
=========================== short test summary info ============================
SKIPPED [1] tests/test_b.py:3: no CUDA device
FAILED tests/test_a.py::test_two - assert 1 == 2
"""


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        (PRINTED, ["tests/test_a.py::test_two", "tests/test_b.py::test_four"]),
        (PRINTED + FINISHED, ["FAILED tests/test_a.py::test_two - assert 1 == 2"]),
    ],
    ids=["cut off", "whole"],
)
def test_outcomes_of_tests_count_although_they_were_cut_off(text: str, failures: list[str]) -> None:
    numbers = {"passed": 1, "failed": 1, "skipped": 1, "error": 1}
    assert gpu.outcomes(text) == {"outcomes": numbers, "failures": failures}


def test_a_training_that_dies_or_hangs_is_a_row_and_the_next_one_goes_on() -> None:
    program = (
        "import sys, time\nfor line in sys.stdin:\n"
        "    if 'die' in line: sys.exit(7)\n    if 'hang' in line: time.sleep(600)\n    print(line, end='', flush=True)"
    )
    trainer, first = gpu.Trainer([sys.executable, "-S", "-c", program], {}), {"steps_per_second": 1.0}
    try:
        assert trainer.row({"die": 1}, 60.0) == {"left_out": "its process ended with code 7"}
        assert trainer.row(first, 60.0) == first
        assert trainer.row({"hang": 1}, 0.05) == {"left_out": "it took longer than 0 s"}
        assert trainer.row(first, 60.0) == first
    finally:
        trainer.close()


@pytest.mark.parametrize(
    ("program", "limit", "reason"),
    [
        (
            "import nothing_of_this_name",
            60.0,
            "exit code 1: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("print('words')", 60.0, "prints no result"),
        ("import time; time.sleep(600)", 0.05, "took longer than 0 s"),
    ],
)
def test_a_turn_without_a_result_has_a_reason(program: str, limit: float, reason: str) -> None:
    found = turns.take_turn([sys.executable, "-S", "-c", program], {}, limit)
    assert reason in found["left_out"]


def test_a_warm_up_and_what_counts_have_the_least_number_of_iterations() -> None:
    config = ppo_config(num_envs=1, num_steps=8, hidden_sizes=(4,))
    history = turns.history_of("CartPole-v1", 0.0, 0.0, least=2, placement="cpu", config=config)
    assert [metrics["iteration"] for _, metrics in history] == [3, 4, 5]


def test_what_cannot_be_seen_of_the_machine_is_none() -> None:
    with Watch() as watch:
        pass
    assert watch.found().keys() == {"cores_busy", "gpu_percent", "gpu_mib"}
    assert watch.found(since=float("inf"))["cores_busy"] is None


def test_present_packages_are_read_by_their_normal_names(tmp_path: Path) -> None:
    path = tmp_path / "present.txt"
    path.write_text("torch==2.11.0+cu130\nTyping_Extensions==4.15\n-e /somewhere\nopencv-python-headless==4.13\n")
    assert carry.read_present(path) == {
        "torch": "2.11.0", "typing-extensions": "4.15", "opencv-python-headless": "4.13", "opencv-python": "4.13",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "version", "is_needed"),
    [("numpy", "1.26.4", True), ("numpy", "2.1", False), ("Some_Thing", "1.0", True), ("opencv-python", "4.1", False)],
)
def test_a_peer_carries_what_is_missing_or_of_another_major_version(name: str, version: str, is_needed: bool) -> None:
    assert carry.needs_own(name, version, {"numpy": "2.5.5", "opencv-python": "5.0"}) == is_needed


@pytest.mark.extras
def test_carried_wheels_are_installed_once_each_by_itself(tmp_path: Path) -> None:
    for folder in (tmp_path / "wheels" / "common", tmp_path / "wheels" / "Sample-Factory"):
        folder.mkdir(parents=True)
        carry.stand_in(folder, "some-package", "1.0")
    for _ in range(2):
        found = carry.unpack(tmp_path / "wheels", tmp_path / "site")
        assert found == {"common": tmp_path / "site" / "common", "Sample Factory": tmp_path / "site" / "Sample-Factory"}
        assert all(next(path.glob("*.dist-info")).is_dir() for path in found.values())


@pytest.mark.slow
def test_a_day_runs_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--parts", "sizes,batched", "--minutes", "1"]
    command += ["--seconds", "0.1", "--output", str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    for part in ("sizes", "batched"):
        result = json.loads((tmp_path / f"{part}.json").read_text())
        assert result["device"] == "cpu"
        assert result["rows"][0]["steps_per_second"] > 0
        assert 0 < result["rows"][0]["share_of_bound"] <= 1
        assert f"### {part}" in process.stdout
    assert "A CPU stood in for the GPU" in process.stdout
