"""Files of options: from Python, from the command line, and what is wrong with them by line."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hybridppo
from hybridppo import ConfigurationError, PPOConfig, TD3Config
from hybridppo.commands.main import main, parse_command
from hybridppo.config_files import read_config

OPTIONS = {
    "env": "CartPole-v1",
    "total_steps": 64.0,
    "seed": 3,
    "placement": "cpu",
    "vectorization": "sync",
    "progress": False,
    "num_envs": 2,
    "num_steps": 1.6e1,
    "num_epochs": 1,
    "minibatch_size": 16,
    "hidden_sizes": [8],
    "learning_rate": 1e-3,
    "settings": {"beta": 0.5},
}
CONFIG = PPOConfig(
    num_envs=2, num_steps=16, num_epochs=1, minibatch_size=16, hidden_sizes=(8,), learning_rate=1e-3,
    settings={"beta": 0.5},
)  # fmt: skip


def as_toml(options: dict[str, Any]) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items() if not isinstance(value, dict)]
    tables = {name: value for name, value in options.items() if isinstance(value, dict)}
    return "\n".join([*lines, *(f"[{json.dumps(name)}]\n{as_toml(value)}" for name, value in tables.items())])


def as_yaml(options: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in options.items())


FORMATS = {".json": json.dumps, ".toml": as_toml, ".yaml": as_yaml}


def written(folder: Path, options: dict[str, Any], suffix: str = ".json") -> Path:
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    if suffix == ".toml" and sys.version_info < (3, 11):
        pytest.importorskip("tomli")
    path = folder / f"my{suffix}"
    path.write_text(FORMATS[suffix](options))
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_is_what_was_given_in_python(suffix: str, tmp_path: Path) -> None:
    path = written(tmp_path, OPTIONS, suffix)
    found = hybridppo.train(config=path)
    assert found.agent.config == CONFIG
    expected = hybridppo.train(
        "CartPole-v1", total_steps=64, seed=3, placement="cpu", vectorization="sync", progress=False, config=CONFIG
    )
    assert found.agent.parameters.values.equal(expected.agent.parameters.values)
    other = hybridppo.train("CartPole-v1", config=str(path), seed=4, total_steps=32)
    assert (other.seed, other.metrics["env_steps"]) == (4, 32)


def test_flags_win_over_a_file_and_one_way_to_divide_an_epoch_over_another(tmp_path: Path) -> None:
    path = written(tmp_path, OPTIONS)
    command: Any = parse_command(["train", "--config", str(path), "--seed", "5", "--num-minibatches", "4"])
    assert (command.env_id, command.options.seed, command.options.total_steps) == ("CartPole-v1", 5, 64)
    assert (command.config.num_minibatches, command.config.minibatch_size) == (4, None)
    assert (command.config.hidden_sizes, command.placement.placement) == ((8,), "cpu")
    assert command.environment.vectorization == "sync"
    assert command.progress is False


def test_several_environments_are_in_one_file(tmp_path: Path) -> None:
    common = {"total_steps": 32, "gamma": 0.9, "progress": False}
    each = {"CartPole-v1": {"gamma": 0.5, "num_envs": 2}, "Pendulum-v1": {"agent": "td3", "tau": 0.1}}
    path = written(tmp_path, {**common, **each})
    cartpole: Any = parse_command(["train", "CartPole-v1", "--config", str(path)])
    assert (cartpole.config.gamma, cartpole.config.num_envs, cartpole.options.total_steps) == (0.5, 2, 32)
    pendulum: Any = parse_command(["train", "--config", str(path), "Pendulum-v1"])
    assert pendulum.config == TD3Config(gamma=0.9, tau=0.1)
    other: Any = parse_command(["train", "Acrobot-v1", f"--config={path}"])
    assert other.config == PPOConfig(gamma=0.9)
    alone = read_config(written(tmp_path, {"CartPole-v1": {"gamma": 0.5}}))
    assert alone.arguments() == {"config": PPOConfig(gamma=0.5), "env": "CartPole-v1"}
    with pytest.raises(ConfigurationError, match=r"has options for CartPole-v1, and none for 'Acrobot-v1': add some"):
        read_config(tmp_path / "my.json", "Acrobot-v1")


def test_policies_of_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, {"num_envs": 2, "policies": {"tagger": {"gamma": 0.5}, "runner": {}}})
    assert read_config(path).arguments()["config"] == {
        "tagger": PPOConfig(num_envs=2, gamma=0.5),
        "runner": PPOConfig(num_envs=2),
    }


WRONG = {
    "gama: 0.9": "line 2: there is no option 'gama': did you mean gamma=0.9?",
    "vf_coef: 0.5": "line 2: there is no option 'vf_coef': did you mean value_coef=1.0? (the value loss is half",
    "gamma: 2": "line 2: gamma must lie between 0 and 1, got 2.0",
    "num_envs: 2.5": "line 2: num_envs must be a whole number",
    "total_steps: 0": "line 2: total_steps must be a whole number of at least 1, got 0",
    "agent: dpg": "line 2: agent must be one of ppo, ddpg, td3, or a class as module:Class, got 'dpg'",
    "env_kwarg: {size: 8}": "line 2: there is no option 'size' for the environment 'env_kwarg'",
    "Other-v0: {gamma: 3}": "line 2: gamma must lie",
    "seed: 2": "cannot be read: 'seed' comes twice",
    "a: [": "cannot be read: while parsing",
    "- a": "cannot be read: ",
}
"""Second lines of a file, and what is said of them."""


@pytest.mark.parametrize("line", WRONG)
def test_an_error_names_the_file_the_line_and_the_option(line: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "my.yaml"
    path.write_text(f"seed: 1\n{line}\n")
    with pytest.raises(ConfigurationError) as error:
        read_config(path, "CartPole-v1")
    said = str(error.value)
    assert said.startswith(str(path))
    assert WRONG[line] in said


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.json").write_text('{"gamma": 0.5, "gamma": 0.6}')
    with pytest.raises(ConfigurationError, match="cannot be read: 'gamma' comes twice"):
        read_config(tmp_path / "my.json")
    (tmp_path / "my.json").write_text('{"env": ["a"]}')
    with pytest.raises(ConfigurationError, match=r"env must be an id, or a function as module:function, got \['a'\]"):
        read_config(tmp_path / "my.json")
    (tmp_path / "my.json").write_text("[1]")
    with pytest.raises(ConfigurationError, match=r"must hold options by name, as num_envs: 8, got \[1\]"):
        read_config(tmp_path / "my.json")
    for path in (tmp_path, tmp_path / "my.ini"):
        with pytest.raises(ConfigurationError, match=r"must name a file of options, .yaml, .yml, .toml, .json, got"):
            hybridppo.train("CartPole-v1", config=path, total_steps=1)


def test_yaml_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.config_files.is_installed", lambda name: False)
    (tmp_path / "my.yaml").write_text("seed: 1")
    with pytest.raises(ConfigurationError, match=r"YAML needs PyYAML: pip install .*yaml.*, or write it as .toml"):
        read_config(tmp_path / "my.yaml")


@pytest.mark.parametrize("flags", [["CartPole-v1", "--num-envs=8"], ["Pendulum-v1", "--agent=td3", "--tau=0.5"]])
def test_the_file_that_is_printed_has_every_option(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(SystemExit) as exited:
        main(["config", *flags, "--checkpoint-seconds=inf"])
    assert exited.value.code == 0
    text = capsys.readouterr().out
    path = tmp_path / "my.yaml"
    path.write_text(text)
    assert "# Discount per step.\ngamma: 0.99\n" in text
    assert re.search(r"^# -------- network --------$", text, re.MULTILINE)
    expected: Any = parse_command(["train", *flags, "--checkpoint-seconds=inf"])
    found: Any = parse_command(["train", "--config", str(path)])
    assert found.settings_of == path
    assert (found.env_id, found.config, found.agent) == (expected.env_id, expected.config, expected.agent)
    assert (found.options, found.environment) == (expected.options, expected.environment)
    assert (found.placement, found.run_dir) == (expected.placement, None)
