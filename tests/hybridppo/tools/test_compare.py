"""The comparison of placements, and of the ways to distribute."""

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError
from hybridppo.auto.auto import Limits
from hybridppo.commands.main import main
from hybridppo.tools import compare
from hybridppo.tools.compare import as_markdown, candidates

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-3)


def run(*flags: str) -> Any:
    """The exit code of `hybridppo placements`."""
    with pytest.raises(SystemExit) as ended:
        main(["placements", "CartPole-v1", *flags])
    return ended.value.code


def made_up(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], start: float = 0.0) -> None:
    """Let an iteration of 100 steps take this long under each label, and 1 second under others."""

    def train(env: Any, *, callbacks: Any, placement: Any, num_workers: int = 0, **options: Any) -> None:
        label = str(options.get("distributed", f"{placement}, {num_workers}"))
        step = next((value for name, value in seconds.items() if name in label), 1.0)
        if step < 0.0:
            raise RuntimeError("out of memory")
        parts = {"seconds_sampling": step, "seconds_learning": 0.0, "seconds_copying": 0.0}
        for i in range(1, 6):
            metrics = {"env_steps": 100 * i, "seconds": i * step, **parts}
            callbacks.on_iteration(SimpleNamespace(stop=str), metrics)
        callbacks._start = start if num_workers else 0.0

    monkeypatch.setattr(compare, "train", train)
    monkeypatch.setattr(compare, "cpu_cores", lambda: 2)


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        (Limits(10**6, 1), ["cpu"]),
        (Limits(10**6, 2), ["cpu", "overlap, 1 worker"]),
        (Limits(10**6, 4, num_workers=3), ["cpu, 3 workers", "overlap, 3 workers"]),
        (
            Limits(10**6, 4, splits=True),
            ["cpu", "cpu, 2 workers", "cpu, 4 workers", "overlap, 1 worker", "overlap, 2 workers"],
        ),
        (
            Limits(10**6, 2, accelerator="cuda"),
            ["cpu", "overlap, 1 worker", "hybrid", "migrate", "overlap on cuda, 1 worker", "cuda"],
        ),
        (
            Limits(10**6, 2, accelerator="cuda", has_workers=False, draws_on_device=True),
            ["cpu", "hybrid", "migrate"],
        ),
    ],
)
def test_the_placements_of_a_machine(limits: Limits, labels: list[str]) -> None:
    assert [candidate.label for candidate in candidates(limits, 8)] == labels


@pytest.mark.parametrize(
    ("speeds", "chosen"), [({"multi:2": 0.5, "central:2": 0.9}, "multi:2"), ({"multi:2": 0.99}, "local")]
)
def test_the_fastest_is_named_if_it_is_faster_by_a_margin(
    speeds: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch, speeds)
    found = hybridppo.compare_placements("CartPole-v1", CONFIG, distributed=True, progress=False)
    assert [row["label"] for row in found["rows"]] == ["local", "multi:2", "central:2", "coarse:2", "fine:2"]
    expected = {row["label"]: 100.0 / speeds.get(row["label"], 1.0) for row in found["rows"]}
    assert {row["label"]: row["steps_per_second"] for row in found["rows"]} == pytest.approx(expected)
    assert found["chosen"] == chosen
    assert f"| **{chosen}** " in as_markdown(found)


def test_the_start_counts_and_overlap_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, {"max_lag=1": 0.5, ", 2": 0.8}, start=1e3)
    found = hybridppo.compare_placements("CartPole-v1", CONFIG, progress=False)
    assert found["chosen"] == "cpu"
    found = hybridppo.compare_placements("CartPole-v1", CONFIG, max_lag=1, total_steps=10**9, progress=False)
    assert found["chosen"].startswith("overlap")


def test_a_placement_that_fails_is_left_out_and_all_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, {"multi": -1.0})
    found = hybridppo.compare_placements("CartPole-v1", CONFIG, distributed=True, progress=False)
    assert found["left_out"] == ["multi:2: RuntimeError: out of memory"]
    assert "Left out: multi:2: RuntimeError" in as_markdown(found)
    made_up(monkeypatch, {"": -1.0})
    with pytest.raises(ConfigurationError, match="nothing could be measured: cpu: RuntimeError: out of memory"):
        hybridppo.compare_placements("CartPole-v1", CONFIG, progress=False)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--address", "auto"], "--address is for --distributed"),
        (["--distributed", "--num-workers", "2"], "--num-workers cannot be used with --distributed"),
    ],
)
def test_flags_of_the_one_table_are_refused_in_the_other(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 2
    assert message in capsys.readouterr().err


@pytest.mark.extras
def test_ways_to_distribute_are_measured_and_those_that_cannot_run_are_left_out_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(compare, "cpu_cores", lambda: 2)
    flags = ["--num-envs", "4", "--num-steps", "16", "--num-minibatches", "2", "--pool-size", "2", "--seconds", "0.1"]
    assert run("--distributed", *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip(" *") for line in lines[2:4]] == ["local", "multi:2"]
    assert any("central:2: ConfigurationError: pool_size=2 does not work" in line for line in lines)
    assert any(line.startswith("Left out: coarse:2: ") and "needs Ray" in line for line in lines)


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's tests are of POSIX")
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_ways_over_ray_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "cpu_cores", lambda: 2)
    found = hybridppo.compare_placements(
        "CartPole-v1", replace(CONFIG, num_envs=2), seconds=0.1, distributed=True, progress=False
    )
    assert [row["label"] for row in found["rows"]] == ["local", "multi:2", "central:2", "coarse:2", "fine:2"]
    assert found["left_out"] == []
