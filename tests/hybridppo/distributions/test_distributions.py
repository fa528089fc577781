"""Action distributions: probabilities, draws, and what environments get."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch.distributions import kl_divergence

from hybridppo import ConfigurationError
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.deterministic import deterministic_actions
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.distributions.of_space import distribution_for
from hybridppo.distributions.state_dependent import ExplorationLayout


def gaussian(size: int = 2) -> DiagonalGaussian:
    return DiagonalGaussian(np.full(size, -1.0, np.float32), np.full(size, 1.0, np.float32))


def test_categorical_by_hand() -> None:
    # probabilities 1/4, 1/4, 1/2: entropy = 2 * 1/4 * ln 4 + 1/2 * ln 2 = 1.5 ln 2
    outputs = torch.tensor([[0.0, 0.0, math.log(2.0)]])
    log_prob, entropy = Categorical(3).log_prob_and_entropy(outputs, torch.tensor([2]))
    assert log_prob.item() == pytest.approx(math.log(0.5))
    assert entropy.item() == pytest.approx(1.5 * math.log(2.0))


def test_gaussian_by_hand() -> None:
    # one dimension, mean 1, deviation 2, at 3: -1/2 - ln 2 - ln sqrt(2 pi)
    outputs = torch.tensor([[1.0, math.log(2.0)]])
    log_prob, entropy = gaussian(1).log_prob_and_entropy(outputs, torch.tensor([[3.0]]))
    assert log_prob.item() == pytest.approx(-0.5 - math.log(2.0) - 0.5 * math.log(2 * math.pi))
    assert entropy.item() == pytest.approx(0.5 + 0.5 * math.log(2 * math.pi) + math.log(2.0))


def test_against_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, actions = torch.randn(4, 7, 5, generator=generator), torch.randint(0, 5, (4, 7), generator=generator)
    expected: Any = torch.distributions.Categorical(logits=logits)
    log_prob, entropy = Categorical(5).log_prob_and_entropy(logits, actions)
    torch.testing.assert_close(log_prob, expected.log_prob(actions))
    torch.testing.assert_close(entropy, expected.entropy())

    outputs, box_actions = torch.randn(4, 7, 6, generator=generator), torch.randn(4, 7, 3, generator=generator)
    expected = torch.distributions.Normal(outputs[..., :3], outputs[..., 3:].exp())
    log_prob, entropy = gaussian(3).log_prob_and_entropy(outputs, box_actions)
    torch.testing.assert_close(log_prob, expected.log_prob(box_actions).sum(-1))
    torch.testing.assert_close(entropy, expected.entropy().sum(-1))


def test_divergence_by_hand() -> None:
    # 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4) = 1/2 ln(4/3), of each of two choices
    old, new = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    for space, times in ((Discrete(2), 1), (MultiDiscrete([2, 2]), 2), (MultiBinary(3), 3)):
        found = distribution_for(space).kl(old.repeat(1, times), new.repeat(1, times))
        assert found.tolist() == [pytest.approx(times * 0.5 * math.log(4 / 3))]
    # an option that both forbid adds nothing
    forbidden = torch.tensor([[-1e8]])
    assert Categorical(3).kl(torch.cat((old, forbidden), 1), torch.cat((new, forbidden), 1)).item() == pytest.approx(
        0.5 * math.log(4 / 3)
    )
    # from N(0, 1) to N(1, 2): ln 2 + (1 + 1) / (2 * 4) - 1/2
    outputs = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, math.log(2.0)]])
    of_normals = math.log(2.0) + 0.25 - 0.5
    squashed = distribution_for(Box(-3.0, 5.0, (1,)), squash=True)
    exploring = distribution_for(Box(-3.0, 5.0, (1,)), exploration=ExplorationLayout(4, -1))
    for each in (gaussian(1), squashed, exploring):
        assert each.kl(*outputs).tolist() == [pytest.approx(of_normals)]
    # of parts that are independent: outputs are the logits, the mean, the log deviation
    joint = distribution_for(Dict({"arm": Box(-1.0, 1.0, (1,)), "grip": Discrete(2)}))
    both = [torch.cat((logits, numbers), 1) for logits, numbers in zip((old, new), outputs, strict=True)]
    assert joint.kl(*both).item() == pytest.approx(of_normals + 0.5 * math.log(4 / 3))
    actions = deterministic_actions(Box(-1.0, 1.0, (1,)), std=0.1)
    with pytest.raises(ConfigurationError, match="this distribution has no closed form of the divergence"):
        actions.kl(old, new)


def test_divergence_against_torch_and_by_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    old, new = torch.randn(2, 4, 7, 6, generator=generator)
    torch.testing.assert_close(
        Categorical(6).kl(old, new),
        kl_divergence(torch.distributions.Categorical(logits=old), torch.distributions.Categorical(logits=new)),
    )
    normals = [torch.distributions.Normal(each[..., :3], each[..., 3:].exp()) for each in (old, new)]
    torch.testing.assert_close(gaussian(3).kl(old, new), kl_divergence(*normals).sum(-1))
    # the divergence of squashed actions is the mean of their log-ratio
    squashed, count = distribution_for(Box(-3.0, 5.0, (1,)), squash=True), 100_000
    old, new = torch.tensor([[0.5, -1.0]]), torch.tensor([[0.0, -0.5]])
    noise = torch.randn(count, 1, generator=generator)
    drawn = squashed.sample(old.expand(count, 2), noise)
    mean = (squashed.log_prob(old, drawn) - squashed.log_prob(new, drawn)).mean()
    torch.testing.assert_close(squashed.kl(old, new)[0], mean, rtol=0.0, atol=0.02)


def test_categorical_draws_have_the_softmax_frequencies() -> None:
    distribution, count = Categorical(3), 100_000
    probabilities = np.array([0.2, 0.3, 0.5])
    outputs = np.tile(np.log(probabilities).astype(np.float32), (count, 1))
    actions = distribution.sample(outputs, distribution.draw_noise(np.random.default_rng(0), (count,)))
    # five standard deviations of a frequency are 5 * sqrt(0.25 / 100,000) = 0.008
    np.testing.assert_allclose(np.bincount(actions) / count, probabilities, atol=0.008)


def test_gaussian_draws_have_mean_and_deviation() -> None:
    distribution, count = gaussian(2), 100_000
    outputs = np.tile(np.array([1.0, -2.0, math.log(0.5), math.log(3.0)], np.float32), (count, 1))
    actions = distribution.sample(outputs, distribution.draw_noise(np.random.default_rng(0), (count,)))
    np.testing.assert_allclose(actions.mean(0), [1.0, -2.0], atol=0.05)
    np.testing.assert_allclose(actions.std(0), [0.5, 3.0], rtol=0.02)
    assert np.corrcoef(actions.T)[0, 1] == pytest.approx(0.0, abs=0.02)


def test_gumbel_noise_is_finite_even_for_an_exact_zero() -> None:
    class Zeros:
        def standard_exponential(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            return np.zeros(shape, dtype)

    with np.errstate(all="raise"):
        noise = Categorical(3).draw_noise(Zeros(), (2,))  # type: ignore[arg-type]
    assert np.isfinite(noise).all()


def test_the_mode_is_the_most_probable_action() -> None:
    assert Categorical(3).mode(np.array([[0.1, 0.9, 0.3], [2.0, 1.0, 0.0]])).tolist() == [1, 0]
    assert gaussian(2).mode(np.array([[0.1, 0.2, -1.0, -1.0]])).tolist() == [[0.1, 0.2]]


def test_the_same_noise_gives_the_same_actions() -> None:
    for distribution in (Categorical(4), gaussian()):
        outputs = np.random.default_rng(0).standard_normal((10, distribution.output_size)).astype(np.float32)
        first, again, other = (distribution.draw_noise(np.random.default_rng(seed), (10,)) for seed in (1, 1, 2))
        assert np.array_equal(distribution.sample(outputs, first), distribution.sample(outputs, again))
        assert not np.array_equal(distribution.sample(outputs, first), distribution.sample(outputs, other))


def test_a_block_of_noise_has_a_row_per_step_and_environment() -> None:
    assert Categorical(4).draw_noise(np.random.default_rng(0), (5, 3)).shape == (5, 3, 4)
    assert gaussian(2).draw_noise(np.random.default_rng(0), (5, 3)).shape == (5, 3, 2)


def test_discrete_actions_count_from_the_start_of_the_space() -> None:
    distribution = distribution_for(Discrete(3, start=5))
    actions = distribution.to_env(np.array([0, 1, 2]))
    assert actions.tolist() == [5, 6, 7]
    assert all(Discrete(3, start=5).contains(action) for action in actions)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1.0, 1.0, [-1.0, 0.5, 1.0]),
        (0.0, np.inf, [0.0, 0.5, 3.0]),
        (-np.inf, 0.0, [-3.0, 0.0, 0.0]),
        (-np.inf, np.inf, [-3.0, 0.5, 3.0]),
    ],
)
def test_box_actions_are_clipped_and_never_scaled(low: float, high: float, expected: list[float]) -> None:
    distribution = distribution_for(Box(low, high, (3,), np.float32))
    assert distribution.to_env(np.array([[-3.0, 0.5, 3.0]], np.float32)).tolist() == [expected]


def test_each_dimension_has_its_own_bounds() -> None:
    space = Box(np.array([-1.0, 0.0], np.float32), np.array([np.inf, 2.0], np.float32))
    assert distribution_for(space).to_env(np.array([[-5.0, -5.0], [5.0, 5.0]], np.float32)).tolist() == [
        [-1, 0],
        [5, 2],
    ]


def test_whole_numbers_of_a_box_are_choices_or_are_rounded() -> None:
    few, many = Box(-2, np.array([1, 3], np.int8), (2,), np.int8), Box(-1000, 1000, (2,), np.int16)
    choices, rounded = distribution_for(few), distribution_for(many)
    assert (type(choices), choices.output_size, choices.mask_size) == (Categorical, 4 + 6, 0)
    actions = choices.to_env(np.array([[0, 5], [3, 0]]))
    assert (actions.dtype, actions.tolist()) == (np.int8, [[-2, 3], [1, -2]])
    assert isinstance(rounded, DiagonalGaussian)
    actions = rounded.to_env(np.array([[0.6, -1.4], [2e6, -2e6]], np.float32))
    assert (actions.dtype, actions.tolist()) == (np.int16, [[1, -1], [1000, -1000]])
    assert distribution_for(Box(0, 63, (1,), np.int64)).output_size == 64
    assert isinstance(distribution_for(Box(0, 64, (1,), np.int64)), DiagonalGaussian)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_box_actions_get_the_shape_and_type_of_the_space(dtype: Any) -> None:
    space = Box(-1.0, 1.0, (2, 3), dtype)
    distribution = distribution_for(space)
    assert distribution.action_shape == (6,)
    actions = distribution.to_env(np.arange(24, dtype=np.float32).reshape(4, 6) / 24)
    assert actions.shape == (4, 2, 3)
    assert actions.dtype == dtype
    assert actions[1, 1].tolist() == pytest.approx([9 / 24, 10 / 24, 11 / 24], rel=1e-3)
    assert all(space.contains(action) for action in actions)
