"""Placement auto: its choice is used in training, printed, saved, and never measured twice."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from processes import worker_processes
from torch import Tensor
from toy_agents import Unlike

import hybridppo
from hybridppo import Auto, ConfigurationError, EnvError, Mirrored, SingleDevice
from hybridppo.auto import auto
from hybridppo.auto.trials import Candidate, Training, Trial
from hybridppo.placements.placement import placement_from_settings

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-3)
ITERATIONS = 30


def slow_steps(candidate: Candidate) -> tuple[float, float]:
    """Seconds of an iteration's sampling and learning, if workers divide the sampling."""
    return 16.0 / max(1, candidate.num_workers), 1.0 / candidate.torch_threads


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets trials take any time, also for short runs."""
    for name, value in {"MAX_SHARE": 100.0, "MAX_SECONDS": 1e9, "FEWEST_STEPS": 0}.items():
        monkeypatch.setattr(auto, name, value)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the measurements of trials, with two cores and runs of any length; returns the candidates tried."""
    tried: list[Candidate] = []

    def record(seconds: Any) -> list[Candidate]:
        def try_out(self: Training, candidate: Candidate, most: float, share: float = 1.0, *_: float) -> Trial:
            tried.append(candidate)
            return Trial(candidate, *seconds(candidate), 0.0, 0.0, CONFIG.batch_size)

        monkeypatch.setattr(Training, "try_out", try_out)
        unhurried(monkeypatch)
        monkeypatch.setattr(auto, "cpu_cores", lambda: 2)
        return tried

    return record


def train(env: Any = "MountainCar-v0", *, iterations: int = ITERATIONS, **options: Any) -> hybridppo.TrainResult:
    options = {"seed": 3, "placement": "auto", "config": CONFIG, "progress": False} | options
    return hybridppo.train(env, total_steps=iterations * CONFIG.batch_size, **options)


def parameters(result: hybridppo.TrainResult) -> Tensor:
    everything = [*result.agent.actor.parameters(), *result.agent.critic.parameters()]
    return torch.cat([parameter.detach().flatten() for parameter in everything])


def config_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "config.json").read_text())


# The result


@pytest.mark.parametrize("fields", [{"activation": "elu"}, {"hidden_sizes": ()}, {}], ids=["elu", "linear", "tanh"])
def test_networks_that_workers_cannot_run_are_sampled_here(fields: Any, recorded: Any, tmp_path: Path) -> None:
    recorded(slow_steps)
    train(config=dataclasses.replace(CONFIG, **fields), iterations=2, run_dir=tmp_path / "run")
    assert config_of(tmp_path / "run")["num_workers"] == (0 if fields else 2)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_measuring_changes_nothing_of_the_result(env: str) -> None:
    assert torch.equal(parameters(train(env)), parameters(train(env, placement="cpu")))


def test_a_measured_choice_is_what_its_name_gives(recorded: Any, tmp_path: Path) -> None:
    recorded(slow_steps)
    result = train(iterations=5, run_dir=tmp_path / "run")
    assert config_of(tmp_path / "run")["num_workers"] == 2
    assert torch.equal(parameters(result), parameters(train(iterations=5, placement="cpu", num_workers=2)))
    assert torch.equal(parameters(result), parameters(train(iterations=5, placement="cpu")))


def test_overlap_is_taken_only_where_it_is_allowed(recorded: Any, tmp_path: Path) -> None:
    recorded(lambda candidate: (0.0, 16.0) if candidate.max_lag else (16.0, 16.0))
    options = {"env": "CartPole-v1", "iterations": 5}
    train(**options, run_dir=tmp_path / "without")
    result = train(**options, placement=Auto(max_lag=1), run_dir=tmp_path / "with")
    assert config_of(tmp_path / "without")["placement"] == SingleDevice("cpu").settings()
    assert config_of(tmp_path / "with")["placement"] == Mirrored("cpu", "cpu", max_lag=1).settings()
    assert config_of(tmp_path / "with")["num_workers"] == 1
    by_name = train(**options, placement=Mirrored("cpu", "cpu", max_lag=1))
    assert torch.equal(parameters(result), parameters(by_name))


