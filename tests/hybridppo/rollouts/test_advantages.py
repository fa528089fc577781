"""Advantages against numbers worked out by hand, and against the plain backwards loop."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridppo.rollouts.advantages import discounted_sums, gae, next_values


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def flags(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool)[:, None]


def plain_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    advantages = torch.zeros_like(rewards)
    for n in range(rewards.shape[1]):
        following = 0.0
        for t in reversed(range(rewards.shape[0])):
            bootstrap = 0.0 if terminated[t, n] else next_values[t, n]
            delta = rewards[t, n] + gamma * bootstrap - values[t, n]
            ended = terminated[t, n] or truncated[t, n]
            following = delta + (0.0 if ended else gamma * gae_lambda * following)
            advantages[t, n] = following
    return advantages


def random_block(num_steps: int, num_envs: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(num_steps)
    block: dict[str, Any] = {
        name: torch.randn(num_steps, num_envs, generator=generator, dtype=torch.float64)
        for name in ("rewards", "values", "next_values")
    }
    for name in ("terminated", "truncated"):
        block[name] = torch.rand(num_steps, num_envs, generator=generator) < 0.1
    return {**block, "gamma": 0.97, "gae_lambda": 0.9}


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        # gamma = 0.5, lambda = 0.5, so gamma * lambda = 0.25
        # deltas: 1 + 0.5 * 4 - 2 = 1;  2 + 0.5 * 6 - 4 = 1;  3 + 0.5 * 8 - 6 = 1
        # A2 = 1;  A1 = 1 + 0.25 * 1 = 1.25;  A0 = 1 + 0.25 * 1.25 = 1.3125
        (0, 0, [1.3125, 1.25, 1.0]),
        # The episode ends at the second step, whose next value is 6.
        # terminated: delta1 = 2 - 4 = -2;  A0 = 1 + 0.25 * -2 = 0.5
        (1, 0, [0.5, -2.0, 1.0]),
        # truncated: delta1 = 2 + 0.5 * 6 - 4 = 1, and A2 does not reach A1;  A0 = 1 + 0.25 * 1 = 1.25
        (0, 1, [1.25, 1.0, 1.0]),
        # both: terminated wins
        (1, 1, [0.5, -2.0, 1.0]),
    ],
)
def test_three_steps_by_hand_and_how_an_episode_ends(terminated: int, truncated: int, expected: list[float]) -> None:
    advantages = gae(
        rewards=column(1, 2, 3),
        values=column(2, 4, 6),
        next_values=column(4, 6, 8),
        terminated=flags(0, terminated, 0),
        truncated=flags(0, truncated, 0),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantages.flatten().tolist() == expected


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 8, 128, 131])
def test_the_scan_is_the_plain_loop(num_steps: int) -> None:
    block = random_block(num_steps)
    torch.testing.assert_close(gae(**block), plain_gae(**block))


def test_lambda_zero_is_the_one_step_error() -> None:
    block = random_block(20) | {"gae_lambda": 0.0}
    bootstrap = torch.where(block["terminated"], 0.0, block["next_values"])
    torch.testing.assert_close(gae(**block), block["rewards"] + 0.97 * bootstrap - block["values"])


def test_lambda_one_with_discount_is_the_discounted_return() -> None:
    # gamma = 0.5, terminated at the last step, whose next value 7 does not count: 4;  2 + 0.5 * 4;  1 + 0.5 * 4
    values = column(0.3, 0.5, 0.7)
    advantages = gae(
        rewards=column(1, 2, 4),
        values=values,
        next_values=torch.cat((values[1:], column(7))),
        terminated=flags(0, 0, 1),
        truncated=flags(0, 0, 0),
        gamma=0.5,
        gae_lambda=1.0,
    )
    torch.testing.assert_close(advantages + values, column(3, 4, 4))


@pytest.mark.parametrize("other", [1000.0, math.nan])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_of_the_next_episode_leaks_back(end: str, other: float) -> None:
    block = random_block(30)
    block["terminated"][:], block["truncated"][:] = False, False
    block[end][11] = True
    before = gae(**block)[:12]
    for name in ("rewards", "values", "next_values"):
        block[name][12:] = other
    assert torch.equal(gae(**block)[:12], before)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("other", [1000.0, math.nan])
def test_the_value_after_a_terminated_step_does_not_count(other: float, truncated: bool) -> None:
    block = random_block(30)
    block["terminated"][11], block["truncated"][11] = True, truncated
    before = gae(**block)
    block["next_values"][11] = other
    assert torch.equal(gae(**block), before)


def test_next_values_are_those_of_the_row_after_or_of_the_final_observation() -> None:
    values = torch.arange(6.0).view(3, 2)
    following = next_values(values=values, final_rows=torch.tensor([1, 2]), final_values=torch.tensor([70.0, 80.0]))
    # rows of two environments: [0, 1] is flat row 1, [1, 0] is flat row 2
    assert following.tolist() == [[2.0, 70.0], [80.0, 5.0]]
    assert values.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_without_final_observations_next_values_are_those_of_the_row_after() -> None:
    values = torch.arange(6.0).view(3, 2)
    none = torch.tensor([], dtype=torch.int64)
    assert torch.equal(next_values(values=values, final_rows=none, final_values=torch.tensor([])), values[1:])


def test_discounted_sums_by_hand_and_arguments_untouched() -> None:
    terms, decay = column(1, 10, 100), column(0.5, 0.0, 0.9)
    # s2 = 100;  s1 = 10 + 0 * 100;  s0 = 1 + 0.5 * 10
    assert discounted_sums(terms=terms, decay=decay).flatten().tolist() == [6.0, 10.0, 100.0]
    assert terms.flatten().tolist() == [1, 10, 100]
    assert decay.flatten().tolist() == [0.5, 0.0, 0.9]


def test_discounted_sums_have_the_bits_of_steps_by_torch_and_nothing_passes_an_end() -> None:
    generator = torch.Generator().manual_seed(0)
    terms, decay = torch.randn(37, 5, generator=generator), torch.rand(37, 5, generator=generator)
    decay[6::7], terms[7::7] = 0.0, torch.nan
    found = discounted_sums(terms=terms.requires_grad_(), decay=decay)
    assert not found.requires_grad
    assert found.isnan().any(1).nonzero().flatten().tolist() == [7, 14, 21, 28, 35]
    sums, factors, stride = terms.detach().clone(), decay.clone(), 1
    while stride < 37:
        following = (factors[:-stride] * sums[stride:]).masked_fill(factors[:-stride] == 0.0, 0.0)
        sums[:-stride] += following
        factors[:-stride] = factors[:-stride] * factors[stride:]
        stride *= 2
    assert torch.equal(found.nan_to_num(-1.0), sums.nan_to_num(-1.0))
