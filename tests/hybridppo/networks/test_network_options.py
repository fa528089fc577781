"""The configuration's options of networks: trunks, layer normalization, initial weights, convolutions."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from torch import nn
from toy_environments import Catch

import hybridppo
from hybridppo import ConfigurationError, PPOConfig, TD3Config
from hybridppo.agents import PPO
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.networks.actors import Network, shared_trunk_of, twin_of
from hybridppo.networks.layers import MLP, impala, initialised
from hybridppo.networks.modes import linears
from hybridppo.spaces.rows import ImageLayout

BOX, DISCRETE = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(4)
IMAGE = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)


def make(observation_space: gym.Space = BOX, action_space: gym.Space = DISCRETE, **options: Any) -> PPO:
    return PPO(observation_space, action_space, ppo_config(hidden_sizes=(8, 6), **options), seed=1)


# A shared trunk


@pytest.mark.parametrize("observation_space", [BOX, IMAGE], ids=["numbers", "images"])
def test_actor_and_critic_share_all_but_their_last_layers(observation_space: gym.Space) -> None:
    apart, shared = make(observation_space), make(observation_space, shared_trunk=True)
    trunk = shared_trunk_of(shared.actor)
    assert trunk is not None
    assert trunk is shared_trunk_of(shared.critic)
    in_trunk = sum(p.numel() for p in trunk.parameters())
    assert len(shared.parameters.values) == in_trunk + (6 + 1) * 4 + (6 + 1)
    assert len(apart.parameters.values) == 2 * in_trunk + (6 + 1) * 4 + (6 + 1)
    assert shared.parameters.of("critic").numel() == 6 + 1
    assert twin_of(shared.actor) is not None


def test_what_both_see_passes_through_the_trunk_once() -> None:
    agent = make(shared_trunk=True)
    trunk = shared_trunk_of(agent.actor)
    assert trunk is not None
    passes: list[int] = []
    trunk.network.register_forward_hook(lambda *_: passes.append(1))
    rows, actions = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    batch = Batch(observations=rows, log_probs=rows.new_zeros(5), actions=actions)
    inputs = Backend(agent)._inputs(batch, batch)
    outputs, values = inputs.outputs, inputs.values
    assert len(passes) == 1
    assert torch.equal(outputs, agent.actor(rows))
    assert torch.equal(values, agent.critic(rows).squeeze(-1))
    assert len(passes) == 3  # nothing is kept beyond a step
    (outputs.square().sum() + values.square().sum()).backward()
    found = agent.parameters.gradient.clone()
    agent.parameters.gradient.zero_()
    (agent.actor(rows).square().sum() + agent.critic(rows).square().sum()).backward()
    torch.testing.assert_close(agent.parameters.gradient, found)
    assert float(found[agent.parameters.range_of("critic")].abs().max()) > 0.0


def test_the_numpy_form_of_a_shared_trunk_is_torchs() -> None:
    agent = make(gym.spaces.Dict(image=IMAGE, numbers=BOX), gym.spaces.Box(-1.0, 1.0, (2,)), shared_trunk=True)
    form = twin_of(agent.actor)
    assert form is not None
    rows = np.random.default_rng(0).integers(0, 255, (5, agent._encode.size), np.uint8)
    rows[:, :12] = np.random.default_rng(0).random((5, 3), np.float32).view(np.uint8)
    with torch.no_grad():
        expected = agent.actor(torch.from_numpy(rows))
    found = form.actor([p.detach().numpy() for p in agent.actor.parameters()])(rows)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared_trunk": True, "recurrent": "lstm"}, "shared_trunk does not work with recurrent"),
        ({"shared_trunk": True, "hidden_sizes": ()}, "shared_trunk needs a hidden layer"),
        ({"shared_trunk": True, "critic_hidden_sizes": (8,)}, "critic_hidden_sizes does not work with shared_trunk"),
    ],
)
def test_what_cannot_be_shared_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ppo_config(**options)


# Layers and first weights


@pytest.mark.parametrize("config", [PPOConfig(normalize_observations=False), TD3Config()], ids=["ppo", "td3"])
def test_the_critic_may_have_hidden_layers_of_other_sizes(config: Any) -> None:
    space = gym.spaces.Box(-1.0, 1.0, (2,))
    kind = hybridppo.PPO if isinstance(config, PPOConfig) else hybridppo.TD3
    agent = kind(BOX, space, replace(config, hidden_sizes=(8, 6), critic_hidden_sizes=(5,)), seed=1)
    sees = 3 if kind is hybridppo.PPO else 3 + 2
    critics = 1 if kind is hybridppo.PPO else 2
    assert agent.parameters.of("critic").numel() == critics * ((sees + 1) * 5 + 5 + 1)
    same = kind(BOX, space, replace(config, hidden_sizes=(8, 6), critic_hidden_sizes=(8, 6)), seed=1)
    usual = kind(BOX, space, replace(config, hidden_sizes=(8, 6)), seed=1)
    assert torch.equal(same.parameters.values, usual.parameters.values)
    assert agent.parameters.of("actor").numel() == usual.parameters.of("actor").numel()


def test_hidden_layers_are_normalised_before_their_activation() -> None:
    agent = make(layer_norm=True, activation="relu")
    body = agent.actor.body
    assert isinstance(body, MLP)
    kinds = [type(layer) for layer in body]
    once = [nn.LayerNorm, nn.ReLU]
    assert [kind for kind in kinds if kind not in (type(body[0]),)] == once * 2
    rows = 100.0 * torch.randn(7, 3)
    before_activation = body[1](body[0](rows))
    torch.testing.assert_close(before_activation.mean(-1), torch.zeros(7), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(before_activation.std(-1, correction=0), torch.ones(7), rtol=0.0, atol=1e-2)
    assert twin_of(agent.actor) is None


def test_layer_norm_trains() -> None:
    config = ppo_config(num_steps=16, num_minibatches=2, layer_norm=True)
    result = hybridppo.train("CartPole-v1", total_steps=128, seed=0, config=config, placement="cpu", progress=False)
    assert np.isfinite(result.metrics["policy_loss"])


def test_first_weights_are_orthogonal_or_torchs() -> None:
    orthogonal, uniform = make(), make(orthogonal_init=False)
    first, second = orthogonal.actor.body[0], orthogonal.actor.body[2]
    torch.testing.assert_close(first.weight.T @ first.weight, 2.0 * torch.eye(3), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(second.weight @ second.weight.T, 2.0 * torch.eye(6), rtol=0.0, atol=1e-5)
    assert float(first.bias.detach().abs().max()) == 0.0
    for layer in linears(uniform.actor):
        bound = layer.in_features**-0.5
        assert 0.5 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert 0.0 < float(layer.bias.detach().abs().max()) <= bound


def test_standard_deviations_begin_where_they_are_told_to() -> None:
    actor = make(action_space=gym.spaces.Box(-1.0, 1.0, (2,)), log_std_init=-2.0).actor
    assert isinstance(actor, Network)
    assert actor.log_std is not None
    assert actor.log_std.tolist() == [-2.0, -2.0]


# Residual convolutions


@pytest.mark.parametrize("shape", [(84, 84, 4), (4, 84, 84), (10, 10, 3), (37, 21, 1)])
def test_impala_is_as_published(shape: tuple[int, int, int]) -> None:
    image = ImageLayout.of(gym.spaces.Box(0, 255, shape, np.uint8))
    assert image is not None
    network, num_features = impala(image, partial(initialised, generator=torch.Generator().manual_seed(0)))
    found = network(torch.randn(2, image.channels, image.height, image.width))
    height, width = image.height, image.width
    for _ in range(3):
        height, width = (height + 1) // 2, (width + 1) // 2
    assert found.shape == (2, 32, height, width)
    assert num_features == 32 * height * width
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 15
    # 3 x 3 each: into a stage, and four within it.
    weights = [(image.channels, 16), *[(16, 16)] * 4, (16, 32), *[(32, 32)] * 4, (32, 32), *[(32, 32)] * 4]
    assert sum(p.numel() for p in network.parameters()) == sum(9 * i * o + o for i, o in weights)


def test_impala_learns_from_images() -> None:
    config = ppo_config(
        num_envs=4, num_steps=32, num_minibatches=2, num_epochs=2, hidden_sizes=(32,), convolutions="impala",
        shared_trunk=True, activation="relu", learning_rate=1e-3,
    )  # fmt: skip
    result = hybridppo.train(Catch, total_steps=256, seed=0, config=config, placement="cpu", progress=False)
    assert np.isfinite(result.metrics["policy_loss"])
    assert twin_of(result.agent.actor) is None