def test_threads_are_chosen_only_where_left_open(recorded: Any, tmp_path: Path) -> None:
    recorded(lambda candidate: (0.01, 1.0 / candidate.torch_threads))
    options = {"env": "CartPole-v1", "iterations": 2}
    open_config = dataclasses.replace(CONFIG, torch_threads=None)
    result = train(**options, config=open_config, run_dir=tmp_path / "open")
    assert result.agent.config.torch_threads == config_of(tmp_path / "open")["config"]["torch_threads"] == 2
    train(**options, run_dir=tmp_path / "fixed")
    assert config_of(tmp_path / "fixed")["config"]["torch_threads"] == 1
    train(**options, config=open_config, placement="cpu", run_dir=tmp_path / "by name")
    assert config_of(tmp_path / "by name")["config"]["torch_threads"] == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_number_of_workers_that_was_asked_for_is_obeyed(num_workers: int, recorded: Any, tmp_path: Path) -> None:
    recorded(slow_steps)
    train(num_workers=num_workers, iterations=2, run_dir=tmp_path / "run")
    assert config_of(tmp_path / "run")["num_workers"] == num_workers


# What it says and writes


def test_one_line_says_what_was_chosen_and_why(recorded: Any, caplog: pytest.LogCaptureFixture) -> None:
    recorded(slow_steps)
    with caplog.at_level(logging.INFO, logger="hybridppo"):
        train(iterations=2)
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith(
        "placement auto: cpu, 2 workers, 9 s an iteration (sampling 8 s, learning 1 s, copying 0 s)"
    )
    assert "; cpu 17 s" in message
    assert "(measured in " in message


