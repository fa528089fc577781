"""A newcomer's first hour: own environments by name, agents in files, runs that are resumed."""

import importlib
import json
import logging
import math
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from processes import run_python
from run_files import lines_of
from selection import only_by_default
from toy_environments import IdentityDiscrete

import hybridppo
from hybridppo import CheckpointError, ConfigurationError, EnvError, RunDirectoryError
from hybridppo.commands.main import main
from hybridppo.running import Preparation
from hybridppo.system.messages import markdown_table

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
BATCH = CONFIG.batch_size
ROOT = Path(__file__).parents[2]


def train(env: Any = "CartPole-v1", iterations: int = 2, **options: Any) -> hybridppo.TrainResult:
    options = {"seed": 3, "placement": "cpu", "config": CONFIG, "progress": False, "vectorization": "sync"} | options
    return hybridppo.train(env, total_steps=iterations * BATCH, **options)


def parameters(agent: Any) -> torch.Tensor:
    return agent.parameters.values.detach().clone()


MAZE = """
import gymnasium as gym
import numpy as np


class Maze(gym.Env):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size=4, reward=1.0):
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.reward, self.steps = reward, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(self.observation_space.shape, np.float32), self.reward, self.steps == 5, False, {}


gym.register("Maze-v0", entry_point="mazes_of_ones_own:Maze")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The present folder, with a module that registers an environment."""
    (tmp_path / "mazes_of_ones_own.py").write_text(MAZE)
    return tmp_path


def hybridppo_in(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """The command as installed: by itself, it does not look for modules in the present folder."""
    code = "import sys; sys.path[0:1] = []; from hybridppo.__main__ import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_python("-c", code, *arguments, cwd=folder, env=environment)


SMALL = ["--num-envs", 2, "--num-steps", 16, "--num-minibatches", 2, "--hidden-sizes", 8, "--no-progress"]


OVERLAP = ["--placement", "overlap", "--learning-device", "cpu"]
NAMES = {"in the id": ["mazes_of_ones_own:Maze-v0"], "imported": ["Maze-v0", "--import", "mazes_of_ones_own"]}


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("in the id", ["--placement", "cpu"]),
        ("imported", OVERLAP),
        pytest.param("in the id", OVERLAP, marks=pytest.mark.slow),
        pytest.param("imported", ["--placement", "cpu", "--num-workers", 2], marks=pytest.mark.slow),
    ],
)
def test_an_environment_of_ones_own_by_its_module(name: str, placement: list[str], folder: Path) -> None:
    how = NAMES[name]
    kwargs = ("--env-kwargs", '{"size": 6, "reward": 2.5}')
    options = ("--total-steps", 64, *placement, "--run-dir", "run", *SMALL)
    more = ("--evaluate-every", 32, "--episodes-per-evaluation", 2, "--evaluation-episodes", 2)
    trained = hybridppo_in(folder, "train", *how, *kwargs, *options, *more)
    assert trained.returncode == 0, trained.stderr
    assert "evaluation: return 12.5 +- 0 over 2 episodes" in trained.stdout
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["env_id"] == how[0]
    assert config["env_kwargs"] == {"size": 6, "reward": 2.5}
    assert config["observation_space"]["shape"] == [6]
    evaluated = lines_of(folder / "run", "evaluations.jsonl")
    assert [line["returns"] for line in evaluated] == [[12.5, 12.5]] * 2
    assert "Overriding environment" not in trained.stderr

    resumed = hybridppo_in(folder, "resume", "run", "--total-steps", 96, "--no-progress")
    assert resumed.returncode == 0, resumed.stderr
    again = hybridppo_in(folder, "evaluate", "run", "--episodes", 3, "--no-progress")
    assert again.returncode == 0, again.stderr
    assert "return 12.5 +- 0 over 3 episodes" in again.stdout


def test_its_name_is_enough_for_check_and_in_processes(folder: Path) -> None:
    for name in (["mazes_of_ones_own:Maze-v0"], ["Maze-v0", "--import", "mazes_of_ones_own"]):
        checked = hybridppo_in(folder, "check", *name, "--env-kwargs", '{"size": 6}', "--steps", 50)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    options = ("--total-steps", 64, "--placement", "cpu", "--num-workers", 2, "--run-dir", "run", *SMALL)
    trained = hybridppo_in(folder, "train", "mazes_of_ones_own:Maze-v0", *options)
    assert trained.returncode == 0, trained.stderr


