"""Distributions of actions with several parts, and squashed distributions."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from ppo_settings import ppo_config
from space_kinds import KINDS
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution
from torch.distributions import Categorical as TorchCategorical

from hybridppo import PPO, EnvError
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.gaussian import SquashedGaussian
from hybridppo.distributions.joint import JointDistribution
from hybridppo.distributions.of_space import distribution_for
from hybridppo.spaces.kinds import each_of, first_of

MIXED = Dict(
    arm=Box(-1.0, 1.0, (2,)), grip=Discrete(3, start=4), keys=Tuple((MultiBinary(2), Box(0.0, 5.0, (1,), np.float64)))
)
"""Parts in turn: means of `arm`, three logits, four logits, the mean of `keys[1]`."""


def random_outputs(distribution: Any, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, distribution.output_size, generator=torch.Generator().manual_seed(0))


def draws(distribution: Any, outputs: np.ndarray, seed: int = 0) -> np.ndarray:
    noise = distribution.draw_noise(np.random.default_rng(seed), outputs.shape[:-1])
    return distribution.sample(outputs, noise)


# By hand


def test_several_choices_by_hand() -> None:
    # 1/2, 1/2 and 1/4, 3/4: log-probabilities add to ln 3/8; entropies ln 2 and ln 4 - 3/4 ln 3
    distribution = Categorical(np.array([2, 2]))
    outputs = torch.tensor([[0.0, 0.0, 0.0, math.log(3.0)]])
    log_prob, entropy = distribution.log_prob_and_entropy(outputs, torch.tensor([[0, 1]]))
    assert log_prob.item() == pytest.approx(math.log(3 / 8))
    assert entropy.item() == pytest.approx(math.log(2.0) + math.log(4.0) - 0.75 * math.log(3.0))


def test_squashing_by_hand() -> None:
    # u = 0 under a standard normal, between -3 and 1: density 1 / sqrt(2 pi), slope (1 - (-3)) / 2 = 2
    distribution = SquashedGaussian(np.array([-3.0], np.float32), np.array([1.0], np.float32))
    log_prob, _ = distribution.log_prob_and_entropy(torch.zeros(1, 2), torch.zeros(1, 1))
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - math.log(2.0))
    assert distribution.to_env(np.array([[0.0], [100.0], [-100.0]], np.float32)).tolist() == [[-1.0], [1.0], [-3.0]]


# Against torch.distributions


@pytest.mark.parametrize("space", [MultiDiscrete([2, 3, 3, 5]), MultiDiscrete([[4, 4]]), MultiBinary((2, 2))], ids=str)
def test_several_choices_are_torchs(space: gym.Space) -> None:
    distribution = distribution_for(space)
    assert isinstance(distribution, Categorical)
    outputs = random_outputs(distribution, 4, 7)
    actions = torch.from_numpy(draws(distribution, outputs.numpy()))
    parts = [TorchCategorical(logits=logits) for logits in outputs.split(distribution.sizes, dim=-1)]
    log_prob, entropy = distribution.log_prob_and_entropy(outputs, actions)
    expected = sum(part.log_prob(actions[..., i]) for i, part in enumerate(parts))
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(entropy, sum(part.entropy() for part in parts))


def test_squashed_numbers_are_torchs() -> None:
    low, high = np.array([-2.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)
    distribution = SquashedGaussian(low, high)
    outputs = (0.7 * random_outputs(distribution, 5, 6)).clamp(max=1.0)
    drawn = draws(distribution, outputs.numpy())
    # In float64, for the number before squashing is lost where that comes close to a bound.
    actions = torch.from_numpy(low + (high - low) * (np.tanh(drawn.astype(np.float64)) + 1) / 2)
    np.testing.assert_allclose(distribution.to_env(drawn.reshape(-1, 2)), actions.reshape(-1, 2), atol=1e-5)
    base = Normal(outputs[..., :2].double(), outputs[..., 2:].double().exp())
    half = torch.from_numpy((high - low) / 2).double()
    transforms = [TanhTransform(), AffineTransform(torch.from_numpy(low).double() + half, half)]
    expected = Independent(TransformedDistribution(base, transforms), 1)
    log_prob, entropy = distribution.log_prob_and_entropy(outputs, torch.from_numpy(drawn))
    torch.testing.assert_close(log_prob.double(), expected.log_prob(actions), rtol=1e-3, atol=1e-3)
    numbers = (
        base.mean + base.stddev * torch.randn(20_000, 5, 6, 2, generator=torch.Generator().manual_seed(1)).double()
    )
    slopes = transforms[0].log_abs_det_jacobian(numbers, numbers.tanh()) + half.log()
    by_chance = -(base.log_prob(numbers) - slopes).sum(-1).mean(0)
    torch.testing.assert_close(entropy.double(), by_chance, rtol=0.0, atol=0.06)


def test_the_entropy_of_squashed_numbers_is_that_of_the_integral() -> None:
    distribution = SquashedGaussian(np.array([-1.0], np.float32), np.array([1.0], np.float32))
    for mean, std, limit in ((0.0, 1.0, 1e-3), (1.5, 0.3, 1e-3), (-0.5, 2.0, 1e-3), (0.3, 6.0, 0.05)):
        outputs = torch.tensor([[mean, math.log(std)]])
        points = np.linspace(mean - 12 * std, mean + 12 * std, 200_001)
        density = np.exp(-0.5 * ((points - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        log_slope = 2 * (math.log(2) - points - np.logaddexp(0, -2 * points))
        heights = density * (log_slope - np.log(np.maximum(density, 1e-300)))
        integral = float(np.sum((heights[1:] + heights[:-1]) / 2.0 * np.diff(points)))
        found = distribution.log_prob_and_entropy(outputs, torch.zeros(1, 1))[1].item()
        assert found == pytest.approx(integral, abs=limit)


def test_parts_add_up() -> None:
    distribution = distribution_for(MIXED)
    assert isinstance(distribution, JointDistribution)
    assert (distribution.mask_size, distribution.free_size, distribution.output_size) == (3 + 4, 3, 3 + 4 + 2 + 1 + 3)
    outputs = random_outputs(distribution, 8)
    actions = draws(distribution, outputs.numpy())
    assert (actions.shape, actions.dtype) == ((8, 2 + 1 + 2 + 1), np.float32)
    # The network's: logits of grip and of both keys, means of arm and of the other; then the deviations.
    grip, key0, key1, arm, other, arm_std, other_std = outputs.split([3, 2, 2, 2, 1, 2, 1], dim=-1)
    drawn = torch.from_numpy(actions)
    expected = (
        Normal(arm, arm_std.exp()).log_prob(drawn[:, :2]).sum(-1)
        + TorchCategorical(logits=grip).log_prob(drawn[:, 2])
        + TorchCategorical(logits=key0).log_prob(drawn[:, 3])
        + TorchCategorical(logits=key1).log_prob(drawn[:, 4])
        + Normal(other, other_std.exp()).log_prob(drawn[:, 5:]).sum(-1)
    )
    log_prob, entropy = distribution.log_prob_and_entropy(outputs, drawn)
    torch.testing.assert_close(log_prob, expected)
    entropies = [Normal(arm, arm_std.exp()).entropy().sum(-1), Normal(other, other_std.exp()).entropy().sum(-1)]
    entropies += [TorchCategorical(logits=logits).entropy() for logits in (grip, key0, key1)]
    torch.testing.assert_close(entropy, sum(entropies))


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_alone_are_those_with_entropies(kind: str) -> None:
    space = KINDS[kind].make().action_space
    for distribution in (distribution_for(space), distribution_for(space, squash=True)):
        outputs = random_outputs(distribution, 4, 7)
        actions = torch.from_numpy(draws(distribution, outputs.numpy()))
        expected, _ = distribution.log_prob_and_entropy(outputs, actions)
        assert distribution.log_prob(outputs, actions).equal(expected)


# Drawing


def test_a_draw_is_its_own_slice_of_the_noise() -> None:
    for space in (MIXED, MultiDiscrete([2, 3]), MultiBinary(3)):
        distribution = distribution_for(space)
        outputs = random_outputs(distribution, 6, 5).numpy()
        noise = distribution.draw_noise(np.random.default_rng(1), (6, 5))
        assert noise.shape == (6, 5, distribution.noise_size)
        together = distribution.sample(outputs, noise)
        for t in range(6):
            np.testing.assert_array_equal(distribution.sample(outputs[t], noise[t]), together[t])
        np.testing.assert_array_equal(distribution.sample(outputs, 0 * noise), distribution.mode(outputs))


def test_each_choice_has_its_own_frequencies() -> None:
    distribution = distribution_for(MultiDiscrete([2, 3]))
    probabilities = np.array([0.3, 0.7, 0.2, 0.3, 0.5])
    actions = draws(distribution, np.tile(np.log(probabilities).astype(np.float32), (50_000, 1)))
    np.testing.assert_allclose(np.bincount(actions[:, 0]) / 50_000, probabilities[:2], atol=0.012)
    np.testing.assert_allclose(np.bincount(actions[:, 1]) / 50_000, probabilities[2:], atol=0.012)
    assert np.corrcoef(actions.T)[0, 1] == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    "space",
    [MIXED, MultiDiscrete([[2, 3], [3, 2]], start=[[1, 0], [-2, 0]]), MultiBinary((2, 3)), Tuple((Discrete(2),))],
    ids=["mixed", "multi-discrete", "multi-binary", "one part"],
)
def test_what_the_environment_gets_is_of_its_space(space: gym.Space) -> None:
    distribution = distribution_for(space)
    actions = draws(distribution, 3.0 * random_outputs(distribution, 40).numpy())
    batch = distribution.to_env(actions)
    assert gym.vector.utils.batch_space(space, 40).contains(batch)
    singles = list(each_of(space)(batch))
    assert len(singles) == 40
    assert all(space.contains(single) for single in singles)
    assert first_of(space)(batch) is not None


def test_only_finite_bounds_can_be_squashed_between() -> None:
    half_open = Box(0.0, np.inf, (2,))
    for space in (half_open, Dict(arm=half_open)):
        with pytest.raises(
            EnvError, match=r"squash_actions=True .* finite bounds, and some of its bounds are infinite"
        ):
            PPO(Box(-1.0, 1.0, (1,)), space, ppo_config(squash_actions=True))
        PPO(Box(-1.0, 1.0, (1,)), space)
    assert isinstance(distribution_for(Box(0.0, 2.0, (2,)), squash=True), SquashedGaussian)
    distribution_for(Discrete(2), squash=True)  # there is nothing to squash
