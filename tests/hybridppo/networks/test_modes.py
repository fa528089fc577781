"""A user's networks learn in `train()` mode and do everything else in `eval()` mode, wherever they are."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from loops import record_steps
from network_kinds import KINDS, env_of, marks_of
from ppo_settings import ppo_config
from pretended_recorder import PretendedRecorder
from run_files import remove_last_checkpoint
from same_bits import assert_same_agents
from sampling import collecting
from selection import only_by_default
from stop_after import assert_stopped_update_changes_nothing
from torch import Tensor, nn
from toy_environments import short_pendulum

import hybridppo
from hybridppo import DDPG, PPO, TD3, ConfigurationError, DDPGConfig, Migrating, Mirrored, SingleDevice, TD3Config
from hybridppo.distributed.strategy import require_shareable
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.networks.modes import depend_on_training

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, learning_rate=1e-2)
SMALL: dict[str, Any] = {
    "num_envs": 1, "train_frequency": 4, "gradient_steps": 2, "buffer_size": 200, "learning_starts": 20,
    "steps_per_iteration": 40, "batch_size": 8, "hidden_sizes": (16, 16),
}  # fmt: skip
PLACEMENTS = {
    "one device": lambda: SingleDevice("cpu"),
    "migrating": lambda: Migrating("cpu", "cpu", force_copy=True),
    "alias": lambda: Mirrored("cpu", "cpu"),
    "mirrored": lambda: Mirrored("cpu", "cpu", force_copy=True, verify=True),
    "overlapping": lambda: Mirrored("cpu", "cpu", max_lag=1, verify=True),
}
every_placement = pytest.mark.parametrize("placement", PLACEMENTS)


class Seen(nn.Module):
    """Notes the mode of each call, and whether it has a gradient."""

    calls: ClassVar[set[tuple[bool, bool]]] = set()

    def forward(self, rows: Tensor) -> Tensor:
        Seen.calls.add((self.training, torch.is_grad_enabled()))
        return rows


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Seen.calls = set()


def own_networks(observation_space: Any, action_space: Any, config: Any, generator: Any) -> Any:
    def network(outputs: int) -> nn.Module:
        return nn.Sequential(
            Seen(), nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, outputs)
        )

    return network(int(action_space.n)), network(1)


def train(**options: Any) -> Any:
    arguments = {"total_steps": 64 * 3, "seed": 0, "placement": SingleDevice("cpu"), "vectorization": "sync"}
    return hybridppo.train(
        "CartPole-v1", config=CONFIG, networks=own_networks, progress=False, **{**arguments, **options}
    )


@cache
def trained() -> Any:
    """Train on one device; the result is only read."""
    return train().agent


class WithDropout:
    """DDPG or TD3 whose networks have dropout, and note their modes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for network in (self.actor, *self.critics.critics):  # type: ignore[attr-defined]
            network.insert(1, Seen())
            network.insert(2, nn.Dropout(0.3))


class OwnDDPG(WithDropout, DDPG):
    pass


class OwnTD3(WithDropout, TD3):
    pass


@every_placement
def test_gradients_are_computed_in_train_and_all_else_in_eval(placement: str, tmp_path: Path) -> None:
    evaluated = {"evaluation_episodes": 2, "evaluate_every": 64}
    result = train(placement=PLACEMENTS[placement](), run_dir=tmp_path / "run", **evaluated)
    assert Seen.calls == {(True, True), (False, False)}
    assert not result.agent.actor.training
    assert not result.agent.critic.training


OFF_POLICY = {"ddpg": (OwnDDPG, DDPGConfig(**SMALL)), "td3": (OwnTD3, TD3Config(**SMALL))}


@pytest.mark.parametrize(
    ("name", "placement"),
    only_by_default(
        ("ddpg, one device", "td3, migrating", "td3, mirrored", "ddpg, overlapping"),
        product(OFF_POLICY, PLACEMENTS),
    ),
)
def test_ddpg_and_td3_likewise(name: str, placement: str) -> None:
    kind, config = OFF_POLICY[name]
    found = []
    for _ in range(2):
        result = hybridppo.train(
            short_pendulum, config=config, agent=kind, total_steps=80, seed=0, progress=False,
            placement=PLACEMENTS[placement](), vectorization="sync", evaluation_episodes=1,
        )  # fmt: skip
        found.append(result.agent.parameters.values.detach().clone())
    assert (True, True) in Seen.calls
    assert (True, False) not in Seen.calls
    assert torch.equal(*found)


