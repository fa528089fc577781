"""Rows, noise and actions of tensors equal those of arrays."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from second_device import counted_crossings
from tensor_environments import batched

from hybridppo.distributions.base import philox, words
from hybridppo.distributions.deterministic import DeterministicActions
from hybridppo.distributions.of_space import distribution_for
from hybridppo.distributions.state_dependent import ExplorationLayout
from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.on_tensors import TensorEncoder

IMAGE = Box(0, 255, (3, 4, 1), np.uint8)
OBSERVATIONS = {
    "numbers": Box(-1.0, 1.0, (2, 3), np.float64),
    "whole numbers": Box(0, 9, (3,), np.int32),
    "a choice": Discrete(4, start=-2),
    "choices": MultiDiscrete([[2, 3]], start=[[1, -1]]),
    "truths": MultiBinary((2, 2)),
    "an image": IMAGE,
    "parts": Dict(b=Box(-1.0, 1.0, (2,)), a=Tuple((Discrete(3), MultiBinary(2)))),
    "parts with images": Dict(eye=IMAGE, arm=Box(-1.0, 1.0, (3,)), other=IMAGE, hand=Discrete(2)),
}
ACTIONS = {
    "a choice": Discrete(4, start=-2),
    "choices": MultiDiscrete([[2, 3], [3, 3]], start=[[1, -1], [0, 0]]),
    "truths": MultiBinary((2, 2)),
    "numbers": Box(-0.5, np.array([[0.5, np.inf]], np.float32), (1, 2)),
    "parts": Dict(b=Box(-1.0, 1.0, (2,)), a=Tuple((Discrete(3), MultiBinary(2)))),
}
N = 5
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_rows_are_those_of_arrays(name: str) -> None:
    space = OBSERVATIONS[name]
    space.seed(3)
    encode = ObservationEncoder(space)
    samples = [space.sample() for _ in range(N)]
    rows = TensorEncoder(encode, (N,), CPU)(batched(samples, "cpu"))
    np.testing.assert_array_equal(rows.numpy(), np.stack([encode.one(sample) for sample in samples]))
    assert rows.numpy().dtype == encode.dtype
    numbers = encode.layout.numbers(rows.numpy())
    np.testing.assert_array_equal(encode.layout.numbers(rows).numpy().reshape(numbers.shape), numbers)


@pytest.mark.parametrize("space", [Discrete(3, start=1), MultiDiscrete([2, 3])])
def test_a_choice_that_is_none_is_no_number(space: Any) -> None:
    observation = torch.full((N, *space.shape), 1)
    observation.view(N, -1)[1, -1] = 7
    rows = TensorEncoder(ObservationEncoder(space), (N,), CPU)(observation)
    assert rows.isnan().any(1).tolist() == [False, True, False, False, False]


def test_what_cannot_be_a_row_is_refused() -> None:
    numbers, image, choice = (
        TensorEncoder(ObservationEncoder(space), (2,), CPU) for space in (Box(-1.0, 1.0, (3,)), IMAGE, Discrete(2))
    )
    for encode, value, message in (
        (numbers, np.zeros((2, 3)), "the observations must be a torch tensor on cpu, not a ndarray"),
        (numbers, torch.zeros(2, 4), r"the observations must be of shape \[2, 3\], not \[2, 4\]"),
        (numbers, torch.zeros(2, 3, device="meta"), "must be on cpu, as the environments say they are, not on meta"),
        (image, torch.zeros(2, 3, 4, 1), "are an image, and must be torch.uint8, not torch.float32"),
        (choice, torch.zeros(2), "are choices, and must be of whole numbers, not torch.float32"),
    ):
        with pytest.raises(BadValueError, match=message):
            encode(value)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", ACTIONS)
def test_actions_are_those_of_arrays(name: str, squash: bool) -> None:
    space = ACTIONS[name]
    if squash and name == "numbers":
        space = Box(-0.5, 2.0, (1, 2))
    distribution = distribution_for(space, squash=squash)
    actions = distribution.on(CPU)
    generator = np.random.default_rng(0)
    outputs = generator.standard_normal((N, distribution.output_size)).astype(np.float32)
    noise = distribution.draw_noise(generator, (N,))
    expected = distribution.sample(outputs, noise)
    drawn = actions.sample(torch.from_numpy(outputs), torch.from_numpy(noise))
    assert tuple(drawn.shape) == (N, *distribution.action_shape)
    assert drawn.numpy().dtype == distribution.action_dtype
    np.testing.assert_allclose(drawn.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert_same(actions.to_env(torch.from_numpy(expected)), distribution.to_env(expected))


@pytest.mark.parametrize("name", ACTIONS)
def test_nothing_is_sent_to_a_device_for_an_action(name: str, second_device: str) -> None:
    distribution = distribution_for(ACTIONS[name])
    actions = distribution.on(second_device)
    outputs = torch.zeros((N, distribution.output_size), device=second_device)
    noise = torch.ones((N, distribution.noise_size), device=second_device)
    with counted_crossings() as crossings:
        actions.to_env(actions.sample(outputs, noise))
    assert (crossings.to_device, crossings.to_host) == ([], [])


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_noise_is_distributed_as_it_should_be() -> None:
    for space, moments in ((Discrete(4), (0.5772, 1.6449)), (Box(-1.0, 1.0, (4,)), (0.0, 1.0))):
        actions = distribution_for(space).on(CPU)
        sizes = {"num_steps": 100, "num_envs": 500, "num_words": actions.num_words, "device": CPU, "first": 0}
        noise = actions.noise_from(words((7, 8), 1, **sizes)).double()
        assert noise.shape == (100, 500, 4)
        assert noise.isfinite().all()
        assert len(noise.unique()) > 0.98 * noise.numel()  # 2^23 numbers, of which few come twice
        np.testing.assert_allclose((noise.mean(), noise.var()), moments, atol=0.02)
        flat = noise - noise.mean()
        for axis in range(3):  # neighbours have nothing to do with each other
            some, others = (flat.narrow(axis, start, flat.shape[axis] - 1) for start in (0, 1))
            assert abs((some * others).mean()) < 0.02
    ends = actions.noise_from(torch.tensor([0, 2**32 - 1]).repeat(4)[None])
    assert ends.isfinite().all()


def test_words_follow_from_their_place_alone() -> None:
    key, sizes = (123, 2**32 - 1), {"num_steps": 3, "num_envs": 4, "num_words": 6, "device": CPU}
    found = words(key, 9, first=2, **sizes)
    for step, env, group in ((0, 0, 0), (2, 3, 1), (1, 2, 0)):
        four = philox(*key, group, env + 2, step, 9)
        assert found[step, env, 4 * group : 4 * group + 4].tolist() == list(four)[: 6 - 4 * group]
    more = words(key, 9, first=0, num_steps=5, num_envs=9, num_words=13, device=CPU)
    assert torch.equal(more[:3, 2:6, :6], found)
    assert not torch.equal(words(key, 10, first=2, **sizes), found)
    assert not torch.equal(words((124, 2**32 - 1), 9, first=2, **sizes), found)


def test_words_are_the_same_on_another_device(second_device: str) -> None:
    sizes = {"num_steps": 3, "num_envs": 4, "num_words": 6, "first": 0}
    there = words((1, 2), 3, device=torch.device(second_device), **sizes)
    assert str(there.device) == second_device
    assert torch.equal(there.cpu(), words((1, 2), 3, device=CPU, **sizes))


def test_other_distributions_are_refused() -> None:
    distribution = DeterministicActions.__new__(DeterministicActions)
    with pytest.raises(EnvError, match="actions of a DeterministicActions cannot be drawn on tensors: train PPO"):
        distribution.on(CPU)
    of_states = distribution_for(Box(-1.0, 1.0, (2,)), exploration=ExplorationLayout(num_features=4, sample_freq=-1))
    with pytest.raises(EnvError, match="StateDependentGaussian cannot be drawn on tensors: leave use_sde out"):
        of_states.on(CPU)