def test_without_a_log_the_display_says_it(recorded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """In Python, where nobody configured logging. The result has the name of the command line, and the reason."""
    recorded(slow_steps)
    result = train(iterations=2, progress=True)
    assert result.placement.name == "cpu"
    assert result.placement.reason.startswith("cpu, 2 workers, 9 s an iteration (sampling 8 s, learning 1 s")
    assert f"placement auto: {result.placement.reason}\n" in capsys.readouterr().err
    result = train(iterations=2, progress=True, placement=Mirrored("cpu", "cpu", max_lag=1))
    assert (result.placement.name, result.placement.reason) == ("overlap", "asked for")
    assert "placement overlap, samples on cpu, learns on cpu, asked for\n" in capsys.readouterr().err


def test_a_run_of_an_older_version_has_older_names() -> None:
    """There, `cpu` was "single", and `overlap` was "hybrid" with a lag."""
    assert repr(placement_from_settings({"name": "single", "device": "cpu"})) == "SingleDevice(device='cpu')"
    lagging = Mirrored("cpu", "cpu", max_lag=1).settings()
    assert lagging["name"] == placement_from_settings({**lagging, "name": "hybrid"}).name == "overlap"
    before, after = SingleDevice("cpu"), SingleDevice("cpu")
    before.counters.add(num_bytes=8, seconds=0.0, publishes=3)
    tensors, state = before.state()
    state["settings"]["name"] = "single"
    after.load_state(tensors, state)
    assert after.counters == before.counters


def test_a_run_too_short_says_so_and_takes_the_cpu(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.INFO, logger="hybridppo"):
        train(iterations=2, run_dir=tmp_path / "run")
    (record,) = caplog.records
    expected = "placement auto: cpu; not measured (all: a run of 8 optimizer steps is too short to measure)"
    assert record.getMessage() == expected
    table = json.loads((tmp_path / "run" / "placements.json").read_text())
    assert table["chosen"] == "cpu"


def test_the_table_is_written(recorded: Any, tmp_path: Path) -> None:
    recorded(slow_steps)
    train(iterations=2, run_dir=tmp_path / "run")
    table = json.loads((tmp_path / "run" / "placements.json").read_text())
    assert table["chosen"] == "cpu, 2 workers"
    rows = {row["label"]: row["iteration"] for row in table["trials"]}
    assert rows == {"cpu": 17.0, "cpu, 2 workers": 9.0}
    lags = "it learns from rollouts that are one update old; max_lag=1 (--max-lag 1) allows that"
    assert table["left_out"] == [f"overlap: {lags}"]


@pytest.mark.parametrize(("max_lag", "reason"), [(0, "one update old"), (1, "less than 3% faster")])
def test_a_shorter_iteration_that_was_not_chosen_has_a_reason(max_lag: int, reason: str) -> None:
    chosen = Trial(Candidate("cpu"), 1.0, 1.0, 0.0, 0.0, 8)
    shorter, longer = (Trial(Candidate("overlap", max_lag=1), s, 1.0, 0.0, 0.0, 8) for s in (0.98, 1.5))
    (found,) = auto.reasons_against([chosen, shorter, longer], chosen, max_lag)
    assert found.startswith("overlap: ")
    assert reason in found


def test_a_placement_by_name_measures_nothing(recorded: Any, tmp_path: Path) -> None:
    calls = recorded(slow_steps)
    train(iterations=2, placement="cpu", run_dir=tmp_path / "run")
    assert calls == []
    assert not (tmp_path / "run" / "placements.json").exists()


def test_a_resumed_run_is_not_measured_again(recorded: Any, tmp_path: Path) -> None:
    tried = recorded(slow_steps)
    train(iterations=2, run_dir=tmp_path / "run")
    before, number = config_of(tmp_path / "run"), len(tried)
    hybridppo.resume(tmp_path / "run", total_steps=4 * CONFIG.batch_size, progress=False)
    assert len(tried) == number > 0
    assert config_of(tmp_path / "run") == before | {"total_steps": 4 * CONFIG.batch_size}


def test_a_resumed_run_is_measured_where_that_is_asked_for(recorded: Any, tmp_path: Path) -> None:
    calls, run, workers = recorded(slow_steps), tmp_path / "run", list[int]()
    train(iterations=2, placement="cpu", run_dir=run)
    assert calls == []

    def look(metrics: Any) -> None:
        workers.append(len(worker_processes()))

    hybridppo.resume(run, total_steps=4 * CONFIG.batch_size, placement="auto", progress=False, on_iteration=look)
    assert len(calls) > 0
    assert workers == [2, 2]  # as was measured to be the fastest
    assert config_of(run)["num_workers"] is None  # as its placement, it is not for the next resume


def test_what_goes_wrong_is_told_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("no second simulator")

    monkeypatch.setattr(Training, "try_out", fail)
    unhurried(monkeypatch)
    result = train()
    assert result.metrics["iteration"] == ITERATIONS
    record = caplog.records[0]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "placement auto: not measured, because of ZeroDivisionError: no second simulator"


class Lost(gym.Env[Any, Any]):
    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise ConnectionError("no simulator")


def test_an_environment_that_fails_in_a_trial_has_its_traceback_in_the_error_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unhurried(monkeypatch)
    caplog.set_level(logging.INFO)
    with pytest.raises(EnvError, match=r"(?s)failed in a reset.*ConnectionError: no simulator\nTraceback"):
        train(Lost)
    (line,) = caplog.messages
    assert line == (
        "placement auto: cpu; not measured (cpu: EnvError: environment 0 (seed 0) failed in a reset, 0 steps after the "
        "first: ConnectionError: no simulator)"
    )


def test_several_policies_are_measured(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def try_out(self: Training, candidate: Candidate, most: float, share: float = 1.0, *_: float) -> Trial:
        return Trial(candidate, *slow_steps(candidate), 0.0, 0.0, CONFIG.batch_size)

    monkeypatch.setattr(Training, "try_out", try_out)
    unhurried(monkeypatch)
    monkeypatch.setattr(auto, "cpu_cores", lambda: 1)
    with caplog.at_level(logging.INFO, logger="hybridppo"):
        train(Unlike, config={"sign": CONFIG, "pointer": CONFIG}, iterations=2)
    assert caplog.messages[0].startswith("placement auto: cpu, 17 s an iteration")


def test_less_than_no_lag_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_lag must be a whole number of at least 0, got -1"):
        Auto(max_lag=-1)


# From candidates to placements


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (Candidate("cpu", num_workers=2), "SingleDevice(device='cpu')"),
        (Candidate("cuda", "cpu"), "SingleDevice(device='cpu')"),
        (Candidate("overlap", max_lag=1), "max_lag=1, verify=False, force_copy=False)"),
        (Candidate("overlap", max_lag=3), "max_lag=3, verify=False, force_copy=False)"),
        (Candidate("hybrid"), "max_lag=0, verify=False, force_copy=True)"),
        (Candidate("migrate"), "Migrating(sampling='cpu', learning='cpu', force_copy=True)"),
    ],
)
def test_candidates_are_placements(candidate: Candidate, expected: str) -> None:
    assert repr(candidate.placement).endswith(expected)
