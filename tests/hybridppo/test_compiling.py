"""`compiled=True` sets the options that compile environments and updates."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hybridppo
from hybridppo import ConfigurationError, PPOConfig, TD3Config
from hybridppo.agents.policies import PoliciesConfig
from hybridppo.commands.main import parse_command
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.training import compiled_options

AUTO = EnvironmentOptions()


@pytest.fixture(autouse=True)
def numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled when options are chosen."""
    monkeypatch.setattr("hybridppo.compiled.modules.has_numba", lambda: True)


def test_environments_and_updates_are_compiled() -> None:
    config, options = compiled_options("CartPole-v1", PPOConfig(), AUTO)
    assert config == replace(PPOConfig(), compiled_updates=True)
    assert options == replace(AUTO, vectorization="compiled")


def test_every_policy_is_compiled_or_none() -> None:
    both: Any = compiled_options("CartPole-v1", PoliciesConfig({"a": PPOConfig(), "b": PPOConfig()}), AUTO)[0]
    assert [config.compiled_updates for config in both.policies.values()] == [True, True]
    slow = PoliciesConfig({"a": PPOConfig(), "b": PPOConfig(fast_updates=False)})
    one: Any = compiled_options("CartPole-v1", slow, AUTO)[0]
    assert [config.compiled_updates for config in one.policies.values()] == [False, False]


@pytest.mark.parametrize(
    ("env", "options", "reason"),
    [
        ("FrozenLake-v1", AUTO, "'FrozenLake-v1' has no compiled form"),
        ("CartPole-v1", EnvironmentOptions(vectorization="sync"), "vectorization='sync' was asked for"),
        ("CartPole-v1", EnvironmentOptions(env_kwargs={"sutton_barto_reward": True}), "env_kwargs were given"),
        ("CartPole-v1", EnvironmentOptions(on_env_error="restart"), "on_env_error='restart' does not work"),
        ("CartPole-v1", EnvironmentOptions(frame_stack=2), "frame_stack=2 does not work"),
    ],
)
def test_updates_alone(env: str, options: EnvironmentOptions, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config, found = compiled_options(env, PPOConfig(), options)
    assert config.compiled_updates
    assert found == options
    assert "environments are not compiled: " in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("config", "has_own_parts"),
    [(PPOConfig(fast_updates=False), False), (PPOConfig(recurrent="lstm"), False), (PPOConfig(), True)],
)
def test_environments_alone(config: Any, has_own_parts: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found, options = compiled_options("CartPole-v1", config, AUTO, has_own_parts=has_own_parts)
    assert found == config
    assert options.vectorization == "compiled"
    assert "updates are not compiled: PPO's are, without a loss" in caplog.text


def test_other_agents_have_compiled_environments_alone() -> None:
    config, options = compiled_options("Pendulum-v1", TD3Config(), AUTO)
    assert (config, options.vectorization) == (TD3Config(), "compiled")


def test_what_cannot_be_compiled_at_all_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"nothing can be compiled, .*FrozenLake-v1.*has no compiled form"):
        compiled_options("FrozenLake-v1", PPOConfig(fast_updates=False), AUTO)


def test_without_numba_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hybridppo.compiled.modules.has_numba", lambda: False)
    with pytest.raises(ConfigurationError, match=r"compiled=True needs Numba.*pip install"):
        hybridppo.train("CartPole-v1", total_steps=32, compiled=True)
    for config in (PPOConfig(compiled_updates=True), {"one": PPOConfig(compiled_updates=True)}):
        with pytest.raises(ConfigurationError, match=r"compiled_updates=True needs Numba.*pip install"):
            hybridppo.train("CartPole-v1", total_steps=32, config=config, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()  # which would block the command without the option


def test_the_command_line_has_it() -> None:
    assert parse_command(["train", "CartPole-v1", "--compiled"]).compiled
    assert not parse_command(["train", "CartPole-v1"]).compiled


@pytest.mark.extras
def test_it_gives_what_both_options_give(tmp_path: Path) -> None:
    config = PPOConfig(num_envs=4, num_steps=32, hidden_sizes=(8,))
    arguments: dict[str, Any] = {"total_steps": 256, "seed": 1, "placement": "cpu", "progress": False}
    one = hybridppo.train("CartPole-v1", config=config, compiled=True, run_dir=tmp_path / "run", **arguments)
    both = hybridppo.train(
        "CartPole-v1", config=replace(config, compiled_updates=True), vectorization="compiled", **arguments
    )
    assert torch.equal(one.agent.parameters.values, both.agent.parameters.values)
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["vectorization"] == "compiled"
    assert settings["config"]["compiled_updates"] is True