def test_a_module_that_cannot_be_imported_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match=r"the module 'no_such_module', which is to register environments, cannot be"):
        train("no_such_module:Maze-v0")
    with pytest.raises(EnvError, match="the module 'no_such_module'"):
        train("CartPole-v1", imports="math, no_such_module")
    (folder / "a_script.py").write_text("import sys\nsys.exit()\n")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(EnvError, match=r"the module 'a_script'.* cannot be imported: SystemExit"):
        train("CartPole-v1", imports="a_script")
    wrong = hybridppo_in(folder, "train", "mazes_of_ones_own:Maze-v1", "--no-progress")
    assert wrong.returncode == 1
    assert "Maze" in wrong.stderr


def test_arguments_go_to_functions_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    maze = importlib.import_module("mazes_of_ones_own").Maze
    result = train(maze, env_kwargs={"size": 3, "reward": 0.5}, run_dir=folder / "run", evaluation_episodes=1)
    assert result.evaluation is not None
    assert result.evaluation.returns == (2.5,)
    assert result.agent.observation_space.shape == (3,)
    resumed = hybridppo.resume(folder / "run", env=maze, total_steps=3 * BATCH, progress=False)
    assert resumed.agent.observation_space.shape == (3,)
    found = hybridppo.evaluate(folder / "run", env=maze, episodes=2, progress=False)
    assert found.returns == (2.5, 2.5)


