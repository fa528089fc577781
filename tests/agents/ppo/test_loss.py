"""The loss stands in one place: a change there changes what is learned and what is reported."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from selection import only_by_default
from stop_after import StopAfter, interrupt_at
from torch import nn

import hybridppo
from hybridppo import PPO, PPOConfig
from hybridppo.agents.ppo import loss as loss_module
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numpy import NumpyBackend, NumpyNetworks
from hybridppo.agents.ppo.loss import Loss, LossInputs, clipped_value_loss, policy_loss, ppo_loss, value_loss
from hybridppo.agents.ppo.ppo import has_gradient_of_the_loss
from hybridppo.errors import ConfigurationError

CONFIG = ppo_config(
    num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16), learning_rate=1e-2
)
GAUSSIAN = Box(-1.0, 1.0, (3,))


@pytest.fixture(autouse=True)
def compares_again() -> Any:
    has_gradient_of_the_loss.cache_clear()
    yield
    has_gradient_of_the_loss.cache_clear()


def train(**arguments: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 64, "seed": 0, "placement": "cpu", "config": CONFIG, "progress": False, **arguments}
    return hybridppo.train(options.pop("env", "CartPole-v1"), on_interrupt="return", **options)


def form_of(agent: PPO) -> type:
    return type(agent.loop().backend)


# By hand and as it is written

FORMS_OF: dict[str, dict[str, Any]] = {
    "numpy": {}, "compiled": {"compiled_updates": True}
}  # fmt: skip
NEEDS = {"compiled": pytest.mark.extras}
FORMS = [pytest.param(name, marks=NEEDS.get(name, ())) for name in FORMS_OF]
CHANGES: dict[str, tuple[Any, str, Any]] = {
    "no policy loss": (loss_module, "policy_loss", lambda **inputs: 0.0 * policy_loss(**inputs)),
    "no clipping of ratios": (
        loss_module,
        "policy_loss",
        lambda *, log_ratio, advantages, clip_range: -(log_ratio.exp() * advantages).mean(),
    ),
    "a wider clip range": (
        loss_module,
        "policy_loss",
        lambda *, clip_range, **inputs: policy_loss(clip_range=1.1 * clip_range, **inputs),
    ),
    "values not clipped": (
        loss_module,
        "clipped_value_loss",
        lambda *, values, returns, old_values, clip_range: value_loss(values=values, returns=returns),
    ),
    "values whole instead of half": (
        loss_module,
        "clipped_value_loss",
        lambda **inputs: 2.0 * clipped_value_loss(**inputs),
    ),
}


@pytest.mark.parametrize("space", [Discrete(3), GAUSSIAN], ids=["discrete", "continuous"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_formula_that_was_changed_alone_takes_effect_and_a_warning_names_both_files(
    change: str, space: gym.Space[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, name, changed = CHANGES[change]
    monkeypatch.setattr(module, name, changed)
    agent = train(env=lambda: Still(space)).agent
    assert len(re.findall(r"loss\.py.*by_numpy\.py.*loss=my_loss", caplog.text)) == 1
    assert type(agent.loop().backend) is Backend
    plain = train(env=lambda: Still(space), config=replace(CONFIG, fast_updates=False)).agent
    torch.testing.assert_close(agent.parameters.values, plain.parameters.values, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_formula_is_found_in_a_training_that_is_resumed(
    change: str, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIG, log_std_init=-4.2, **FORMS_OF[form])
    train(env="Pendulum-v1", config=config, run_dir=tmp_path / "run")
    assert not caplog.text
    module, name, changed = CHANGES[change]
    monkeypatch.setattr(module, name, changed)
    has_gradient_of_the_loss.cache_clear()  # as in another process
    result = hybridppo.resume(tmp_path / "run", total_steps=128, progress=False)
    assert "the two forms of the optimizer step differ" in caplog.text
    assert type(result.agent.loop().backend) is Backend


class Still(gym.Env[Any, Any]):
    """Nothing ever changes, and every reward is the same, so that there is nothing to learn."""

    observation_space = Box(-1.0, 1.0, (2,))

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("changes", [{}, {"clip_range_vf": None}, {"entropy_coef": 0.0}, {"clip_range": 1.0}], ids=str)
@pytest.mark.parametrize("space", [Discrete(3), GAUSSIAN], ids=["discrete", "continuous"])
def test_formulas_that_agree_pass_whatever_is_learned_from(space: gym.Space[Any], changes: dict[str, Any]) -> None:
    result = train(env=lambda: Still(space), config=replace(CONFIG, **changes))
    assert form_of(result.agent) is NumpyBackend


def test_the_comparison_is_made_once() -> None:
    for _ in range(2):
        train()
    assert has_gradient_of_the_loss.cache_info().misses == 1


# A loss of one's own


def without_entropy(inputs: LossInputs, config: PPOConfig, clip_range: Any) -> Loss:
    return ppo_loss(inputs, replace(config, entropy_coef=0.0), clip_range)


class Greedy(PPO):
    def loss(self, inputs: LossInputs, clip_range: Any) -> Loss:
        return ppo_loss(inputs, replace(self.config, entropy_coef=0.0), clip_range)


class Talkative(PPO):
    """A subclass that keeps the loss."""

    def anneal(self, progress: float) -> None:
        super().anneal(progress)


def test_a_loss_of_ones_own_is_descended_by_autograd() -> None:
    agent = PPO(Box(-1, 1, (2,)), Discrete(2), CONFIG, loss=without_entropy)
    assert form_of(agent) is NumpyNetworks
    assert form_of(Greedy(Box(-1, 1, (2,)), Discrete(2), CONFIG)) is NumpyNetworks
    plain = PPO(Box(-1, 1, (2,)), Discrete(2), replace(CONFIG, fast_updates=False), loss=without_entropy)
    assert form_of(plain) is Backend
    assert form_of(Talkative(Box(-1, 1, (2,)), Discrete(2), CONFIG)) is NumpyBackend


def test_an_agent_like_another_has_its_loss_and_networks() -> None:
    agent = Greedy(Box(-1, 1, (2,)), Discrete(2), CONFIG, loss=without_entropy, networks=small_networks)
    other = agent.like(CONFIG, seed=1)
    assert type(other) is Greedy
    assert other._loss is without_entropy
    assert isinstance(other.actor, nn.Linear)


# Networks of one's own


def small_networks(observation_space: Any, action_space: Any, config: PPOConfig, generator: Any) -> Any:
    return nn.Linear(2, int(action_space.n)), nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 1))


def test_hyperparameters_that_networks_of_ones_own_do_not_read_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def reading(observation_space: Any, action_space: Any, config: Any, generator: Any) -> Any:
        return small_networks(observation_space, action_space, replace(config, hidden_sizes=(8,)), generator)

    config = ppo_config(hidden_sizes=(11,), layer_norm=True, activation="relu")
    PPO(Box(-1, 1, (2,)), Discrete(2), config, networks=reading)
    assert "no effect" not in caplog.text
    PPO(Box(-1, 1, (2,)), Discrete(2), config, networks=small_networks)
    assert "layer_norm=True has no effect: networks= was given, and does not read it" in caplog.text
    assert "hidden_sizes=(11,) has no effect" in caplog.text


def test_networks_of_ones_own_follow_from_the_seed_and_leave_torchs_generator_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        return PPO(Box(-1, 1, (2,)), Discrete(2), CONFIG, seed=seed, networks=small_networks).parameters.values.data

    before = torch.random.get_rng_state()
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))
    assert torch.equal(torch.random.get_rng_state(), before)


WRONG = {
    "not two": (lambda *inputs: nn.Linear(2, 2), "must return two modules"),
    "outputs": (lambda *inputs: (nn.Linear(2, 3), nn.Linear(2, 1)), r"the actor must return \[2, 2\].*got \[2, 3\]"),
    "values": (lambda *inputs: (nn.Linear(2, 2), nn.Linear(2, 2)), r"the critic must return \[2, 1\].*got \[2, 2\]"),
    "inputs": (lambda *inputs: (nn.Linear(4, 2), nn.Linear(2, 1)), "the actor fails for observations"),
    "double": (
        lambda *inputs: (nn.Sequential(nn.Linear(2, 2), Doubled()), nn.Linear(2, 1)),
        "the parameters of the actor must be float32",
    ),
}


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * self.scale).float()


@pytest.mark.parametrize("what", WRONG)
def test_networks_that_do_not_fit_are_refused(what: str) -> None:
    networks, message = WRONG[what]
    with pytest.raises(ConfigurationError, match=message):
        PPO(Box(-1, 1, (2,)), Discrete(2), CONFIG, networks=networks)


def cartpole_networks(observation_space: Any, action_space: Any, config: PPOConfig, generator: Any) -> Any:
    return nn.Linear(4, 2), nn.Linear(4, 1)


# In a training


OWN: dict[str, dict[str, Any]] = {
    "loss": {"loss": without_entropy},
    "agent": {"agent": Greedy},
    "networks": {"networks": cartpole_networks},
    "agent and networks": {"agent": Greedy, "networks": cartpole_networks},
}
COPIED = hybridppo.Mirrored("cpu", "cpu", force_copy=True)


@pytest.mark.parametrize(
    ("parts", "where"),
    only_by_default(
        ("loss, hybrid", "agent, cpu", "networks, cpu", "agent and networks, hybrid"), product(OWN, ("cpu", "hybrid"))
    ),
)
def test_a_run_with_parts_of_ones_own_goes_on_exactly_with_the_same(parts: str, where: str, tmp_path: Path) -> None:
    own = OWN[parts]
    options = {"placement": COPIED if where == "hybrid" else where, "total_steps": 160, **own}
    expected = train(run_dir=tmp_path / "whole", **options).agent.parameters.values
    stopped = train(run_dir=tmp_path / "run", on_iteration=interrupt_at(2), **options)
    assert stopped.interrupted
    assert json.loads((tmp_path / "run" / "config.json").read_text())["own"].keys() == own.keys()
    with pytest.raises(hybridppo.RunDirectoryError, match=r"the run has its own \w+, .*: pass it again in Python"):
        hybridppo.resume(tmp_path / "run", progress=False)
    result = hybridppo.resume(tmp_path / "run", progress=False, **own)
    assert torch.equal(result.agent.parameters.values, expected)
    loadable = {name: part for name, part in own.items() if name != "loss"}
    loaded = hybridppo.load(tmp_path / "run", **loadable)
    assert torch.equal(loaded.parameters.values, expected)
    assert len(hybridppo.evaluate(tmp_path / "run", episodes=2, progress=False, **loadable).returns) == 2


def test_a_run_without_a_loss_of_its_own_does_not_take_one(tmp_path: Path) -> None:
    train(run_dir=tmp_path / "run")
    with pytest.raises(hybridppo.CheckpointError, match="begun without its own loss"):
        hybridppo.resume(tmp_path / "run", loss=without_entropy, progress=False)


def test_the_loss_decides_what_is_learned() -> None:
    plain, other = train(), train(loss=without_entropy)
    assert not torch.equal(plain.agent.parameters.values, other.agent.parameters.values)
    same = train(loss=ppo_loss).agent.parameters.values
    torch.testing.assert_close(same, plain.agent.parameters.values, rtol=1e-4, atol=1e-5)


def test_an_agent_that_there_is_learns_on() -> None:
    first = train().agent
    before, updates = first.parameters.values.detach().clone(), first.version
    result = train(agent=first, config=None)
    assert result.agent is first
    assert first.version == 2 * updates
    assert not torch.equal(first.parameters.values, before)


REFUSED = {
    "a configuration for an agent that there is": (
        lambda: {"agent": PPO(Box(-1, 1, (4,)), Discrete(2)), "config": CONFIG},
        r"has its config: .* by start_from=FILE and config=",
    ),
    "a loss for an agent that there is": (
        lambda: {"agent": PPO(Box(-1, 1, (4,)), Discrete(2)), "config": None, "loss": ppo_loss},
        r"leave loss=... out",
    ),
    "an agent for another environment": (
        lambda: {"agent": PPO(Box(-1, 1, (3,)), Discrete(2)), "config": None},
        "the environment is not the one that was trained in",
    ),
    "no agent": (lambda: {"agent": dict}, "agent must be a subclass of PPO or a PPO, got dict: config=DDPGConfig"),
    "no configuration": (
        lambda: {"config": {"agent": 2}},
        r"config must be one of PPOConfig, .*; config\['agent'\] is 2",
    ),
    "settings in a dict": (
        lambda: {"config": {"activation": "relu"}},
        r"config has the setting 'activation' in place of a policy's name: write config=PPOConfig\(\*\*config\)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_trained_is_refused(what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises(ConfigurationError, match=message):
        train(**make())


def test_auto_measures_the_agent_that_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    like = PPO.like
    monkeypatch.setattr(PPO, "like", lambda self, config, **options: made.append(self) or like(self, config, **options))
    config = replace(CONFIG, num_steps=32)
    options: dict[str, Any] = {"total_steps": 64 * 200, "callbacks": [StopAfter(1)]}  # what is short is not measured
    result = train(placement="auto", config=config, networks=cartpole_networks, **options)
    assert made
    assert all(agent is result.agent for agent in made)
