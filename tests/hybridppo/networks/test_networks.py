"""Networks: their initialization and their outputs."""

import math

import numpy as np
import pytest
import torch

from hybridppo.distributions.categorical import Categorical
from hybridppo.networks.actors import Network, ObservationNormalizer
from hybridppo.networks.layers import MLP, EmptyLinear, initialised
from hybridppo.networks.modes import linears
from hybridppo.spaces.rows import RowLayout


def make(seed: int = 0, sizes: tuple[int, ...] = (32, 16), output_gain: float = 0.01) -> MLP:
    generator = torch.Generator().manual_seed(seed)
    return MLP(8, sizes, 3, activation="tanh", output_gain=output_gain, generator=generator)


def test_weights_are_orthogonal_with_their_gains_and_biases_zero() -> None:
    for layer, gain in zip(linears(make()), (math.sqrt(2.0), math.sqrt(2.0), 0.01), strict=True):
        rows, columns = layer.weight.shape
        product = layer.weight @ layer.weight.T if rows <= columns else layer.weight.T @ layer.weight
        torch.testing.assert_close(product, gain**2 * torch.eye(min(rows, columns)), rtol=1e-4, atol=1e-5)
        assert not layer.bias.any()


def test_an_untrained_actor_finds_all_actions_about_as_likely() -> None:
    observations = torch.randn(100, 8, generator=torch.Generator().manual_seed(1))
    probabilities = make()(observations).softmax(-1)
    torch.testing.assert_close(probabilities, torch.full((100, 3), 1 / 3), atol=0.02, rtol=0.0)


def test_the_generator_decides_and_torchs_own_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = make(0), make(0), make(1)
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c in zip(linears(first), linears(again), linears(other), strict=True):
        assert torch.equal(a.weight, b.weight)
        assert not torch.equal(a.weight, c.weight)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "gelu"])
def test_leading_dimensions_are_kept(activation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    mlp = MLP(8, (5,), 3, activation=activation, output_gain=1.0, generator=generator)  # type: ignore[arg-type]
    assert mlp(torch.zeros(4, 2, 8)).shape == (4, 2, 3)


def test_no_hidden_layers_is_a_linear_map() -> None:
    assert len(linears(make(sizes=()))) == 1


def body_and_head() -> tuple[MLP, torch.nn.Linear]:
    generator = torch.Generator().manual_seed(0)
    return MLP(8, (32, 16), generator=generator), initialised(EmptyLinear(16, 3), 1.0, generator)


def test_a_gaussian_actor_gives_means_then_log_deviations() -> None:
    body, head = body_and_head()
    actor = Network(body, head, log_std=torch.full((3,), -0.5))
    observations = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(1))
    outputs = actor(observations)
    assert torch.equal(outputs[..., :3], head(body(observations)))
    assert torch.equal(outputs[..., 3:], torch.full((4, 2, 3), -0.5))


def test_a_masked_actor_gives_no_probability_and_no_gradient_to_what_is_not_allowed() -> None:
    body, head = body_and_head()
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.log(torch.tensor([1.0, 2.0, 6.0])))
    observations = torch.cat((torch.zeros(3, 5), torch.tensor([[1.0, 1, 1], [1, 0, 1], [0, 1, 0]])), dim=1)
    outputs = Network(body, head, mask_size=3)(observations)
    expected = torch.tensor([[1 / 9, 2 / 9, 6 / 9], [1 / 7, 0, 6 / 7], [0, 1, 0]])
    torch.testing.assert_close(outputs.softmax(-1), expected)
    log_prob, entropy = Categorical(3).log_prob_and_entropy(outputs, torch.tensor([2, 2, 1]))
    torch.testing.assert_close(log_prob, torch.log(torch.tensor([6 / 9, 6 / 7, 1.0])))
    torch.testing.assert_close(
        entropy,
        torch.tensor([
            -math.log(1 / 9) / 9 - 2 * math.log(2 / 9) / 9 - 6 * math.log(6 / 9) / 9,
            -math.log(1 / 7) / 7 - 6 * math.log(6 / 7) / 7,
            0.0,
        ]),
    )  # fmt: skip
    (log_prob[1] + log_prob[2] + entropy[1] + entropy[2]).backward()
    # Of the second row, action 1 has no gradient; the third row, with one action, has none at all.
    assert head.bias.grad is not None
    assert head.bias.grad[1] == 0.0
    assert head.bias.grad[0] != 0.0
    assert head.bias.grad.isfinite().all()


def test_neighbouring_choices_are_kept_from_normalisation_at_once() -> None:
    # One by one, 5,000 options took a tenth of a second per update.
    measured = np.array([True] + [False] * 5000 + [True, False])
    normalizer = ObservationNormalizer(RowLayout(len(measured)), measured)
    normalizer.merge(torch.full((len(measured),), 3.0), torch.full((len(measured),), 4.0), 10)
    assert normalizer.moments.mean.tolist() == [3.0, *[0.0] * 5000, 3.0, 0.0]
    assert normalizer.moments.variance.tolist() == [4.0, *[1.0] * 5000, 4.0, 1.0]
    assert len(normalizer._choices) == 2
