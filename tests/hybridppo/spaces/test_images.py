"""Observations that are images: what counts as one, their networks in torch and in NumPy, and training with them."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import MIRRORED, WAYS, WITH_WORKERS, assert_same_everywhere
from gymnasium.spaces import Box, Dict, Discrete
from ppo_settings import ppo_config
from selection import only_by_default
from toy_environments import Catch, FaultyEnv

import hybridppo
from hybridppo import PPO, EnvError, SingleDevice
from hybridppo.agents.agent import encoded_rows, fill_gradient
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.environments.making import make_environments
from hybridppo.errors import ConfigurationError
from hybridppo.networks import layers, modes
from hybridppo.networks.actors import Network
from hybridppo.networks.layers import (
    CONVOLUTIONS,
    MLP,
    Convolutions,
    EmptyLinear,
    EncodedNetwork,
    features_of,
    initialised,
    nature,
)
from hybridppo.networks.numpy_actors import NumpyActor
from hybridppo.placements.crossing import Counters, Crossing, TorchActor, sampling_actor
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import MOST_NUMBERS, ObservationEncoder
from hybridppo.spaces.rows import ImageLayout, RowLayout, RowPart
from hybridppo.spaces.serialization import space_from_json, space_to_json

SMALL = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16,), activation="relu")
CROSSING = Crossing(torch.device("cpu"), Counters())

SHAPES = {
    "small": (7, 9, 3),
    "small, channels first": (2, 7, 9),
    "large": (40, 44, 3),
    "large, channels first": (4, 84, 84),
}


def image_space(*shape: int) -> Box:
    return Box(0, 255, shape, np.uint8)


def some_images(count: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def make_network(shape: tuple[int, ...], *, gaussian: bool = False, hidden: tuple[int, ...] = (16,)) -> Network:
    generator = torch.Generator().manual_seed(0)
    image = ImageLayout.of(image_space(*shape))
    assert image is not None
    body = EncodedNetwork(
        RowLayout(0, (image,), is_one_image=True),
        [(RowPart(slice(0, 0), slice(0, 1)), ())],
        0,
        lambda inputs: MLP(inputs, hidden, generator=generator),
        MLP,
        lambda image: nature(image, partial(initialised, generator=generator)),
    )
    head = initialised(EmptyLinear(hidden[-1], 3), 1.0, generator)
    network = Network(body, head, log_std=torch.full((3,), -0.5) if gaussian else None)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return network


@pytest.mark.parametrize("rounds", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("channels_first", [False, True], ids=["channels last", "channels first"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_scaling_the_weights_is_scaling_the_bytes(kind: Convolutions, channels_first: bool, rounds: bool) -> None:
    shape = (4, 36, 40) if channels_first else (36, 40, 4)
    image = ImageLayout.of(image_space(*shape))
    assert image is not None
    convolutions, _ = CONVOLUTIONS[kind](image, partial(initialised, generator=torch.Generator().manual_seed(0)))
    first, rest = next(iter(convolutions.children())), list(convolutions.children())[1:]
    assert isinstance(first, torch.nn.Conv2d)
    images = torch.from_numpy(some_images(5, shape))
    plain = (images if channels_first else images.permute(0, 3, 1, 2)) / 255.0
    plain = torch.nn.functional.conv2d(plain, first.weight, first.bias, first.stride, first.padding)
    for layer in rest:
        plain = layer(plain)
    plain.square().mean().backward()
    expected = [parameter.grad.clone() for parameter in convolutions.parameters() if parameter.grad is not None]
    convolutions.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=rounds):
        found = features_of(images, image, convolutions).float()
    found.square().mean().backward()
    gradients = [parameter.grad for parameter in convolutions.parameters() if parameter.grad is not None]
    tolerance = 0.05 if rounds else 1e-5
    assert len(gradients) == len(expected) == len(list(convolutions.parameters()))
    for one, other in zip([found, *gradients], [plain.permute(0, 2, 3, 1).flatten(1), *expected], strict=True):
        assert (one - other).norm() <= tolerance * other.norm()


# What is an image


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((84, 84, 3), ImageLayout(3, 84, 84, False)),
        ((4, 84, 80), ImageLayout(4, 84, 80, True)),
        ((1, 6, 5), ImageLayout(1, 6, 5, True)),
        ((6, 5, 1), ImageLayout(1, 6, 5, False)),
        ((5, 5, 5), ImageLayout(5, 5, 5, False)),
        ((8, 8, 12), ImageLayout(12, 8, 8, False)),
        ((12, 8, 8), ImageLayout(12, 8, 8, True)),
        ((8, 12, 8), ImageLayout(8, 8, 12, False)),
    ],
)
def test_channels_are_the_odd_side_or_the_fewer(shape: tuple[int, ...], layout: ImageLayout) -> None:
    encode = ObservationEncoder(image_space(*shape))
    assert encode.image == layout
    assert (encode.shape, encode.size, encode.dtype) == (shape, np.prod(shape), np.uint8)
    observations = some_images(2, shape)
    assert encode(observations) is observations
    assert encode(observations.astype(np.int64)).dtype == np.uint8


@pytest.mark.parametrize(
    "space", [Box(0, 255, (84, 84), np.uint8), Box(0, 1, (8, 8, 3)), Box(0, 255, (128,), np.uint8)]
)
def test_other_boxes_are_vectors(space: Box) -> None:
    encode = ObservationEncoder(space)
    assert encode.image is None
    assert (encode.shape, encode.dtype) == ((np.prod(space.shape),), np.float32)


def test_sizes_are_those_of_the_papers() -> None:
    atari = ImageLayout(4, 84, 84, channels_first=True)
    assert atari.sizes == [(84, 84, 4), (20, 20, 32), (9, 9, 64), (7, 7, 64)]
    assert atari.num_features == 3136
    assert ImageLayout(3, 36, 50, channels_first=False).sizes[-1] == (1, 2, 64)
    minatar = ImageLayout(4, 10, 10, channels_first=False)
    assert minatar.sizes == [(10, 10, 4), (8, 8, 16)]
    assert ImageLayout(3, 35, 200, channels_first=False).sizes[-1] == (33, 198, 16)


@pytest.mark.parametrize("shape", [(2, 8, 1), (8, 2, 1), (1, 8, 2)])
def test_images_without_room_for_a_convolution_are_refused(shape: tuple[int, ...]) -> None:
    source = partial(FaultyEnv, lambda env, result: result, observation_space=image_space(*shape))
    with pytest.raises(EnvError, match=r"is not supported: images need at least 3 pixels a side \(gymnasium.wrappers"):
        make_environments(source, 2)


def test_a_single_number_beside_an_image_is_replaced_in_no_rows() -> None:
    """A rollout without truncated episodes has no final observations, and such a tensor may have any strides."""
    layout = ObservationEncoder(Dict(number=Box(-1.0, 1.0, (1,)), seen=image_space(6, 5, 1))).layout
    numbers = torch.zeros(1).as_strided((0, 1), (1, 0))
    assert layout.replaced(torch.zeros((0, 4 + 30), dtype=torch.uint8), numbers).shape == (0, 4 + 30)


def test_a_mask_beside_an_image_leaves_it_bytes() -> None:
    space = MaskedObservation(image_space(6, 5, 1), 3)
    (image,) = some_images(1, (6, 5, 1))
    row = space.row(image, [1, 0, 1])
    assert (row.dtype, row.shape) == (np.uint8, (3 * 4 + 30,))
    assert row in space
    np.testing.assert_array_equal(row[:12].view(np.float32), [1, 0, 1])
    np.testing.assert_array_equal(row[12:].reshape(6, 5, 1), image)
    encode = ObservationEncoder(space)
    assert encode(row[None])[0] is not None
    assert (encode.layout.num_numbers, encode.layout.images, encode.image) == (3, (ImageLayout(1, 6, 5, False),), None)


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (
            np.full((6, 6, 1), 0.5),
            "observation is of float64 and has numbers that are not whole, but its space is of uint8",
        ),
        (np.full((6, 6, 1), 256), r"observation\[0, 0, 0\] is 256, and images must be bytes, 0 to 255"),
        (np.zeros((1, 6, 6), np.uint8), None),
        (np.zeros((5, 6, 1), np.uint8), r"observation is of shape \(5, 6, 1\), and that of its space is \(6, 6, 1\)"),
    ],
    ids=["floats", "too bright", "cast", "another shape"],
)
def test_images_that_are_not_of_their_space(observation: np.ndarray, words: str | None) -> None:
    space = image_space(6, 6, 1)
    source = partial(FaultyEnv, lambda env, result: result, observation_space=space, good=observation)
    if words is None:
        assert make_environments(source, 2).reset(0).shape == (2, 6, 6, 1)
        return
    with pytest.raises(EnvError, match=words):
        make_environments(source, 2).reset(0)


def test_an_agent_acts_on_images_as_environments_give_them() -> None:
    space, truths = image_space(6, 5, 1), np.random.default_rng(0).random((6, 5, 1)) < 0.5
    source = partial(FaultyEnv, lambda env, result: result, observation_space=space, good=truths)
    environments, encode = make_environments(source, 2), ObservationEncoder(space)
    expected = 255 * truths.astype(np.uint8)
    for rows in (environments.reset(0), environments.step(np.zeros(2, np.int64))[0], encode(truths[None])):
        np.testing.assert_array_equal(rows[0], expected)
    for given in (truths, expected, expected.astype(np.float64), expected[..., 0], expected.ravel()):
        np.testing.assert_array_equal(encoded_rows(given, None, space, encode, batch=False)[0], expected)
    assert encode(truths[None][:0]).shape == (0, 6, 5, 1)
    parts = Dict(seen=space)
    for batch in (np.stack([truths] * 2), np.stack([expected.astype(np.float64)] * 2)):
        for rows in (
            encoded_rows(batch, None, space, encode, batch=True),
            encoded_rows({"seen": batch}, None, parts, ObservationEncoder(parts), batch=True).reshape(2, 6, 5, 1),
        ):
            np.testing.assert_array_equal(rows, np.stack([expected] * 2))
    for given, words in (
        (expected / 255.0 + 0.5, "has numbers that are not whole"),
        (expected.astype(np.int64) + 1, r"is 256, and images must be bytes, 0 to 255"),
        (expected.transpose(1, 0, 2), r"must be of shape \(6, 5, 1\), and is of shape \(5, 6, 1\)"),
    ):
        with pytest.raises(EnvError, match=words):
            encoded_rows(given, None, space, encode, batch=False)


# Networks


def test_an_image_network_by_hand() -> None:
    """Filter k sums the pixels of channel k % 2, as shares of 255, and subtracts k / 16; the output sums all."""
    network = make_network((3, 4, 2), hidden=(2,))
    convolution, hidden, last = network.body.convolutions[0][0], network.body.mlp[0], network.head
    with torch.no_grad():
        for k in range(16):
            convolution.weight[k] = 0.0
            convolution.weight[k, k % 2] = 1.0
            convolution.bias[k] = -k / 16
        hidden.weight[0], hidden.weight[1] = 1.0 / 64, 0.0
        last.weight.fill_(0.0)
        last.weight[0, 0] = 1.0
        hidden.bias.zero_()
        last.bias.zero_()
    image = np.zeros((3, 4, 2), np.uint8)
    image[:, :, 0] = [[51, 0, 0, 0], [0, 0, 0, 102], [0, 0, 0, 0]]  # left window: 0.2; right: 0.4
    image[1, 1, 1] = 255  # both windows: 1
    features = [max(0.0, (0.2, 1.0)[k % 2] - k / 16) + max(0.0, (0.4, 1.0)[k % 2] - k / 16) for k in range(16)]
    expected = np.tanh(sum(features) / 64)
    found = network(torch.from_numpy(image[None])).detach().numpy()
    np.testing.assert_allclose(found, [[expected, 0.0, 0.0]], rtol=1e-6)
    found = sampling_actor(network, CROSSING, 0)(image[None])
    np.testing.assert_allclose(found, [[expected, 0.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(7, 9, 3), (40, 44, 3)])
def test_where_the_channels_are_makes_no_difference(shape: tuple[int, ...]) -> None:
    last = make_network(shape)
    first = make_network((shape[2], *shape[:2]))
    images = torch.from_numpy(some_images(5, shape))
    torch.testing.assert_close(first(images.permute(0, 3, 1, 2)), last(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_weights_are_orthogonal_and_leading_dimensions_kept(shape: tuple[int, ...]) -> None:
    network = make_network(shape)
    for convolution in (layer for layer in network.body.convolutions[0] if isinstance(layer, torch.nn.Conv2d)):
        weight = convolution.weight.flatten(1)
        product = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(product, 2.0 * torch.eye(len(product)), rtol=1e-4, atol=1e-5)
    images = torch.from_numpy(some_images(6, shape))
    outputs = network(images)
    assert outputs.shape == (6, 3)
    torch.testing.assert_close(network(images.unflatten(0, (2, 3))), outputs.unflatten(0, (2, 3)))
    assert network(images[:0]).shape == (0, 3)


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_numpy_gives_what_torch_gives(shape: tuple[int, ...], gaussian: bool) -> None:
    network = make_network(shape, gaussian=gaussian)
    actor = sampling_actor(network, CROSSING, version=3)
    assert isinstance(actor, NumpyActor)
    assert actor.version == 3
    for count in (1, 8, 3):
        images = some_images(count, shape)
        np.testing.assert_allclose(actor(images), TorchActor(network, CROSSING)(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_what_comes_out_does_not_depend_on_how_many_come_in(shape: tuple[int, ...]) -> None:
    actor, images = sampling_actor(make_network(shape), CROSSING, 0), some_images(19, shape)
    together = np.array(actor(images))
    for count in (1, 8):
        parts = [np.array(actor(images[i : i + count])) for i in range(0, 19, count)]
        assert np.array_equal(np.concatenate(parts), together), f"in parts of {count}"


def test_parameters_are_those_of_the_moment_it_was_made() -> None:
    network, images = make_network((7, 9, 3)), some_images(4, (7, 9, 3))
    actor = sampling_actor(network, CROSSING, 0)
    before = np.array(actor(images))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    assert np.array_equal(actor(images), before)
    assert not np.allclose(sampling_actor(network, CROSSING, 1)(images), before)


def test_values_of_images_come_in_parts() -> None:
    agent = PPO(image_space(7, 9, 3), Discrete(2), SMALL)
    images = torch.from_numpy(some_images(70, (7, 9, 3)))
    seen: list[int] = []
    agent.critic.register_forward_hook(lambda module, inputs, outputs: seen.append(len(inputs[0])))
    values = Backend(agent).values(images)
    assert seen == [32, 32, 6]  # a minibatch's rows
    torch.testing.assert_close(values, agent.critic(images).squeeze(-1))


def test_the_gradient_of_many_images_is_that_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, hidden_sizes=(1024,))
    space = image_space(4, 36, 36)
    rows = torch.from_numpy(some_images(70, space.shape))

    def gradient() -> torch.Tensor:
        agent = PPO(space, Discrete(2), config, seed=0)
        with Backend(agent)._rounding():
            outputs = agent.actor(rows).square().mean() + agent.critic(rows).square().mean()
        fill_gradient(agent.parameters, outputs)
        return agent.parameters.gradient

    in_pieces = gradient()
    monkeypatch.setattr(layers, "PIECE", 100)
    monkeypatch.setattr(modes, "has_onednn", lambda: False)
    torch.testing.assert_close(in_pieces, gradient(), rtol=1e-4, atol=1e-5)


# Training


def train(env: Any = Catch, **options: Any) -> hybridppo.TrainResult:
    arguments = {"total_steps": 256, "seed": 0, "placement": SingleDevice("cpu"), "config": SMALL} | options
    return hybridppo.train(env, progress=False, **arguments)


@pytest.mark.parametrize(
    "env",
    only_by_default(
        ("large, channels first",),
        [
            pytest.param(Catch, id="small"),
            pytest.param(partial(Catch, pixels=6, channels_first=True), id="large, channels first"),
        ],
    ),
)
def test_placements_and_workers_change_nothing(env: Any) -> None:
    ways = {**WAYS, WITH_WORKERS: {**MIRRORED, "num_workers": 3}}
    assert_same_everywhere(partial(train, env), train(env), ways)


def test_images_come_through_gymnasiums_vectors_too() -> None:
    result = train(env=lambda: gym.vector.SyncVectorEnv([Catch] * 4))
    assert result.metrics["env_steps"] >= 256
    assert result.metrics["episode_length_mean"] == 5.0


@pytest.mark.parametrize("action_space", ["choices", "numbers"])
def test_whole_episodes_of_images(action_space: str) -> None:
    class Env(Catch):
        def __init__(self) -> None:
            super().__init__()
            if action_space == "numbers":
                self.action_space = Box(-1.0, 1.0, (1,))

        def step(self, action: Any) -> Any:
            return super().step(np.asarray(action).round().item())

    config = ppo_config(num_envs=1, episodes_per_rollout=3, num_minibatches=1, hidden_sizes=(8,))
    result = train(Env, config=config, total_steps=60)
    assert result.metrics["episodes"] >= 12
    assert result.metrics["episode_length_mean"] == 5.0


@pytest.mark.parametrize("stack", [False, True], ids=["a camera", "frames stacked"])
def test_gymnasium_makes_such_images(stack: bool) -> None:
    pytest.importorskip("Box2D")

    def make() -> gym.Env:
        env = gym.make("CarRacing-v3", max_episode_steps=20)
        return gym.wrappers.FrameStackObservation(gym.wrappers.GrayscaleObservation(env), 4) if stack else env

    config = ppo_config(num_envs=1, num_steps=24, num_minibatches=2, num_epochs=1, hidden_sizes=(8,))
    result = train(make, config=config, total_steps=24)
    layout = ImageLayout(4, 96, 96, True) if stack else ImageLayout(3, 96, 96, False)
    assert ImageLayout.of(result.agent.observation_space) == layout
    assert result.metrics["env_steps"] == 24


@pytest.mark.slow
def test_catch_is_learned() -> None:
    config = ppo_config(num_envs=16, num_steps=32, hidden_sizes=(32,), activation="relu", learning_rate=3e-3)
    result = train(total_steps=15_000, config=config, evaluation_episodes=100)
    assert result.evaluation is not None
    assert result.evaluation.return_mean >= 0.75  # 0.16 at random; 0.87 to 1 with 4 seeds


# The space in a file


@pytest.mark.parametrize(
    ("space", "length"),
    [(image_space(6, 6, 1), 1), (Box(np.arange(36, dtype=np.uint8).reshape(6, 6, 1), 255, dtype=np.uint8), 36)],
)
def test_the_space_as_json(space: Box, length: int) -> None:
    as_json = json.loads(json.dumps(space_to_json(space)))
    assert (len(as_json["low"]), len(as_json["high"])) == (length, 1)
    assert space_from_json(as_json) == space


def test_a_space_too_large_is_damage() -> None:
    space = {"type": "Box", "shape": [MOST_NUMBERS, 2, 3], "dtype": "uint8", "low": ["0"], "high": ["255"]}
    with pytest.raises(ConfigurationError, match=f"a space may have {MOST_NUMBERS} numbers, and one of shape"):
        space_from_json(space)


@pytest.mark.parametrize("convolutions", ["nature", "impala"])
@pytest.mark.parametrize("kind", ["image", "image and number"])
def test_recurrent_networks_take_the_features_of_any_convolutions(kind: str, convolutions: Any) -> None:
    image = image_space(20, 20, 1)
    space = image if kind == "image" else Dict(image=image, number=Box(-1.0, 1.0, (1,), np.float32))
    agent = PPO(space, Discrete(2), replace(SMALL, convolutions=convolutions, recurrent="lstm", recurrent_size=4))
    action, state = agent.act(space.sample(), state=None)
    assert action in (0, 1)
    assert state.shape == (8,)
