"""The benchmarks of off-policy agents: what runs, what is left out, and what follows from the figures."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import off_policy
import off_policy_turn
import placement_turn
import publishing
import torch
from off_policy import THEIRS, Case


def turn(steps_per_second: float, evaluation: float = -150.0) -> dict[str, Any]:
    return {
        "steps_per_second": steps_per_second, "evaluation": evaluation, "publishes": 7, "bytes_copied": 2_000_000,
    }  # fmt: skip


SMALL = dataclasses.replace(publishing.DDPG, sizes=((8,),), steps=100)


def rows(speeds: dict[str, float | None]) -> list[dict[str, Any]]:
    return [
        {"hidden_sizes": [8], "candidate": name, "steps_per_second": speeds.get(name)}
        for name in publishing.candidates()
    ]


def test_fewer_copies_pay_where_they_are_faster_by_more_than_noise() -> None:
    found: dict[str, float | None] = {"cpu": 100.0, "overlap, cpu and cpu": 110.0}
    found |= zip(map(publishing.on_cpu, publishing.PUBLISH_EVERY), (100.0, 101.0, 102.0), strict=True)
    found |= zip(map(publishing.hybrid, publishing.PUBLISH_EVERY), (100.0, 120.0, 130.0), strict=True)
    on_devices, on_cpu, while_sampling, on_gpu = publishing.conclusions(publishing.DDPG, rows(found))
    assert (on_devices.holds, on_devices.article) == (True, "the same")
    assert on_devices.statement == "DDPG, hidden layers 8: fewer copies between devices pay"
    assert on_devices.here == "every 1: 100 steps/s, every 10: 120 steps/s, every 50: 130 steps/s"
    assert on_cpu.holds is False
    assert while_sampling.holds is True
    assert on_gpu.holds is None
    # Of a pool the article has the opposite.
    on_devices, on_cpu, *_ = publishing.conclusions(publishing.POOL, rows(found))
    assert on_devices.statement.endswith("fewer copies between devices do not pay")
    assert (on_devices.holds, on_cpu.holds) == (False, True)


def test_where_a_gpu_is_needed_and_not_there_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    commands: list[list[str]] = []

    def take(command: list[str]) -> Any:
        commands.append(command)
        return turn(float(len(commands)))

    results = publishing.run([SMALL], seeds=2, report=lambda line: None, take=take)
    assert len(commands) == 2 * 5
    assert not any("cuda" in command for command in commands)
    table = publishing.as_markdown(results)
    assert "hybrid" not in table
    assert "not measured" not in table
    assert "| DDPG | 8 | cpu | 6 | 7 | 2.0 |" in table  # the median of the first and the last of ten: 1 and 10
    assert results["conclusions"][0]["holds"] is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    commands.clear()
    publishing.run([SMALL], report=lambda line: None, take=take)
    assert len(commands) == len(publishing.candidates())


def test_every_experiments_command_is_taken_as_it_is_meant() -> None:
    ddpg, pool = [experiment.turn(1_000) for experiment in publishing.EXPERIMENTS]
    options = ["--placement", "mirror", "--publish-every", "10", "--hidden-sizes", "8", "--seed", "1", "--steps", "9"]
    of_ddpg = off_policy_turn.parse_arguments([*ddpg[1:], *options])
    assert (of_ddpg.agent, of_ddpg.learning_starts, of_ddpg.publish_every) == ("ddpg", 250, 10)
    of_pool = placement_turn.parse_arguments([*pool[1:], *options])
    config = placement_turn.textbook_config(of_pool.hidden_sizes, of_pool.rollout, of_pool.threads)
    assert (config.pool_size, config.num_envs, of_pool.steps, of_pool.publish_every) == (4, 8, 9, 10)


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
    for name, command in off_policy.commands(off_policy.QUICK, seed=3).items():
        arguments = off_policy_turn.parse_arguments(command[2:])
        asked = arguments.steps, arguments.seed, arguments.hidden_sizes, arguments.learning_starts
        assert asked == (1_500, 3, (400, 300), 500)
        assert (arguments.threads == 2) == ("two threads" in name)


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