class Kept(gym.Env[Any, Any]):
    """Keeps its arguments."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (1,)), gym.spaces.Discrete(2)
    made_with: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **kwargs: Any) -> None:
        self.made_with.append(kwargs)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(1, np.float32), 1.0, self._steps == 4, False, {}


UNHELD: dict[str, dict[str, Any]] = {
    "keys that are numbers": {"rewards": {0: 1.0}},
    "a tuple": {"shape": (3, 4)},
    "a number that is none": {"limit": math.nan},
    "a function": {"reward": print},
    "an array": {"start": np.zeros(3)},
    "a member of an enumeration": {"level": signal.SIGINT},
}


@pytest.fixture
def kept_id() -> Iterator[str]:
    gym.register("Kept-v0", Kept)
    yield "Kept-v0"
    del gym.registry["Kept-v0"]


@pytest.mark.parametrize(
    ("what", "registered"),
    only_by_default([*(f"{what}, True" for what in UNHELD), "a function, False"], product(UNHELD, (True, False))),
)
def test_arguments_that_no_file_can_hold(
    what: str, registered: bool, kept_id: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kwargs, run = {"size": 6, **UNHELD[what]}, tmp_path / "run"
    source = kept_id if registered else Kept
    Kept.made_with.clear()
    train(source, env_kwargs=kwargs, run_dir=run, evaluation_episodes=1)
    for made_with in Kept.made_with:
        assert repr(made_with) == repr(kwargs)
    config = json.loads((run / "config.json").read_text())
    assert config["env_kwargs"] is None
    assert config["own"]["env_kwargs"] == repr(kwargs)

    anew = [None, kept_id] if registered else [None]
    for use in (partial(hybridppo.resume, progress=False), partial(hybridppo.evaluate, episodes=1, progress=False)):
        for env in anew:
            with pytest.raises(
                hybridppo.RunDirectoryError, match=r"env_kwargs that config\.json cannot hold, \{'size'"
            ):
                use(run, env=env)
    Kept.made_with.clear()
    steps = [3 * BATCH, 4 * BATCH]
    for total_steps in steps:  # what a resumed run writes is as honest
        hybridppo.resume(run, env=partial(Kept, **kwargs), total_steps=total_steps, progress=False)
    hybridppo.evaluate(run, env=partial(Kept, **kwargs), episodes=1, progress=False)
    assert all(repr(made_with) == repr(kwargs) for made_with in Kept.made_with)
    assert "must make them so by itself" in caplog.text
    assert json.loads((run / "config.json").read_text())["own"]["env_kwargs"] == repr(kwargs)


def test_arguments_that_a_file_can_hold_are_handed_over_as_they_are(kept_id: str, tmp_path: Path) -> None:
    kwargs = {"rewards": {"0": [1.0, 2, True, None, "text"]}}
    Kept.made_with.clear()
    train(kept_id, env_kwargs=kwargs, run_dir=tmp_path / "run")
    hybridppo.resume(tmp_path / "run", total_steps=3 * BATCH, progress=False)
    assert all(repr(made_with) == repr(kwargs) for made_with in Kept.made_with)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["own"] == {}


def test_arguments_that_cannot_be_sent_are_named() -> None:
    with pytest.raises(EnvError, match=r"options\.env_kwargs\['lock'\] is a lock, which cannot be pickled"):
        train(lambda lock: IdentityDiscrete(), env_kwargs={"lock": threading.Lock()}, num_workers=2)


@pytest.mark.parametrize("text", ["size=6", '{"size": 6, "size": 7}', '{"inner": {"size": 6, "size": 7}}'])
def test_arguments_that_are_no_json_are_refused_on_the_command_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["train", "CartPole-v1", "--env-kwargs", text])
    assert exited.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert ("no JSON: 'size' comes twice" if "7" in text else "no JSON") in error


# An agent in a file


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_an_agent_is_saved_and_loaded_without_a_run_directory(env: str, tmp_path: Path) -> None:
    agent = train(env).agent
    path = agent.save(tmp_path / "folder" / "agent.safetensors")
    assert [file.name for file in path.parent.iterdir()] == ["agent.safetensors"]
    loaded = hybridppo.load(path)
    assert torch.equal(parameters(loaded), parameters(agent))
    assert loaded.config == agent.config
    assert (loaded.observation_space, loaded.action_space) == (agent.observation_space, agent.action_space)
    observation = agent.observation_space.sample()
    assert np.array_equal(loaded.act(observation), agent.act(observation))
    agent.save(path)  # in place of what was there


def test_a_file_holds_no_optimizer_and_nothing_pickled(tmp_path: Path) -> None:
    import safetensors

    path = train().agent.save(tmp_path / "agent")
    with safetensors.safe_open(path, framework="pt") as file:
        assert {name.partition(".")[0] for name in file.keys()} == {"actor", "critic"}  # noqa: SIM118 - no mapping
        assert json.loads(file.metadata()["hybridppo"])["config"]["hidden_sizes"] == [8]


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        hybridppo.load(path)
    path.write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match=r"agent is no file that agent\.save has written, or is damaged"):
        hybridppo.load(path)
    train().agent.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="or is damaged"):
        hybridppo.load(path)
    path.write_bytes(data.replace(b'\\"format_version\\": 1', b'\\"format_version\\": 9'))
    with pytest.raises(CheckpointError, match="has format version 9, but this version of hybridppo reads version 1"):
        hybridppo.load(path)


def test_an_agent_of_networks_of_ones_own_needs_them_again(tmp_path: Path) -> None:
    def networks(observation_space: Any, action_space: Any, config: Any, generator: Any) -> Any:
        return torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

    agent = train(networks=networks).agent
    path = agent.save(tmp_path / "agent")
    with pytest.raises(RunDirectoryError, match=r"has its own networks, .*networks=\.\.\."):
        hybridppo.load(path)
    assert torch.equal(parameters(hybridppo.load(path, networks=networks)), parameters(agent))


def test_networks_that_another_agent_has_are_refused() -> None:
    body, make = torch.nn.Linear(4, 8), torch.nn.Linear

    def networks(*_: Any) -> Any:
        return torch.nn.Sequential(body, make(8, 2)), torch.nn.Sequential(body, make(8, 1))

    first = train(networks=networks).agent
    before = parameters(first).clone()
    for options in ({}, {"seed": 9}):
        with pytest.raises(ConfigurationError, match=r"networks returned modules that it returned before.*deepcopy"):
            train(networks=networks, **options)
    assert torch.equal(parameters(first), before)
    body.requires_grad_(False)
    train(networks=networks)


@pytest.mark.parametrize("source", ["file", "run directory"])
def test_a_training_may_start_from_the_policy_of_another(source: str, tmp_path: Path) -> None:
    first = train(run_dir=tmp_path / "first").agent
    path = first.save(tmp_path / "agent") if source == "file" else tmp_path / "first"
    begun: list[torch.Tensor] = []

    class Noting(hybridppo.Callback):
        def on_start(self, run: Any) -> None:
            begun.append(parameters(run.agent))
            assert run.agent.version == 0

    config = ppo_config(**{**CONFIG.to_json(), "hidden_sizes": (8,), "learning_rate": 1e-4})
    second = train(start_from=path, seed=9, config=config, run_dir=tmp_path / "second", callbacks=[Noting()])
    assert torch.equal(begun[0], parameters(first))
    assert second.metrics["iteration"] == 2
    assert not torch.equal(parameters(second.agent), parameters(first))
    assert json.loads((tmp_path / "second" / "config.json").read_text())["start_from"] == str(path)
    again = train(start_from=str(path), seed=9, config=config)
    assert torch.equal(parameters(again.agent), parameters(second.agent))


def test_a_run_that_was_killed_at_once_starts_from_it_again(tmp_path: Path) -> None:
    path = train().agent.save(tmp_path / "agent")
    expected = train(start_from=path, run_dir=tmp_path / "run")
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    for name in ("metrics.jsonl", "result.json"):
        (tmp_path / "run" / name).unlink()
    result = hybridppo.resume(tmp_path / "run", progress=False)
    assert torch.equal(parameters(result.agent), parameters(expected.agent))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_sizes": (4,)}, r"hidden_sizes is \(8,\) there and \(4,\) here: give it the same value"),
        ({"normalize_observations": True}, "normalize_observations is False there and True here"),
        ({"recurrent": "gru"}, "recurrent is None there and 'gru' here"),
    ],
    ids=str,
)
def test_networks_of_other_sizes_are_refused_with_the_difference(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = train().agent.save(tmp_path / "agent")
    with pytest.raises(CheckpointError, match=f"cannot start from .*: {message}"):
        train(start_from=path, config=replace(CONFIG, **changes), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_agent_that_is_not_there_is_an_error_before_any_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Preparation, "choose", lambda *arguments: pytest.fail("a placement was chosen"))
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        train(start_from=tmp_path / "nothing")


def test_networks_of_another_algorithm_are_refused_by_its_name(tmp_path: Path) -> None:
    spaces = (getattr(gym.make("Pendulum-v1"), name) for name in ("observation_space", "action_space"))
    path = hybridppo.TD3(*spaces, hybridppo.TD3Config(hidden_sizes=(8,))).save(tmp_path / "agent")
    for config, name in ((CONFIG, "PPOConfig"), (hybridppo.DDPGConfig(hidden_sizes=(8,)), "DDPGConfig")):
        with pytest.raises(CheckpointError, match=f"its config is a TD3Config, and this one's is a {name}"):
            train("Pendulum-v1", start_from=path, config=config)


@pytest.mark.parametrize("source", ["file", "run directory"])
def test_networks_that_compute_something_else_are_refused(source: str, tmp_path: Path) -> None:
    first = train(run_dir=tmp_path / "first").agent
    path = first.save(tmp_path / "agent") if source == "file" else tmp_path / "first"
    config = ppo_config(**{**CONFIG.to_json(), "activation": "relu"})
    with pytest.raises(CheckpointError, match=r"cannot start from .*: activation is 'tanh' there and 'relu' here"):
        train(start_from=path, config=config)


# Runs that go on


def test_resuming_a_finished_run_says_that_it_is_finished(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(run_dir=tmp_path / "run")
    written = (tmp_path / "run" / "config.json").stat().st_mtime_ns
    with caplog.at_level(logging.INFO):
        hybridppo.resume(tmp_path / "run", progress=False)
    assert f"{tmp_path / 'run'} is finished, after 64 steps" in caplog.text
    assert (tmp_path / "run" / "config.json").stat().st_mtime_ns == written, "nothing was changed"
    caplog.clear()
    with caplog.at_level(logging.INFO):
        hybridppo.resume(tmp_path / "run", total_steps=3 * BATCH, progress=False)
    assert "is finished" not in caplog.text
    hybridppo.resume(tmp_path / "run", total_steps=BATCH, progress=False)  # further steps, as some would write it
    assert f"total_steps={BATCH} counts from the beginning of the run, which has made {3 * BATCH} steps" in caplog.text


@pytest.mark.parametrize("anneals", [True, False])
def test_another_goal_says_what_it_does_to_what_is_annealed(
    anneals: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, hidden_sizes=(8,), anneal_learning_rate=anneals)
    train(run_dir=tmp_path / "run", config=config)
    hybridppo.resume(tmp_path / "run", total_steps=4 * BATCH, progress=False)
    told = [message for message in caplog.messages if "the new total_steps, 128 instead of 64" in message]
    assert len(told) == anneals
    if anneals:
        assert "it jumps from 0 % to 50 % of its start" in told[0]


# What the command line shows


def test_the_columns_of_a_table_have_equal_widths() -> None:
    assert markdown_table(("a", "ms"), [("**long name**", "1.00"), ("b", "12.00")]).splitlines() == [
        "| a             |    ms |",
        "| ------------- | ----: |",
        "| **long name** |  1.00 |",
        "| b             | 12.00 |",
    ]


def test_a_target_reached_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--evaluate-every", "32", "--episodes-per-evaluation", "1", "--target-return", "1", *map(str, SMALL)]
    with pytest.raises(SystemExit) as exited:
        main(["train", "CartPole-v1", "--total-steps", "3200", "--run-dir", str(tmp_path / "run"), *flags])
    assert exited.value.code == 0
    assert "stopped before its goal: the mean return, " in capsys.readouterr().out
