"""The progress display: lines if there is no terminal, and evaluations when they happen."""

import io
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo.reporting import progress
from hybridppo.reporting.progress import ProgressBar
from hybridppo.system.messages import shown_number, shown_returns

SMALL = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))


def train(**options: Any) -> hybridppo.TrainResult:
    arguments = {"total_steps": 96, "seed": 0, "placement": "cpu", "config": SMALL, **options}
    return hybridppo.train("CartPole-v1", **arguments)


def test_without_a_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count(0, 5)  # five seconds between two looks
    monkeypatch.setattr(progress._Lines.__init__, "__defaults__", (0, lambda: next(clock)))
    with ProgressBar(enabled=True, has_lines=True, total=1000, initial=100) as bar:
        for position in range(110, 210, 10):
            bar.move_to(position, f"return {position}")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "120 of 1,000 steps (12%), return 120, 7:20 left",
        "140 of 1,000 steps (14%), return 140, 7:10 left",
        "180 of 1,000 steps (18%), return 180, 6:50 left",
    ]
    with ProgressBar(enabled=True, has_lines=True, total=4, unit="trial") as bar:
        for position in (0, 1, 2):
            bar.move_to(position, f"best {position}" if position else "")
    assert capfd.readouterr().err == "1 of 4 trials (25%), best 1, 0:30 left\n"


def test_a_short_training_writes_where_it_runs_and_nothing_without_progress(capfd: pytest.CaptureFixture[str]) -> None:
    train(progress=True)
    train(progress=False, evaluate_every=32)
    assert tuple(capfd.readouterr()) == ("", "placement cpu, asked for\n")


def test_a_table_of_metrics_if_there_is_no_bar_or_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    iterations = train(progress=False, verbose=True).metrics["iteration"]  # shown at the end
    lines = capfd.readouterr().err.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["|", "metric", "|", "value", "|"],
        lines[1].split(),
        ["|", "rollout/env_restarts", "|", "0", "|"],
    ]
    assert any(line.split()[1:4] == ["time/iteration", "|", str(iterations)] for line in lines)
    assert max(map(len, lines)) < 60
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "MOST_SECONDS", 0.0)
    train(progress=True)
    shown = capfd.readouterr().err
    assert re.search(r"steps \(100%\), return [\d.]+, sampling \d+%, 0:00 left\n\| metric ", shown)
    assert shown.count("| metric ") == iterations
    train(progress=False, verbose=False)
    assert capfd.readouterr().err == ""


def test_the_bar_fits_into_80_columns() -> None:
    """With millions of steps, and a long return: nothing is cut, and the speed is there once."""
    stream = io.StringIO()
    bar = progress._Bar(total=10_000_000, unit="step", unit_scale=True, ncols=80, bar_format=progress.FORM, file=stream)
    bar.set_postfix_str("return -12,345, sampling 30%", refresh=False)
    bar.update(3_700_000)
    bar.refresh()
    bar.close()
    last = stream.getvalue().split("\r")[-1].rstrip()
    assert len(last) <= 80
    assert last.endswith("step/s, return -12,345, sampling 30%]")


def test_an_evaluation_is_written_when_it_happens(capfd: pytest.CaptureFixture[str]) -> None:
    train(progress=True, evaluate_every=32, episodes_per_evaluation=2, evaluate_async=False)
    lines = capfd.readouterr().err.splitlines()
    assert lines.pop(0) == "placement cpu, asked for"
    assert len(lines) == 3
    assert all(
        re.fullmatch(r"evaluation after \d+ steps: return [\d.]+ \+- [\d.]+ over 2 episodes", line) for line in lines
    )


def test_lines_that_cannot_be_written_end_no_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = (tmp_path / "stderr").open("w")
    stream.close()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        result = train(progress=True, evaluate_every=32, episodes_per_evaluation=2, evaluate_async=False)
    assert result.metrics["iteration"] >= 2


def test_stderr_may_be_replaced_by_an_object_that_only_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", SimpleNamespace(write=lines.append, flush=lambda: None))
        train(progress=True, evaluate_every=32, episodes_per_evaluation=2, evaluate_async=False)
        patch.setattr("sys.stderr", None)  # as in a program without a console on Windows
        train(progress=True, evaluate_every=32, episodes_per_evaluation=2, evaluate_async=False)
    assert sum(line.startswith("evaluation after") for line in lines) == 3


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.96812, "0.968"),
        (-121.34, "-121"),
        (12.345, "12.3"),
        (99.96, "100"),
        (4567.8, "4,568"),
        (0.0, "0"),
        (-0.5, "-0.5"),
    ],
)
def test_numbers_have_the_digits_that_they_need(number: float, text: str) -> None:
    assert shown_number(number) == text


def test_returns_of_an_evaluation_as_text() -> None:
    assert shown_returns(0.96812, 0.0123, 20) == "return 0.968 +- 0.0123 over 20 episodes"
