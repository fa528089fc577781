"""The command line: what it does, what it prints, and its exit codes."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from processes import run_python
from run_files import timeless_lines_of
from selection import only_by_default
from toy_environments import newest

import hybridppo
from hybridppo import Mirrored, PPOConfig
from hybridppo.agents.ppo.loss import ppo_loss
from hybridppo.commands.main import main, parse_command
from hybridppo.system.messages import shown_return

ROOT = Path(__file__).parents[2]
HAS_MATPLOTLIB = find_spec("matplotlib") is not None
SIZES = {"num-envs": 2, "num-steps": 16, "num-epochs": 1, "num-minibatches": 2, "hidden-sizes": 8}
SMALL = [f"--{name}={value}" for name, value in SIZES.items()] + ["--vectorization=sync"]
QUIET = ["--no-progress"]


def run(*arguments: object) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as exited:
        main([str(argument) for argument in arguments])
    code = exited.value.code
    assert isinstance(code, int)
    return code


def train(run_dir: Path, *arguments: object, total_steps: int = 64) -> int:
    options = ("--total-steps", total_steps, "--run-dir", run_dir, "--placement", "cpu", *SMALL, *QUIET)
    return run("train", "CartPole-v1", *options, *arguments)


def config_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "config.json").read_text())


def num_iterations(run_dir: Path) -> int:
    return (run_dir / "metrics.jsonl").read_text().count("\n")


def ppo_loss_of_ones_own(*inputs: Any) -> Any:
    return ppo_loss(*inputs)


@pytest.fixture
def run_dir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a finished run."""
    assert train(tmp_path / "run", "--seed", 1) == 0
    capsys.readouterr()
    return tmp_path / "run"


# What the commands do


def test_options_that_are_objects_take_none_as_others_do() -> None:
    command: Any = parse_command(["train", "CartPole-v1", "--env-kwargs", "None", "--encoder-sizes", "None"])
    assert command.environment.env_kwargs is None
    assert command.config.encoder_sizes is None


def test_train_writes_a_run_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    assert (
        train(path, "--seed", 5, "--evaluation-episodes", 2, "--learning-rate", "1e-3", "--no-normalize-advantage") == 0
    )
    out = capsys.readouterr().out
    assert f"run directory: {path}" in out
    assert re.search(r"evaluation: return [\d.]+ \+- [\d.]+ over 2 episodes", out)
    assert num_iterations(path) == 2
    config = config_of(path)
    assert (config["env_id"], config["seed"], config["total_steps"]) == ("CartPole-v1", 5, 64)
    assert PPOConfig(**config["config"]) == PPOConfig(
        num_envs=2,
        num_steps=16,
        num_epochs=1,
        num_minibatches=2,
        hidden_sizes=(8,),
        learning_rate=1e-3,
        normalize_advantage=False,
    )


RUNS: dict[str, list[object]] = {
    "ppo": ["--seed", 4, "--recurrent", "lstm", "--entropy-coef", 0.01, "--schedules", "learning_rate=linear"],
    "ddpg": ["--agent", "ddpg", "--seed", 4, "--buffer-size", 200, "--learning-starts", 20],
    "placement": ["--seed", 4, "--placement", "hybrid", "--learning-device", "cpu", "--target-return", 475],
    "overlap": ["--seed", 4, "--placement", "overlap", "--learning-device", "cpu", "--num-workers", 1],
    "environment": [
        "--seed",
        4,
        "--env-kwargs",
        '{"max_episode_steps": 9}',
        "--frame-stack",
        2,
        "--keep-checkpoints",
        2,
    ],
}
"""Runs that are repeated from their settings. To add one, add a line."""


@pytest.mark.parametrize("name", only_by_default(("ppo", "ddpg", "overlap", "environment"), RUNS))
def test_a_run_is_trained_again_by_its_settings(name: str, tmp_path: Path) -> None:
    sizes = SMALL if name != "ddpg" else ["--hidden-sizes=8", "--num-envs=2", "--vectorization=sync"]
    env = "CartPole-v1" if name != "ddpg" else "Pendulum-v1"
    first, again, other = tmp_path / "first", tmp_path / "again", tmp_path / "other"
    flags = ["--total-steps", 64, "--placement", "cpu", *RUNS[name], *sizes, *QUIET]
    assert run("train", env, *flags, "--run-dir", first) == 0
    assert run("train", "--config", first / "config.json", "--run-dir", again, *QUIET) == 0
    written, expected = config_of(again), config_of(first)
    assert written.pop("origin")["command"] != ""
    del expected["origin"]
    assert written == expected
    assert timeless_lines_of(again) == timeless_lines_of(first)
    assert run("train", f"--config={first}", "--seed", 5, "--gamma", 0.5, "--run-dir", other, *QUIET) == 0
    changed = config_of(other)
    assert (changed["seed"], changed["config"]["gamma"]) == (5, 0.5)
    assert changed["placement"] == expected["placement"]
    assert timeless_lines_of(other) != timeless_lines_of(first)