@pytest.mark.parametrize("agent", ["trained", "loaded", "of one's own"])
def test_an_agent_acts_the_same_each_time(agent: str, tmp_path: Path) -> None:
    result = train(run_dir=tmp_path / "run")
    one: Any = result.agent
    if agent == "loaded":
        one = hybridppo.load(tmp_path / "run", networks=own_networks)
    if agent == "of one's own":
        one.actor.train()  # as whoever makes networks after the agent leaves them
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    outputs = [[one.act(row) for row in observations] for _ in range(5)]
    assert all(each == outputs[0] for each in outputs)
    returns = [hybridppo.evaluate_agent(one, "CartPole-v1", episodes=3, seed=1, progress=False).returns for _ in "ab"]
    assert returns[0] == returns[1]


@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if name != "overlapping"])
def test_where_it_samples_changes_nothing(placement: str) -> None:
    """Neither noise of dropout nor statistics of batch normalization change; torch's own generator is left alone."""
    before = torch.random.get_rng_state()
    torch.rand(3)
    found = train(placement=PLACEMENTS[placement]()).agent
    assert any("running_mean" in name and tensor.abs().sum() > 0.0 for name, tensor in found.state()[0].items())
    assert_same_agents(found, trained())
    torch.random.set_rng_state(before)
    state = torch.random.get_rng_state()
    if placement == "one device":
        other = train(seed=1).agent
        assert not torch.equal(other.parameters.values, trained().parameters.values)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_trainings_in_two_threads_have_each_their_noise() -> None:
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda seed: train(seed=seed).agent, (0, 1)))
    for seed, agent in enumerate(found):
        assert_same_agents(agent, train(seed=seed).agent)


@pytest.mark.parametrize("placement", ["one device", "mirrored", "overlapping"])
def test_resumed_it_goes_on_exactly(placement: str, tmp_path: Path) -> None:
    options = {"run_dir": tmp_path / "run", "checkpoint_seconds": 0, "keep_checkpoints": 9}
    expected = train(placement=PLACEMENTS[placement](), **options)
    remove_last_checkpoint(tmp_path / "run", keep=2)
    found = hybridppo.resume(tmp_path / "run", networks=own_networks, progress=False)
    assert_same_agents(found.agent, expected.agent)


def rollout_of(agent: PPO) -> Any:
    return collecting(agent, make_environments("CartPole-v1", 4, vectorization="sync"))()


def own_agent() -> PPO:
    return PPO(gym.make("CartPole-v1").observation_space, Discrete(2), CONFIG, networks=own_networks)


def test_an_update_that_is_stopped_changes_no_statistics() -> None:
    agent = own_agent()
    rollout = rollout_of(agent)
    assert_stopped_update_changes_nothing(agent, rollout, after=3)
    assert not agent.actor.training


def test_recording_a_step_changes_no_statistics() -> None:
    plain, captured = own_agent(), own_agent()
    for network in (plain.actor, plain.critic, captured.actor, captured.critic):
        next(each for each in network.modules() if isinstance(each, nn.Dropout)).p = 0.0  # a recording draws, too
    record_steps(captured, PretendedRecorder())
    rollout = rollout_of(plain)
    for _ in range(3):
        plain.update(rollout)
        captured.update(rollout)
    for name in ("2.running_mean", "2.num_batches_tracked"):
        found, expected = captured.actor.state_dict()[name], plain.actor.state_dict()[name]
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)


def test_several_learners_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"several learners.*dropout and batch normalisation"):
        require_shareable(own_agent())


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks_of(kind)) for kind in KINDS])
def test_the_librarys_own_are_never_switched(kind: str) -> None:
    made = make_environments(env_of(kind), 1, EnvironmentOptions())
    agent = PPO(made.observation_space, made.action_space, ppo_config(**KINDS[kind]))
    assert not depend_on_training(*agent.modules)


def test_neither_are_those_of_ddpg() -> None:
    agent = TD3(Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (1,)))
    assert not depend_on_training(*agent.modules)
