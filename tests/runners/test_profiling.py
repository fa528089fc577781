"""A trace shows the parts of training by name, and changes nothing."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, Mirrored
from hybridppo.runners.profiling import RECORDED

CONFIG = ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))


def train(run_dir: Path | None, *, iterations: int = 10, **options: Any) -> hybridppo.TrainResult:
    options = {"placement": Mirrored("cpu", "cpu", force_copy=True), "profile": True} | options
    return hybridppo.train(
        "Acrobot-v1",
        total_steps=iterations * CONFIG.batch_size,
        seed=0,
        config=CONFIG,
        run_dir=run_dir,
        progress=False,
        **options,
    )


def regions(path: Path) -> dict[str, int]:
    """How often each region of the user occurs in a trace."""
    counts: dict[str, int] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "user_annotation":
            counts[event["name"]] = counts.get(event["name"], 0) + 1
    return counts


def test_a_trace_shows_the_parts_of_each_iteration(tmp_path: Path) -> None:
    train(tmp_path / "run")
    found = regions(tmp_path / "run" / "trace.json")
    once = [
        "iteration",
        "sampling: begin",
        "sampling: finish",
        "learning",
        "copying: rollout to the learner",
    ]
    assert {name: found[name] for name in once} == dict.fromkeys(once, RECORDED)
    assert found["environment step"] == found["choice of actions"] == RECORDED * CONFIG.num_steps


def test_with_overlap_the_wait_shows(tmp_path: Path) -> None:
    train(tmp_path / "run", placement=Mirrored("cpu", "cpu", max_lag=1), num_workers=0)
    found = regions(tmp_path / "run" / "trace.json")
    assert found["sampling: begin"] == found["sampling: finish"] == found["learning"] == RECORDED


def test_a_profiled_run_gives_the_same_result(tmp_path: Path) -> None:
    one, other = train(tmp_path / "run"), train(None, profile=False)
    for ours, theirs in zip(one.agent.actor.parameters(), other.agent.actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_everything_is_unwrapped_afterwards(tmp_path: Path) -> None:
    placement = Mirrored("cpu", "cpu", force_copy=True)
    result = train(tmp_path / "run", placement=placement)
    assert "update" not in vars(result.agent)
    assert "sample" not in vars(result.agent.distribution)
    assert vars(placement).keys().isdisjoint({"sampling", "to_learner"})


def test_a_run_that_fails_leaves_its_trace(tmp_path: Path) -> None:
    def fail(metrics: Any) -> None:
        if metrics["iteration"] == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", on_iteration=fail)
    assert regions(tmp_path / "run" / "trace.json")["iteration"] == 2


def test_a_run_too_short_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hybridppo"):
        train(tmp_path / "run", iterations=2)
    assert "no trace: the run ended within the 2 iterations" in caplog.text
    assert not (tmp_path / "run" / "trace.json").exists()


def test_a_trace_needs_a_run_directory() -> None:
    with pytest.raises(ConfigurationError, match="profile=True writes its trace into the run directory: name one"):
        train(None)
