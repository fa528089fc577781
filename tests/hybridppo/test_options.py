"""An option is declared once: what follows from its field is the same everywhere."""

import inspect
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, RunDirectoryError
from hybridppo.commands.main import main
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.options import GROUPS, RunOptions, changeable_names, fields_of, helps
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Settings

OPTIONS = fields_of(*GROUPS)
CONFIG = ppo_config(num_envs=2, num_steps=8, hidden_sizes=(4,))
SOME: dict[str, Any] = {
    "total_steps": 32,
    "total_episodes": 1000,
    "seed": 7,
    "num_workers": 0,
    "evaluation_episodes": 1,
    "evaluate_every": 1_000_000,
    "evaluate_episodes": 2,
    "evaluate_beside": True,
    "target_return": 1e6,
    "track": "",
    "start_from": None,
    "checkpoint_seconds": 30.0,
    "keep_checkpoints": 2,
    "distribution": "multi:1:2",
    "address": "auto",
    "vectorization": "sync",
    "env_threads": 2,
    "autoreset_mode": "next_step",
    "on_env_error": "restart",
    "worker_timeout": 20.0,
    "env_kwargs": {"sutton_barto_reward": True},
    "imports": "gymnasium, math",
    "action_masks": False,
    "frame_stack": 1,
    "clip_rewards": True,
    "episodic_life": False,
}
"""A value for every option. A further one is a line here."""


def train(**options: Any) -> hybridppo.TrainResult:
    return hybridppo.train("CartPole-v1", **{"placement": "cpu", "config": CONFIG, "progress": False, **options})


def test_there_is_a_value_for_every_option() -> None:
    assert SOME.keys() == OPTIONS.keys()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options") / "run"
    train(run_dir=path, **SOME)
    return path


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_an_argument_a_flag_and_a_line_of_the_configuration(
    name: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert name in inspect.signature(hybridppo.train).parameters
    assert f"{name}: " in (hybridppo.train.__doc__ or "")
    assert json.loads((run_dir / "config.json").read_text())[name] == SOME[name]
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert re.search(rf"--{name.replace('_', '-')}[ ,]", capsys.readouterr().out)


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_has_a_sentence_of_help(group: type) -> None:
    assert helps(group).keys() == fields_of(group).keys()


def test_what_is_read_is_what_was_written(run_dir: Path) -> None:
    settings = Settings.read(RunDirectory.open(run_dir))
    assert {**asdict(settings.run), **asdict(settings.environment)} == SOME
    assert settings.config == CONFIG
    assert Settings.read(RunDirectory(run_dir, settings.to_json())) == settings


def test_resuming_takes_what_may_change_and_nothing_else(run_dir: Path) -> None:
    parameters = inspect.signature(hybridppo.resume).parameters
    assert {name for name in OPTIONS if name in parameters} == set(changeable_names())
    assert {"total_steps", "num_workers", "worker_timeout"} <= set(changeable_names())
    assert not {"seed", "vectorization", "action_masks"} & set(changeable_names())
    with pytest.raises(TypeError, match="unexpected keyword argument 'vectorization'"):
        hybridppo.resume(run_dir, vectorization="async")
    result = hybridppo.resume(run_dir, total_steps=64, keep_checkpoints=1, progress=False)
    assert result.metrics["env_steps"] >= 64
    assert len([path for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit()]) == 1
    found = json.loads((run_dir / "config.json").read_text())
    assert (found["total_steps"], found["keep_checkpoints"], found["num_workers"]) == (64, 1, 0)


def test_what_is_no_option_is_refused_as_python_does_with_what_was_meant() -> None:
    with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument 'num_worker': .*num_workers\?"):
        train(total_steps=32, num_worker=2)
    with pytest.raises(TypeError, match=r"train\(\) missing a required keyword argument: 'total_steps'"):
        train()


def test_numpys_whole_numbers_are_taken(tmp_path: Path) -> None:
    steps, seed = np.int64(16), np.uint8(3)
    result = train(total_steps=steps, seed=seed, run_dir=tmp_path / "run")
    assert result.seed == 3
    assert json.loads((tmp_path / "run" / "config.json").read_text())["total_steps"] == 16


WRONG = [
    (RunOptions, {"total_steps": 0}, "total_steps must be a whole number of at least 1, got 0"),
    (RunOptions, {"total_steps": 2.5}, "total_steps must be a whole number"),
    (RunOptions, {"total_steps": True}, "total_steps must be a whole number"),
    (RunOptions, {"total_steps": 1, "total_episodes": 0}, "total_episodes must be"),
    (RunOptions, {"total_steps": 1, "seed": -1}, "seed must be a whole number of at least 0"),
    (RunOptions, {"total_steps": 1, "seed": 2**128}, "seed must be below"),
    (RunOptions, {"total_steps": 1, "num_workers": -1}, "num_workers must be"),
    (RunOptions, {"total_steps": 1, "keep_checkpoints": 0}, "keep_checkpoints must be"),
    (RunOptions, {"total_steps": 1, "evaluation_episodes": -1}, "evaluation_episodes must be"),
    (RunOptions, {"total_steps": 1, "checkpoint_seconds": float("nan")}, "checkpoint_seconds must be"),
    (RunOptions, {"total_steps": 1, "evaluate_every": -1}, "evaluate_every must be"),
    (RunOptions, {"total_steps": 1, "evaluate_episodes": 0}, "evaluate_episodes must be"),
    (RunOptions, {"total_steps": 1, "evaluate_beside": "yes"}, "evaluate_beside must be True, .* got 'yes'"),
    (RunOptions, {"total_steps": 1, "target_return": "high"}, "target_return must be a finite number, got 'high'"),
    (RunOptions, {"total_steps": 1, "target_return": float("inf")}, "target_return must be a finite number"),
    (RunOptions, {"total_steps": 1, "track": "tensorbord"}, "track must name .* did you mean tensorboard"),
    (RunOptions, {"total_steps": 1, "track": 3}, "track must name trackers, with commas between, got 3"),
    (RunOptions, {"total_steps": 1, "start_from": 3}, "start_from must name a run directory or an agent's file"),
    (EnvironmentOptions, {"env_kwargs": [1]}, "env_kwargs must be a dict of what JSON can hold"),
    (EnvironmentOptions, {"imports": ["my_envs"]}, "imports must name modules, with commas between"),
    (EnvironmentOptions, {"vectorization": "threads"}, "vectorization must be auto, sync, async or compiled"),
    (EnvironmentOptions, {"autoreset_mode": "never"}, "autoreset_mode must be one of next_step"),
    (EnvironmentOptions, {"on_env_error": "ignore"}, "on_env_error must be raise or restart"),
    (EnvironmentOptions, {"worker_timeout": 0.0}, "worker_timeout must be positive"),
    (EnvironmentOptions, {"action_masks": 1}, "action_masks must be True or False"),
    (EnvironmentOptions, {"on_env_error": "restart", "vectorization": "async"}, "on_env_error='restart' needs"),
]


@pytest.mark.parametrize(("group", "values", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_when_made_and_when_read(
    group: type, values: dict[str, Any], message: str, run_dir: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        group(**values)
    written = json.loads((run_dir / "config.json").read_text())
    with pytest.raises(RunDirectoryError, match=f"config.json is damaged: {message}"):
        Settings.read(RunDirectory(run_dir, {**written, **values}))
