"""Parts of an observation with layers of their own."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from ppo_settings import ppo_config
from toy_environments import IdentityDiscrete

import hybridppo
from hybridppo import ConfigurationError
from hybridppo.agents import PPO
from hybridppo.networks.actors import arrays_of, twin_of
from hybridppo.networks.layers import EncodedNetwork
from hybridppo.spaces.masks import MaskedObservation

SEEN = Dict(camera=Box(0, 255, (12, 12, 3), np.uint8), lamps=Discrete(3), speed=Box(-5.0, 5.0, (4,), np.float32))
SIZES = {"camera": (7,), "speed": (6, 5)}
CHOICES, NUMBERS = Discrete(4), Box(-1.0, 1.0, (2,), np.float32)


def agent_of(space: gym.Space[Any], action: gym.Space[Any] = CHOICES, **config: Any) -> PPO:
    settings = {"encoder_sizes": SIZES, "hidden_sizes": (8,), **config}
    return PPO(space, action, ppo_config(**settings), seed=2)


def rows_of(agent: PPO, count: int) -> np.ndarray:
    agent.observation_space.seed(1)
    return np.stack([agent._encode.one(agent.observation_space.sample()) for _ in range(count)])


def test_each_part_has_layers_of_its_own_and_all_are_joined() -> None:
    agent = agent_of(SEEN)
    network = agent.actor.body
    assert isinstance(network, EncodedNetwork)
    image = network.layout.images[0]
    first = [layer for layer in network.encoders.modules() if isinstance(layer, torch.nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in first] == [(7, image.num_features), (6, 4), (5, 6)]
    assert network.mlp[0].in_features == 7 + 3 + 5  # the lamps are joined as they are
    rows = torch.from_numpy(rows_of(agent, 5))
    before = network(rows)
    numbers = rows[:, : network.layout.end_of_numbers].clone().view(torch.float32)
    numbers[:, 3:] += 1.0  # the speed
    other = torch.cat((numbers.view(torch.uint8), rows[:, network.layout.end_of_numbers :]), dim=1)
    with torch.no_grad():
        first[1].weight.zero_()  # which then says nothing of it
    torch.testing.assert_close(network(other), network(rows))
    assert not torch.equal(before, network(rows))


AGENTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "image and numbers": (SEEN, CHOICES, {}),
    "Gaussian, relu": (SEEN, NUMBERS, {"activation": "relu"}),
    "masked": (MaskedObservation(SEEN, 4), CHOICES, {"normalize_observations": True}),
    "shared trunk": (SEEN, CHOICES, {"shared_trunk": True}),
    "state-dependent": (SEEN, NUMBERS, {"use_sde": True}),
    "numbers alone": (Tuple((NUMBERS, Discrete(3))), CHOICES, {"encoder_sizes": {"0": (6,)}}),
    "masked, numbers alone": (
        MaskedObservation(Dict(a=NUMBERS, b=NUMBERS), 4), CHOICES, {"encoder_sizes": {"b": (6,)}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AGENTS)
def test_numpy_gives_what_torch_gives_however_many_rows_there_are(name: str) -> None:
    space, action, config = AGENTS[name]
    agent = agent_of(space, action, **config)
    rows = rows_of(agent, 11)
    form = twin_of(agent.actor)
    assert form is not None
    arrays = [tensor.numpy() for tensor in arrays_of(agent.actor)]
    everything = form.actor(arrays)(rows).copy()
    with torch.no_grad():
        expected = agent.actor(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(everything, expected, rtol=1e-4, atol=1e-5)
    for part in (slice(0, 1), slice(1, 4), slice(4, 11)):
        np.testing.assert_array_equal(form.actor(arrays)(rows[part]), everything[part])


def test_what_numpy_has_not_is_left_to_torch() -> None:
    for config in ({"layer_norm": True}, {"activation": "elu"}, {"convolutions": "impala"}):
        assert twin_of(agent_of(SEEN, **config).actor) is None


def test_it_has_a_flag_and_is_saved_as_json(tmp_path: Any) -> None:
    config = ppo_config(encoder_sizes={"camera": [7]})
    assert config.encoder_sizes == {"camera": (7,)}
    assert ppo_config(**config.to_json()) == config
    agent = agent_of(SEEN)
    loaded = hybridppo.load(agent.save(tmp_path / "agent.safetensors"))
    assert loaded.config == agent.config
    SEEN.seed(3)
    observation = SEEN.sample()
    assert loaded.act(observation) == agent.act(observation)


def test_what_cannot_be_meant_is_refused() -> None:
    for wrong in ({}, {"a": []}, {"a": 8}, {"a": [0]}, {"a": [1.5]}, {"a": [True]}, {3: [8]}, [8], "a", True):
        with pytest.raises(ConfigurationError, match=r"^encoder_sizes must be None, or a dict"):
            ppo_config(encoder_sizes=wrong)
    with pytest.raises(ConfigurationError, match="names the part 'sound', and the observation space has camera, lamps"):
        agent_of(SEEN, encoder_sizes={"sound": (8,)})
    with pytest.raises(ConfigurationError, match="names the part 'camera', and the observation space is no Dict"):
        hybridppo.train(IdentityDiscrete, total_steps=64, config=ppo_config(encoder_sizes=SIZES), progress=False)
