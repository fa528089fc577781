"""The comparison of placements."""

from typing import Any

import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError
from hybridppo.auto import auto
from hybridppo.auto.auto import Limits
from hybridppo.auto.trials import Candidate, Training, Trial
from hybridppo.commands.main import main
from hybridppo.tools.compare import as_markdown, candidates

ENV = "MountainCar-v0"
"""Its environments may be divided among processes."""
CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-3)


def made_up(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], start: float = 0.0) -> None:
    """Let an iteration of 100 steps take this long under each label, and 1 second under others."""

    def try_out(self: Training, candidate: Candidate, most: float) -> Trial:
        step = seconds.get(candidate.label, 1.0)
        if step < 0.0:
            raise RuntimeError("out of memory")
        return Trial(candidate, step, 0.0, 0.0, start if candidate.num_workers else 0.0, 100)

    monkeypatch.setattr(Training, "try_out", try_out)
    monkeypatch.setattr(auto, "cpu_cores", lambda: 2)


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        (Limits(10**6, 1), ["cpu"]),
        (Limits(10**6, 2), ["cpu", "overlap, 1 worker"]),
        (
            Limits(10**6, 2, splits=True, accelerator="cuda", has_workers=False, any_threads=True),
            [
                *("cpu", "cpu, 2 workers", "overlap", "hybrid", "hybrid, 2 workers", "migrate", "migrate, 2 workers"),
                *("overlap on cuda", "cuda", "cuda, 2 workers"),
            ],
        ),
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
            ["cpu", "overlap", "hybrid", "migrate", "overlap on cuda"],
        ),
    ],
)
def test_the_placements_of_a_machine(limits: Limits, labels: list[str]) -> None:
    assert [candidate.label for candidate in candidates(limits, 8)] == labels


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [({"cpu, 2 workers": 0.5, "overlap, 1 worker": 0.1}, "cpu, 2 workers"), ({"cpu, 2 workers": 0.99}, "cpu")],
)
def test_the_fastest_is_named_if_it_is_faster_by_a_margin(
    speeds: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch, speeds)
    found = hybridppo.compare_placements(ENV, CONFIG, progress=False)
    assert [row["label"] for row in found["rows"]] == ["cpu", "cpu, 2 workers", "overlap, 1 worker"]
    expected = {row["label"]: 100.0 / speeds.get(row["label"], 1.0) for row in found["rows"]}
    assert {row["label"]: row["steps_per_second"] for row in found["rows"]} == pytest.approx(expected)
    assert found["chosen"] == chosen
    assert f"| **{chosen}** " in as_markdown(found)


def test_the_start_counts_and_overlap_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, {"overlap, 1 worker": 0.5, "cpu, 2 workers": 0.8}, start=1e4)
    found = hybridppo.compare_placements(ENV, CONFIG, progress=False)
    assert found["chosen"] == "cpu"
    assert [reason.partition(":")[0] for reason in found["not_chosen"]] == ["cpu, 2 workers", "overlap, 1 worker"]
    assert "Not chosen: overlap, 1 worker: it learns from rollouts" in as_markdown(found)
    assert found["left_out"] == []  # of which `doctor` complains
    found = hybridppo.compare_placements(ENV, CONFIG, max_lag=1, total_steps=10**9, progress=False)
    assert found["chosen"].startswith("overlap")


def test_a_placement_that_fails_is_left_out_and_all_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, {"cpu, 2 workers": -1.0})
    found = hybridppo.compare_placements(ENV, CONFIG, progress=False)
    assert found["left_out"] == ["cpu, 2 workers: RuntimeError: out of memory"]
    assert "Not chosen: cpu, 2 workers: RuntimeError" in as_markdown(found)
    made_up(monkeypatch, dict.fromkeys(("cpu", "cpu, 2 workers", "overlap, 1 worker"), -1.0))
    with pytest.raises(ConfigurationError, match="nothing could be measured: cpu: RuntimeError: out of memory"):
        hybridppo.compare_placements(ENV, CONFIG, progress=False)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"seconds": float("inf")}, "seconds must be a finite number of at least 0, got inf"),
        ({"seconds": None}, "seconds must be a finite number of at least 0, got None"),
        ({"num_workers": -1}, "num_workers must be a whole number of at least 0, got -1"),
        ({"config": {"gamma": 0.9}}, "config must be one of PPOConfig"),
    ],
    ids=str,
)
def test_an_invalid_argument_is_refused_before_anything_is_measured(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hybridppo.compare_placements(ENV, **{"config": CONFIG, "progress": False, **argument})


def test_the_command_measures_and_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-envs", "4", "--num-steps", "16", "--num-minibatches", "2", "--seconds", "0.05", "--no-progress"]
    with pytest.raises(SystemExit) as ended:
        main(["placements", "CartPole-v1", *flags])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split("|")[1].strip(" *") == "cpu"
    assert any(line.startswith("chosen: ") for line in lines)
