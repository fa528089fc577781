"""The terms of the loss against numbers worked out by hand."""

import math

import pytest
import torch

from hybridppo.agents.ppo.loss import approx_kl, clip_fraction, clipped_value_loss, policy_loss, value_loss
from hybridppo.rollouts.advantages import explained_variance, normalize


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "has_gradient"),
    [
        (1.1, 2.0, -2.2, True),  # inside the range
        (0.9, -2.0, 1.8, True),
        (1.5, 2.0, -2.4, False),  # better than it may count: 1.2 * 2
        (0.5, -2.0, 1.6, False),  # likewise: 0.8 * -2
        (0.5, 2.0, -1.0, True),  # worse: counts in full
        (1.5, -2.0, 3.0, True),
    ],
)
def test_policy_loss_in_every_region(ratio: float, advantage: float, expected: float, has_gradient: bool) -> None:
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    loss = policy_loss(log_ratio=log_ratio, advantages=torch.tensor([advantage]), clip_range=0.2)
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    # d (-ratio * advantage) / d log_ratio = -ratio * advantage
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(-ratio * advantage if has_gradient else 0.0)


def test_normalised_advantages_are_those_worked_out_by_hand() -> None:
    # mean 2, deviation 1; mean 2, deviation 2
    found = normalize(torch.tensor([[1.0, 2.0, 3.0], [0.0, 2.0, 4.0]]))
    torch.testing.assert_close(found, torch.tensor([[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]))


def test_rows_that_do_not_count_are_normalised_to_zero_whatever_they_are() -> None:
    counted = torch.tensor([[True, False, True, True], [False, False, True, False], [False] * 4])
    advantages = torch.tensor([1.0, math.nan, 2.0, 3.0]).expand(3, 4)
    found = normalize(advantages, counted=counted)
    torch.testing.assert_close(found, torch.tensor([[-1.0, 0.0, 0.0, 1.0], [0.0] * 4, [0.0] * 4]))


def test_a_single_advantage_has_no_deviation_whatever_its_weight() -> None:
    weights, advantages = torch.rand(1000, 1) * 3.0 + 0.1, torch.randn(1000, 1)
    assert not normalize(advantages, weights=weights).any()
    assert not normalize(advantages).any()


def test_policy_loss_is_a_mean() -> None:
    loss = policy_loss(log_ratio=torch.zeros(2), advantages=torch.tensor([1.0, 4.0]), clip_range=0.2)
    assert loss.item() == -2.5


def test_value_loss_is_half_the_mean_square() -> None:
    # errors 1 and 3: (1 + 9) / 2 / 2
    assert value_loss(values=torch.tensor([1.0, 5.0]), returns=torch.tensor([2.0, 2.0])).item() == 2.5


@pytest.mark.parametrize(
    ("value", "old_value", "target", "expected", "has_gradient"),
    [
        (1.1, 1.0, 2.0, 0.5 * 0.9**2, True),  # within the limits
        (1.5, 1.0, 2.0, 0.5 * 0.8**2, False),  # 1.2 is farther from 2 than 1.5: the clipped error counts
        (0.5, 1.0, 0.0, 0.5 * 0.8**2, False),  # likewise downwards: 0.8 is farther from 0 than 0.5
        (0.5, 1.0, 2.0, 0.5 * 1.5**2, True),  # moved the wrong way: the unclipped error is the worse
        (1.5, 1.0, 0.0, 0.5 * 1.5**2, True),
    ],
)
def test_clipped_value_loss(value: float, old_value: float, target: float, expected: float, has_gradient: bool) -> None:
    values = torch.tensor([value], requires_grad=True)
    loss = clipped_value_loss(
        values=values, returns=torch.tensor([target]), old_values=torch.tensor([old_value]), clip_range=0.2
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(value - target if has_gradient else 0.0)


def test_clipped_value_loss_is_a_mean() -> None:
    # within the limits, errors 1 and 3: (1 + 9) / 2 / 2
    values, returns = torch.tensor([1.0, 5.0]), torch.tensor([2.0, 2.0])
    assert clipped_value_loss(values=values, returns=returns, old_values=values, clip_range=0.2).item() == 2.5


def test_approx_kl_by_hand() -> None:
    # ((2 - 1) - ln 2 + (0.5 - 1) + ln 2) / 2 = 0.25
    assert approx_kl(torch.tensor([math.log(2.0), -math.log(2.0)])).item() == pytest.approx(0.25)
    assert approx_kl(torch.zeros(3)).item() == 0.0


def test_clip_fraction_counts_both_sides() -> None:
    ratios = torch.tensor([0.7, 0.9, 1.1, 1.3])
    assert clip_fraction(ratios.log(), 0.2).item() == 0.5


def test_explained_variance() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(values=returns, returns=returns).item() == 1.0
    assert explained_variance(values=torch.full((3,), 7.0), returns=returns).item() == 0.0
    # residuals 2, 0, -2: variance 4 against 1
    assert explained_variance(values=torch.tensor([-1.0, 2.0, 5.0]), returns=returns).item() == -3.0
    assert math.isnan(explained_variance(values=returns, returns=torch.ones(3)).item())


def test_normalize_by_hand() -> None:
    # mean 2, unbiased deviation sqrt((1 + 0 + 1) / 2) = 1
    assert normalize(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert normalize(torch.tensor([5.0])).tolist() == [0.0]
    assert normalize(torch.tensor([5.0, 5.0])).tolist() == [0.0, 0.0]