@pytest.mark.parametrize(
    ("options", "flags", "said"),
    [
        ({"env": lambda: gym.make("CartPole-v1")}, [], r"what only Python can make again: env \(.*lambda"),
        ({"loss": ppo_loss_of_ones_own}, [], r"what only Python can make again: loss \(ppo_loss_of_ones_own\)"),
        ({"agent": "given"}, [], r"what only Python can make again: agents \(that there were already\)"),
        ({"placement": Mirrored("cpu", "cpu", publish_every=2)}, [], "the command line has no placement .*: name"),
        ({}, ["--agent", "td3"], "has the settings of ppo: leave --agent out, or --config"),
        ({}, ["--tuned"], "--tuned and --config both say"),
    ],
)  # fmt: skip
def test_settings_that_the_command_line_cannot_have_are_refused(
    options: dict[str, Any], flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"env": "CartPole-v1", "placement": "cpu", "config": PPOConfig(num_envs=2, num_steps=16), **options}
    if "agent" in options:
        trained = hybridppo.train(total_steps=32, progress=False, **arguments | {"agent": None}).agent
        arguments |= {"agent": trained, "config": None}
    hybridppo.train(total_steps=32, progress=False, run_dir=tmp_path / "run", **arguments)
    config = ["--config", tmp_path / "run" / "config.json", "--run-dir", tmp_path / "again", *QUIET]
    assert run("train", *config, *flags) == 2
    assert re.search(said, capsys.readouterr().err)
    if "placement" in options:
        assert run("train", *config, "--placement", "cpu") == 0


def test_a_file_that_is_no_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--config", tmp_path / "none", *QUIET) == 1
    assert "is no run directory" in capsys.readouterr().err
    assert run("train", "--config", tmp_path / "none.json", *QUIET) == 2
    assert "none.json does not exist" in capsys.readouterr().err


def test_commands_that_begin_in_the_same_second_take_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "first", tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr("hybridppo.commands.train.fresh_path", lambda *_: paths.pop(0))
    for _ in range(2):
        assert run("train", "CartPole-v1", "--total-steps", 64, "--placement", "cpu", *SMALL, *QUIET) == 0
    assert [num_iterations(tmp_path / name) for name in ("first", "second")] == [2, 2]


def test_train_takes_a_fresh_folder_under_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # within the same second, too
        arguments = ("--total-steps", 32, "--seed", 4, "--placement", "cpu", *SMALL, *QUIET)
        assert run("train", "CartPole-v1", *arguments) == 0
    made = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(made) == 2
    assert all(re.match(r"CartPole-v1-\d{8}-\d{6}-seed4", name) for name in made)


def test_train_writes_down_the_seed_it_took(tmp_path: Path) -> None:
    assert train(tmp_path / "one", total_steps=32) == 0
    assert train(tmp_path / "other", total_steps=32) == 0
    assert config_of(tmp_path / "one")["seed"] != config_of(tmp_path / "other")["seed"]


