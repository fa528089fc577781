"""The benchmarks of off-policy agents: what runs, what is left out, and what follows from the figures."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ddpg_placements
import off_policy
import off_policy_turn
import torch
from comparison import NOT_MEASURED
from off_policy import THEIRS, Case


def turn(steps_per_second: float, evaluation: float = -150.0) -> dict[str, Any]:
    return {
        "steps_per_second": steps_per_second, "evaluation": evaluation, "publishes": 7, "bytes_copied": 2_000_000,
    }  # fmt: skip


def rows(speeds: dict[str, float | None]) -> list[dict[str, Any]]:
    return [
        {"hidden_sizes": [8], "candidate": name, "steps_per_second": speeds.get(name), "publishes": 1,
         "bytes_copied": 1, "turns": None}
        for name in ddpg_placements.candidates()
    ]  # fmt: skip


def test_fewer_copies_pay_where_they_are_faster_by_more_than_noise() -> None:
    found = dict(zip(map(ddpg_placements.on_cpu, ddpg_placements.PUBLISH_EVERY), (100.0, 101.0, 102.0), strict=True))
    found |= zip(map(ddpg_placements.hybrid, ddpg_placements.PUBLISH_EVERY), (100.0, 120.0, 130.0), strict=True)
    on_devices, on_cpu = ddpg_placements.conclusions(rows(found))
    assert (on_devices.holds, on_devices.article) == (True, "fewer pay")
    assert on_devices.here == "every 1: 100 steps/s, every 10: 120 steps/s, every 50: 130 steps/s"
    assert on_cpu.holds is False


def test_where_a_gpu_is_needed_and_not_there_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    commands: list[list[str]] = []

    def take(command: list[str]) -> Any:
        commands.append(command)
        return turn(float(len(commands)))

    results = ddpg_placements.run(sizes=[(8,)], steps=100, seeds=2, report=lambda line: None, take=take)
    assert len(commands) == 2 * 4
    assert not any("cuda" in command for command in commands)
    table = ddpg_placements.as_markdown(results)
    assert f"| 8 | hybrid, publish_every 10 | {NOT_MEASURED} |" in table
    assert "| 8 | cpu | 4 | 7 | 2.0 |" in table  # the median of the first and the last of eight: 1 and 8
    assert results["conclusions"][0]["holds"] is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    commands.clear()
    ddpg_placements.run(sizes=[(8,)], steps=100, report=lambda line: None, take=take)
    assert len(commands) == len(ddpg_placements.candidates())


def test_returns_and_speeds_are_put_side_by_side() -> None:
    case = Case("Pendulum-v1", 100, 10, asked=-170.0, seeds=2)
    rounds = [
        {"hybridppo cpu": turn(200.0, -150.0), THEIRS: turn(100.0, -160.0)},
        {"hybridppo cpu": turn(330.0, -171.0), THEIRS: turn(110.0, -140.0)},
    ]
    found = off_policy.summarize(case, rounds)["rows"]
    assert found["hybridppo cpu"]["ratio"]["rounds"] == [2.0, 3.0]
    assert (found["hybridppo cpu"]["met"], found[THEIRS]["met"]) == (False, True)
    table = off_policy.as_markdown({"pendulum": {"case": vars(case), "rows": found}})
    assert "| pendulum | 100 | hybridppo cpu | -150, -171 | -160 | -170 | 265 | 2.50 |" in table


def test_both_libraries_are_asked_for_the_same() -> None:
    for command in off_policy.commands(off_policy.QUICK, seed=3).values():
        arguments = off_policy_turn.parse_arguments(command[2:])
        asked = arguments.steps, arguments.seed, arguments.hidden_sizes, arguments.learning_starts, arguments.threads
        assert asked == (1_500, 3, (400, 300), 500, 1)


@pytest.mark.parametrize("options", [["--placement", "cpu"], ["--placement", "mirror", "--publish-every", "10"]])
def test_a_turn_trains_and_measures_itself(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--hidden-sizes", "8", "--steps", "120", "--learning-starts", "60", "--evaluation-episodes", "1"]
    monkeypatch.setattr(sys, "argv", ["off_policy_turn.py", "library", "--agent", "ddpg", *options, *small])
    off_policy_turn.main()
    found = json.loads(capsys.readouterr().out)
    assert found["env_steps"] == 120
    assert found["steps_per_second"] == pytest.approx(120 / found["seconds"])
    assert found["evaluation"] < 0
    assert found["publishes"] == (0 if "cpu" in options else 6 + 1)