def test_train_gives_what_python_gives(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--seed", 7) == 0
    config = PPOConfig(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    result = hybridppo.train(
        "CartPole-v1", total_steps=64, seed=7, placement="cpu", config=config, vectorization="sync", progress=False
    )
    loaded = hybridppo.load(tmp_path / "run")
    for ours, theirs in zip(loaded.actor.parameters(), result.agent.actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_devices_fill_in_a_placement(tmp_path: Path) -> None:
    flags = ("--placement", "hybrid", "--sampling-device", "cpu", "--learning-device", "cpu")
    assert train(tmp_path / "run", *flags) == 0
    assert config_of(tmp_path / "run")["placement"] == hybridppo.Mirrored("cpu", "cpu").settings()


def test_resume_goes_on(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("resume", run_dir, "--total-steps", 128, *QUIET) == 0
    assert num_iterations(run_dir) == 4
    assert f"run directory: {run_dir}" in capsys.readouterr().out


def test_a_run_is_named_by_its_settings_too_and_other_files_are_none(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("resume", run_dir / "config.json", "--total-steps", 96, *QUIET) == 0
    assert num_iterations(run_dir) == 3
    assert run("evaluate", run_dir / "config.json", "--episodes", 1, *QUIET) == 0
    assert run("export", run_dir / "config.json", run_dir / "policy.npz", "--check-steps", 2) == 0
    assert train(run_dir.parent / "from", "--start-from", run_dir / "config.json", total_steps=32) == 0
    hybridppo.load(run_dir).save(run_dir / "agent.safetensors")
    capsys.readouterr()
    for command in ("resume", "report"):
        assert run(command, run_dir / "agent.safetensors") == 1
        assert "agent.safetensors is a file: pass a run's folder" in capsys.readouterr().err


def test_evaluate_prints_mean_and_deviation(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", run_dir, "--episodes", 3, *QUIET) == 0
    evaluation = hybridppo.evaluate(run_dir, episodes=3, progress=False)
    mean, deviation = evaluation.return_mean, evaluation.return_std
    expected = f"return {mean:.2f} +- {deviation:.2f} over 3 episodes, deterministic actions\n"
    assert capsys.readouterr().out == expected


def test_evaluate_takes_other_arguments_and_an_agents_file(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hybridppo.load(run_dir).save(tmp_path / "agent")
    short = ["--env-kwargs", '{"max_episode_steps": 3}', "--episodes", 2, "--json", *QUIET]
    for given in ([run_dir], [tmp_path / "agent", "--env", "CartPole-v1"]):
        assert run("evaluate", *given, *short) == 0
        assert json.loads(capsys.readouterr().out)["returns"] == [3.0, 3.0]
    assert run("evaluate", run_dir, "--env", "CartPole-v0", *short) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == [3.0, 3.0]
    assert run("evaluate", run_dir, "--env", "Acrobot-v1", *short) == 1
    assert "observation_space was" in capsys.readouterr().err
    assert run("evaluate", tmp_path / "agent", "--env", "CartPole-v1", "--episodes", 1, *QUIET) == 0
    assert run("evaluate", tmp_path / "agent", *QUIET) == 2
    assert "which names no environment: pass env=... (--env)" in capsys.readouterr().err


def test_functions_are_named_by_their_module_and_agents_play_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, env = tmp_path / "one", tmp_path / "other", "toy_agents:Matching"
    small = ["--num-envs", 2, "--num-steps", 8, "--num-minibatches", 2, "--placement", "cpu", *QUIET]
    for path, seed in ((one, 1), (other, 2)):
        assert run("train", env, "--total-steps", 48, "--run-dir", path, "--seed", seed, *small) == 0
    assert run("resume", one, "--total-steps", 96, "--num-workers", 2, *QUIET) == 0
    assert run("evaluate", one, "--episodes", 2, *QUIET) == 0
    hybridppo.load(other).save(tmp_path / "saved")
    capsys.readouterr()
    assert run("evaluate", one, other, tmp_path / "saved", "--episodes", 4) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.strip("| ").split() == [str(one), "|", str(other), "|", str(tmp_path / "saved"), "|", "mean"]
    assert [row.split()[1] for row in rows] == [str(path) for path in (one, other, tmp_path / "saved")]
    assert run("evaluate", tmp_path / "saved", one, "--env", env, "--episodes", 4, "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores[str(one)][str(tmp_path / "saved")] + scores[str(tmp_path / "saved")][str(one)] == 1.0
    for arguments, said in (
        ([tmp_path / "saved", one], "which names no environment: pass env=... (--env)"),
        ([one, one], "each agent of a round robin must be given once"),
    ):
        assert run("evaluate", *arguments) == 2  # wrong usage
        assert said in capsys.readouterr().err
    assert run("train", "toy_agents:Nothing", "--total-steps", 48, "--run-dir", tmp_path / "none", *small) == 1
    assert "write module:id, or module:function" in capsys.readouterr().err


def test_each_of_several_policies_has_its_own_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "--num-envs",
        2,
        "--num-steps",
        8,
        "--num-minibatches",
        2,
        "--placement",
        "cpu",
        "--run-dir",
        tmp_path / "run",
    ]
    own = ["--policies", '{"sign": {}, "pointer": {}}', "--evaluate-every", 16, "--episodes-per-evaluation", 2]
    assert run("train", "toy_agents:Unlike", "--total-steps", 32, *small, *own, "--evaluation-episodes", 2) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^evaluation: sign: return \S+ \+- \S+ over \d+ episodes, pointer: return ", out, re.MULTILINE)
    assert re.search(r"evaluation after \d+ steps: sign: return \S+, pointer: return \S+$", err, re.MULTILINE)
    assert run("evaluate", tmp_path / "run", "--episodes", 2, *QUIET) == 0
    evaluation = hybridppo.evaluate(tmp_path / "run", episodes=2, progress=False)
    mean = evaluation.of_agents([name for name in evaluation.agents if name.startswith("pointer")]).return_mean
    assert f"episodes, pointer: {shown_return(mean)} +- " in capsys.readouterr().out


def test_evaluate_as_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", run_dir, "--episodes", 3, "--seed", 2, "--no-deterministic", "--json", *QUIET) == 0
    evaluation = hybridppo.evaluate(run_dir, episodes=3, seed=2, deterministic=False, progress=False)
    printed = json.loads(capsys.readouterr().out)
    assert printed["returns"] == list(evaluation.returns)
    assert printed["lengths"] == list(evaluation.lengths)
    assert printed["return_mean"] == evaluation.return_mean


def test_placements_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("placements", "CartPole-v1", "--num-envs", 2, "--num-steps", 16, "--seconds", 0.05, *QUIET) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = ["placement", "steps/s", "iteration ms", "sampling ms", "learning ms", "copying ms", "start s"]
    assert [head.strip() for head in lines[0].strip("|").split("|")] == heads
    assert len({line.rindex("|") for line in lines[: lines.index("")]}) == 1
    assert any("cpu" in line for line in lines[2:])
    assert sum("**" in line for line in lines) == 1
    assert any(line.startswith("chosen: cpu") for line in lines)
    assert any(" hybrid " in line for line in lines) == torch.cuda.is_available()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seconds", "nan"], "seconds must be a finite number of at least 0, got nan"),
        (["--total-steps", 0], "total_steps must be a whole number of at least 1, got 0"),
    ],
)
def test_placements_refuses_numbers_that_cannot_be_meant(
    flags: list[object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("placements", "CartPole-v1", *flags, *QUIET) == 2
    assert said in capsys.readouterr().err


def test_placements_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--num-envs", 2, "--num-steps", 16, "--json", "--num-workers", 0, "--seconds", 0.05)
    assert run("placements", "CartPole-v1", *flags, *QUIET) == 0
    comparison = json.loads(capsys.readouterr().out)
    row = comparison["rows"][0]
    assert row["label"] == "cpu"
    assert min(row["iteration"], row["sampling"], row["learning"], row["steps_per_second"], row["start"]) > 0
    assert {row["label"] for row in comparison["rows"]} >= {"cpu", "overlap"}
    assert [row["is_chosen"] for row in comparison["rows"]].count(True) == 1


def test_auto_may_overlap_where_that_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", "--placement", "auto", "--max-lag", 1) == 0
    assert train(tmp_path / "other", "--placement", "auto", "--max-lag", -1) == 2
    assert_is_one_message(capsys.readouterr().err.splitlines()[-1], "max_lag must be a whole number", "got -1")


def test_an_interrupted_run_exits_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridppo.commands.train.train", interrupted)
    assert train(tmp_path / "run") == 130
    assert capsys.readouterr().err == "interrupted\n"


# Errors


def assert_is_one_message(err: str, *parts: str) -> None:
    (line,) = err.strip().splitlines()
    assert line.startswith("hybridppo: error: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", "CartPoel-v1", "--total-steps", "1", "--run-dir", "run"], ["CartPoel"]),
        (["resume", "no_such_run"], ["no_such_run is no run directory: it does not exist"]),
        (["evaluate", "no_such_run"], ["no_such_run is no run directory"]),
        (["placements", "CartPoel-v1"], ["CartPoel"]),
    ],
    ids=lambda value: value[0] if value[0].isalpha() else "",
)
def test_an_error_is_one_message_and_exit_code_1(
    arguments: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert_is_one_message(err, *parts)


@pytest.mark.skipif(not (HAS_MATPLOTLIB and find_spec("imageio_ffmpeg")), reason="needs matplotlib and a video")
def test_a_file_that_cannot_be_written_is_one_message(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = run_dir / "config.json"  # no folder
    of_run = [("plot", "--output", "x.png"), ("play", "--output", "x.mp4"), ("export", "", "x.npz")]
    for command, flag, name in of_run:
        assert run(command, run_dir, *filter(None, [flag]), here / name) == 1
        assert_is_one_message(capsys.readouterr().err, f"{here / name} cannot be written: ")
    assert run("benchmark", "CartPole-v1", "--settings", "defaults", "--total-steps", 1, "--output", here / "x") == 1
    assert_is_one_message(capsys.readouterr().err, f"{here / 'x' / 'lock'} cannot be written: ")


ABSENT = ("--sampling-device", "cuda:77", "'cuda:77' was asked for")
NO_DEVICE = ("--learning-device", "banana", "is no device: write")


@pytest.mark.parametrize(
    ("placement", "flag", "device", "part"),
    [
        *(("auto", *ABSENT), ("cuda", *ABSENT), ("hybrid", *ABSENT)),
        *(("cpu", *NO_DEVICE), ("migrate", *NO_DEVICE), ("overlap", *NO_DEVICE)),
    ],
)
def test_a_device_that_is_not_there_is_an_error_with_every_placement(
    placement: str, flag: str, device: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", "--placement", placement, flag, device) == 1
    assert_is_one_message(capsys.readouterr().err, part)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", ["--sampling-device", "--learning-device"])
def test_a_placement_that_takes_no_device_refuses_one(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for placement in ("auto", "cpu", "cuda"):
        assert train(tmp_path / "run", "--placement", placement, flag, "cpu") == 2
        option = flag.strip("-").replace("-", "_")
        parts = f"{option}='cpu'", f"with placement {placement}:", "placement migrate, hybrid or overlap"
        assert_is_one_message(capsys.readouterr().err, *parts)
    assert not (tmp_path / "run").exists()


def test_resume_refuses_devices_as_train_does(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goal = ("--total-steps", 128, *QUIET)
    assert run("resume", run_dir, "--learning-device", "cuda:77", *goal) == 1
    assert_is_one_message(capsys.readouterr().err, "'cuda:77' was asked for")
    assert run("resume", run_dir, "--placement", "cpu", "--sampling-device", "banana", *goal) == 1
    assert_is_one_message(capsys.readouterr().err, "'banana' is no device")
    assert run("resume", run_dir, "--sampling-device", "cpu", *goal) == 2
    assert_is_one_message(capsys.readouterr().err, "sampling_device='cpu'", "placement migrate, hybrid or overlap")
    assert num_iterations(run_dir) == 2
    assert run("resume", run_dir, "--placement", "hybrid", "--learning-device", "cpu", *goal) == 0


def test_lag_is_for_placements_that_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", "--max-lag", 1) == 2  # with placement cpu
    assert_is_one_message(capsys.readouterr().err, "max_lag=1 cannot be used with placement cpu", "overlap", "auto")
    assert train(tmp_path / "run", "--placement", "overlap", "--max-lag", 0) == 2
    assert_is_one_message(capsys.readouterr().err, "max_lag=0 cannot be used with placement overlap")
    lagging = ("--placement", "overlap", "--learning-device", "cpu", "--max-lag", 3)
    assert train(tmp_path / "lagging", *lagging) == 0
    assert config_of(tmp_path / "lagging")["placement"]["max_lag"] == 3


def test_resume_takes_a_lag_with_a_placement(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goal = ("--total-steps", 128, *QUIET)
    assert run("resume", run_dir, "--max-lag", 3, *goal) == 2
    assert_is_one_message(capsys.readouterr().err, "max_lag=3 needs a placement", "--placement")
    lagging = ("--placement", "overlap", "--learning-device", "cpu", "--max-lag", 3)
    assert run("resume", run_dir, *lagging, *goal) == 0
    assert json.loads((run_dir / "result.json").read_text())["placement"]["max_lag"] == 3


def test_an_error_of_somebody_elses_is_one_message_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("the motor is stuck")

    monkeypatch.setattr("hybridppo.commands.train.train", fail)
    assert run("train", "CartPole-v1") == 1
    assert_is_one_message(capsys.readouterr().err, "ZeroDivisionError: the motor is stuck", "--debug")


def test_names_in_a_file_cannot_control_the_terminal_by_the_help_or_a_traceback(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = config_of(run_dir) | {"env_id": "A\x1b]0;title\x07", "start_from": "\x1b[2J"}
    (run_dir / "config.json").write_text(json.dumps(found))
    assert run("train", "--config", run_dir, "--help") == 0
    assert run("check", "\x1b[31m:Maze-v0", "--debug") == 1
    printed = "".join(capsys.readouterr())
    assert r"\x1b]0;title\x07" in printed
    assert r"\x1b[2J" in printed
    assert "\x1b" not in printed


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "CartPoel-v1", "--debug") == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert "EnvError: environment 'CartPoel-v1' cannot be made" in err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], ""),
        (["fly"], "fly"),
        (["train"], "ENV_ID"),
        (["train", "CartPole-v1", "--no-such-flag", "1"], "--no-such-flag"),
        (["train", "CartPole-v1", "--total-steps", "many"], "many"),
        (["train", "CartPole-v1", "--placement", "both"], "both"),
        (["resume"], "RUN_DIR"),
        (["evaluate"], "RUN_DIR"),
        (["placements"], "ENV_ID"),
        (["train", "CartPole-v1", "--total-steps", "1e-6"], "'1e-6' is no whole number, such as 1000 or 1e3"),
        (["trian"], "there is no command 'trian': did you mean train?"),
        (
            ["train", "CartPole-v1", "--agent", "dpg"],
            "agent must be one of ppo, ddpg, td3, or a class as module:Class, got 'dpg': did you mean ddpg",
        ),
        (["train", "CartPole-v1", "--batch-size", "64"], "did you mean --minibatch-size 64? hybridppo train --help"),
        (["train", "CartPole-v1", "--no-anneal-lr"], "did you mean --no-anneal-learning-rate?"),
        (["train", "x", "--num-envs", "8", "--train-batch-size=4096"], "--num-steps 512? (of each of 8 environments)"),
        (["train", "x", "--agent=td3", "--polyak=0.995"], "did you mean --tau 0.005? (1 minus it)"),
        (["resume", "run", "--learning-rate", "1"], "train ENV_ID --start-from RUN_DIR --learning-rate begins another"),
        (["resume", "run", "--seed", "1"], "train ENV_ID --start-from RUN_DIR --seed begins another"),
        (["tune", "CartPole-v1", "--output", ""], "it must be a path, got ''"),
        (["train", "CartPole-v1", "--run-dir", ""], "it must be a path, got ''"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert part in err
    assert "Traceback" not in err
    assert err.count("Error parsing") == any(word in part for word in ("many", "1e-6", "path"))  # once


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("--total-steps 0", ["total_steps must be a whole number of at least 1, got 0"]),
        ("--gamma 1.5", ["gamma must lie between 0 and 1, got 1.5"]),
        ("--learning-rate -1", ["learning_rate must be greater than 0, got -1"]),
        ("--num-minibatches 3", ["num_minibatches must divide num_envs * num_steps"]),
        ("--evaluation-episodes -1", ["evaluation_episodes must be a whole number of at least 0, got -1"]),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_impossible_settings_are_wrong_usage(
    flags: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", *flags.split()) == 2
    assert_is_one_message(capsys.readouterr().err, *parts)
    assert not (tmp_path / "run").exists()


def test_masks_by_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    options = ("--total-steps", 64, "--run-dir", path, "--placement", "cpu", *SMALL, *QUIET)
    assert run("train", newest("Taxi"), *options, "--action-masks") == 0
    assert config_of(path)["action_masks"] is True
    assert run("resume", path, "--total-steps", 128, "--no-progress") == 0
    assert run("evaluate", path, "--episodes", 1, "--no-progress") == 0
    capsys.readouterr()
    assert run("train", "CartPole-v1", *options, "--action-masks", "--run-dir", tmp_path / "other") == 1
    assert "its info has no 'action_mask'" in capsys.readouterr().err
    assert (
        run("placements", newest("Taxi"), *SMALL[:-1], "--num-workers", 0, "--action-masks", "--seconds", 0.01, *QUIET)
        == 0
    )


# Help


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(*([command] if command else []), "--help") == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("", ["train", "resume", "evaluate", "placements"]),
        (
            "train",
            ["ENV_ID", "--total-steps", "--seed", "--placement", "--sampling-device", "--learning-device", "--run-dir"],
        ),
        ("resume", ["RUN_DIR", "--total-steps", "--placement", "--debug"]),
        ("evaluate", ["RUN_DIR", "--episodes", "--seed", "--deterministic", "--json", "--debug"]),
        ("placements", ["ENV_ID", "--seconds", "--json", "--max-lag", "--num-envs", "--debug"]),
    ],
)
def test_help_names_what_can_be_given(command: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    assert [flag for flag in flags if flag not in text] == []


@pytest.mark.parametrize("command", ["train", "placements"])
def test_every_field_of_the_configuration_is_a_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    flags = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(PPOConfig)]
    assert [flag for flag in flags if not re.search(rf"{flag}\b", text)] == []


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_help_of_train_has_sections_in_any_width(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = help_of("train", capsys)
    titles = re.findall(r"^ (\S.*?) *\n -+ *$", text, re.MULTILINE)  # an output of ASCII has no boxes
    assert titles == [
        "positional arguments", "options",
        *(f"{name} options" for name in (
            "run", "environment", "PPO", "network", "placement and speed", "saving and logging", "distributed", "other"
        )),
    ]  # fmt: skip
    flags = re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)
    assert flags[:3] == ["total-steps", "seed", "num-envs"]
    assert flags[10:12] == ["tuned", "tuned-from"]
    assert flags[-1] == "debug"
    assert max(map(len, text.splitlines())) == columns
    # No line ends early: the next line's first word would not have fitted.
    lines = [line.strip("│| ") for line in text.splitlines()]
    sentence = next(place for place, line in enumerate(lines) if line.startswith("Seed of everything random"))
    words = " ".join(lines[sentence : sentence + 4])
    assert "without it, one is taken from the operating system and saved." in words
    assert "PPO library" in (overview := help_of("", capsys))
    assert max(map(len, overview.splitlines())) <= columns
    assert max(map(len, help_of("evaluate", capsys).splitlines()[1:])) <= columns


def test_whole_numbers_and_lists_are_read_as_people_write_them() -> None:
    flags = ["--total-steps=1e6", "--num-steps", "1_024", "--total-episodes", "2e3", "--hidden-sizes", "64,32"]
    command: Any = parse_command(["train", "CartPole-v1", *flags, "--sde-sample-freq=-1", "--seed", "1E2"])
    options, config = command.options, command.config
    assert (options.total_steps, options.total_episodes, options.seed) == (1_000_000, 2000, 100)
    assert (config.num_steps, config.hidden_sizes) == (1024, (64, 32))
    other: Any = parse_command(["train", "--env=CartPole-v1", "--hidden-sizes=[64, 32]", "--minibatch-size=512"])
    assert (other.config.hidden_sizes, other.config.minibatch_size) == ((64, 32), 512)


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr() == (f"hybridppo {hybridppo.__version__}\n", "")


SPEAK = """
import os, pty, sys
from hybridppo.commands.main import main

if {in_terminal}:
    pid, terminal = pty.fork()
    if pid:
        said = b""
        try:
            while text := os.read(terminal, 4096):
                said += text
        except OSError:  # how Linux says that the other side is closed
            pass
        os.waitpid(pid, 0)
        sys.stdout.buffer.write(said)
        sys.exit()
for name, value in {variables}:
    os.environ.pop("NO_COLOR", None)
    os.environ["TERM"] = "xterm"
    os.environ[name] = value
    for arguments in (["resume", "--help"], ["resume", "run", "--total-steps", "many"]):
        for stream in (sys.stdout, sys.stderr):
            print("{mark}", file=stream, flush=True)
        try:
            main(arguments)
        except SystemExit:
            pass
"""
"""The command line, in a terminal or not."""
MARK = "-- the next command --"


@pytest.mark.parametrize(
    ("in_terminal", "expected"),
    [
        (True, {("TERM", "xterm"): True, ("NO_COLOR", ""): True, ("NO_COLOR", "1"): False, ("TERM", "dumb"): False}),
        (False, {("TERM", "xterm"): False}),
    ],
    ids=["in a terminal", "in a pipe"],
)
def test_colours_are_for_terminals_whose_users_want_them(
    in_terminal: bool, expected: dict[tuple[str, str], bool]
) -> None:
    if in_terminal:
        pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    code = SPEAK.format(in_terminal=in_terminal, mark=MARK, variables=[*expected])
    process = run_python("-c", code, env=env)
    output, errors = (text.split(MARK)[1:] for text in (process.stdout, process.stderr))
    texts = [one + other for one, other in zip(output, errors, strict=True)] if errors else output[1::2]
    assert len(texts) == 2 * len(expected)
    wanted = product(expected.values(), ("total-steps", "helptext"))
    for (has_colours, said), text in zip(wanted, texts, strict=True):
        assert said in text
        assert ("\x1b[" in text) == has_colours, text


@pytest.mark.parametrize("columns", ["0", "6"])
def test_a_terminal_without_a_size_has_80_columns(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def size() -> os.terminal_size:  # as Python 3.10 finds it in a pseudo-terminal
        return os.terminal_size((int(os.environ["COLUMNS"]), 24))

    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("shutil.get_terminal_size", size)
    assert run("agents") == 0
    assert os.environ["COLUMNS"] == "80"


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "r"], ["play", "r"], ["tune", "CartPole-v1"], ["benchmark", "classic"],
        ["placements", "CartPole-v1"], ["check", "CartPole-v1"], ["doctor"],
    ],
)  # fmt: skip
def test_a_command_that_several_processes_would_repeat_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(*arguments) == 2
    assert_is_one_message(
        capsys.readouterr().err,
        "torchrun has started 2 processes (WORLD_SIZE), and this command would do the same in each: start one process",
    )


# As processes


def run_process(*arguments: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return run_python(*arguments, cwd=cwd)


def test_several_seeds_are_trained_side_by_side_and_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a folder of its own. Runs of tests/hybridppo/tools/test_tune.py are in processes."""
    stopped = {"seed5"}

    def in_this_process(runs: Any, *, jobs: int, progress: bool) -> None:
        for each in runs:
            if each.run_dir.name in stopped:
                raise KeyboardInterrupt
            each.train()

    monkeypatch.setattr("hybridppo.tools.jobs.train_missing", in_this_process)
    flags = ("--seeds", 3, "--seed", 4, "--evaluation-episodes", 1, "--num-envs", 2, "--num-steps", 32, "--no-progress")
    command = ("train", "CartPole-v1", "--total-steps", 256, "--run-dir", tmp_path / "seeds", *flags)
    assert run(*command) == 130
    assert f"go on with the same command, and --run-dir {tmp_path / 'seeds'} --seed 4" in capsys.readouterr().err
    stopped.clear()
    assert run(*command) == 0
    runs = {path.parent.name: config_of(path.parent) for path in (tmp_path / "seeds").glob("*/config.json")}
    assert {name: (config["seed"], config["placement"]["name"]) for name, config in runs.items()} == {
        "seed4": (4, "cpu"), "seed5": (5, "cpu"), "seed6": (6, "cpu"),
    }  # fmt: skip
    *of_seeds, _, _, row, where = capsys.readouterr().out.splitlines()
    assert [line.partition(": training: return ")[0] for line in of_seeds] == ["seed 4", "seed 5", "seed 6"]
    assert all("evaluation: return" in line for line in of_seeds)
    assert [cell.strip() for cell in row.split("|")[1:5]] == ["CartPole-v1", "CartPole-v1", "episode_return_mean", "3"]
    assert where == f"run directories: {tmp_path / 'seeds'}"
    for more, message in (
        (("--run-dir", tmp_path / "seeds" / "seed4"), "seed4 is the folder of one run: name another one for 3 seeds"),
        (("--policies", '{"a": {}}'), "--seeds is for one policy"),
        (("--seeds", 0), "seeds must be a whole number of at least 1, got 0"),
    ):
        assert run(*command, *more) == 2
        assert message in capsys.readouterr().err


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    process = run_process("-m", "hybridppo", "--help", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "placements" in process.stdout


def test_a_process_prints_its_error_on_stderr(tmp_path: Path) -> None:
    process = run_process("-m", "hybridppo", "resume", "no_such_run", cwd=tmp_path)
    assert process.returncode == 1
    assert process.stdout == ""
    assert_is_one_message(process.stderr, "no_such_run is no run directory")


def test_names_outside_the_encoding_of_the_output_are_escaped(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "日")
    code = "import io, sys; sys.stdout = io.TextIOWrapper(open(1, 'wb'), 'cp1252'); import hybridppo.__main__ as it; "
    process = run_python("-c", f"{code}it.main()", "resume", "日", "--no-progress", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "\\u65e5" in process.stdout


def test_a_process_without_standard_streams_works(tmp_path: Path) -> None:
    code = "import sys; sys.stdout = sys.stderr = None; from hybridppo.__main__ import main; main()"
    process = run_process("-c", code, "agents", cwd=tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert run_process("-c", code, "resume", "no_such_run", cwd=tmp_path).returncode == 1


SCRIPT = ROOT / "scripts" / "train_cartpole.py"


def test_the_cartpole_script_trains_the_agent_that_is_asked_for(tmp_path: Path) -> None:
    flags = ("--run-dir", tmp_path / "run", "--no-progress", "--placement", "cpu")
    process = run_process(SCRIPT, "--agent", "td3", *flags, cwd=tmp_path)
    assert process.returncode == 1, process.stderr
    assert_is_one_message(process.stderr, "Discrete(2)", "Box")
    assert not (tmp_path / "run").exists()
    process = run_process(
        SCRIPT, "Pendulum-v1", "--agent=td3", "--total-steps", 20, "--policy-delay", 3, *flags, cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    config = config_of(tmp_path / "run")
    assert (config["agent"], config["config"]["policy_delay"], config["evaluation_episodes"]) == ("td3", 3, 20)


@pytest.mark.extras
def test_the_cartpole_script_takes_tuned_settings(tmp_path: Path) -> None:
    flags = ("--tuned", "--total-steps", 256, "--gamma", 0.5, "--run-dir", tmp_path / "run", "--no-progress")
    process = run_process(SCRIPT, *flags, "--placement", "cpu", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    config = config_of(tmp_path / "run")
    assert PPOConfig(**config["config"]) == dataclasses.replace(hybridppo.tuned("CartPole-v1"), gamma=0.5)
    assert (config["total_steps"], config["evaluation_episodes"]) == (256, 20)


def test_the_cartpole_script(tmp_path: Path) -> None:
    flags = ("--total-steps", 2000, "--evaluation-episodes", 1, "--run-dir", tmp_path / "run", "--no-progress")
    process = run_process(SCRIPT, *flags, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert f"run directory: {tmp_path / 'run'}" in process.stdout
    assert json.loads((tmp_path / "run" / "result.json").read_text())["env_steps"] >= 2000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no folder that a process works in")
def test_a_deleted_working_directory_is_no_error(tmp_path: Path) -> None:
    code = f"import os, sys; os.rmdir({str(tmp_path)!r}); from hybridppo.commands.main import main; main(['--version'])"
    done = run_python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_without_a_whole_episode_is_resumed_when_nothing_is_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--total-steps", 32, "--run-dir", tmp_path / "run", "--placement", "cpu", *SMALL, *QUIET)
    assert run("train", "Pendulum-v1", *options) == 0
    assert run("resume", tmp_path / "run", *QUIET) == 0
    assert capsys.readouterr().out.count("training: no whole episode, 32 steps") == 2
