"""The terms of PPO's loss, as pure functions of tensors.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", 2017; details after Huang et al.,
"The 37 Implementation Details of Proximal Policy Optimization", 2022.
"""

from typing import Any

import torch
from torch import Tensor


def normalize(advantages: Tensor, *, weights: Tensor | None = None, counted: Tensor | None = None) -> Tensor:
    """Zero mean and unit standard deviation over each minibatch (detail 7; unbiased deviation).

    The only place where advantages are normalised, for every form of the optimizer steps. A single advantage has no
    deviation and becomes zero.

    Args:
        advantages: `[..., B]`, minibatches of one size.
        weights: `[..., B]`, if each advantage is multiplied by a weight; the weighted ones are normalised.
        counted: `[..., B]` bool, if not all rows are steps; the others become zero.
    """
    number: Any = advantages.shape[-1]
    if counted is not None:
        number, counts = counted.sum(-1, keepdim=True), counted.to(advantages.dtype)
        advantages = advantages.masked_fill(~counted, 0.0)
        weights = counts if weights is None else counts * weights
    weighed = advantages if weights is None else weights * advantages
    total = weighed.sum(-1, keepdim=True)
    spread = weighed - total / number
    if counted is not None:
        spread = spread.masked_fill(~counted, 0.0)
    deviation = (spread.square().sum(-1, keepdim=True) / (number - 1)).sqrt()
    if weights is not None:
        # w * A - w * mean, with the mean for which they add up to 0
        spread = weighed - weights * (total / weights.sum(-1, keepdim=True))
    normalized: Tensor = spread / (deviation + 1e-8)
    if counted is not None:
        return normalized.masked_fill(number < 2, 0.0)
    return normalized if number > 1 else torch.zeros_like(normalized)


def policy_loss(*, log_ratio: Tensor, advantages: Tensor, clip_range: float | Tensor) -> Tensor:
    """The clipped surrogate (2017, equation 7), negated so that less is better; a scalar.

    Args:
        log_ratio: `[B]`, the action's log-probability now less that at the time it was taken.
        advantages: `[B]`.
        clip_range: how far the ratio may leave 1 before its gradient stops; a number, or a scalar on the same device.
    """
    ratio = log_ratio.exp()
    bounds: Any = (1.0 - clip_range, 1.0 + clip_range)
    clipped = ratio.clamp(*bounds)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def value_loss(*, values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error of the critic, a scalar; arguments `[B]`.

    The half follows the original implementation and CleanRL; stable-baselines3 has none, so its
    `vf_coef=0.5` is `value_coef=1.0` here.
    """
    return 0.5 * (values - returns).square().mean()


def clipped_value_loss(*, values: Tensor, returns: Tensor, old_values: Tensor, clip_range: float) -> Tensor:
    """The value loss with the step away from `old_values` clipped (detail 9); arguments `[B]`.

    The worse of the clipped and the unclipped error counts, as in the original implementation.
    """
    clipped = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square()).mean()


def approx_kl(log_ratio: Tensor) -> Tensor:
    """An unbiased, low-variance estimate of KL(old, new) from `[B]` log-ratios, a scalar.

    `E[(r - 1) - log r]`, estimator k3 of Schulman, "Approximating KL Divergence", 2020.
    """
    return (log_ratio.expm1() - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_range: float | Tensor) -> Tensor:
    """The share of `[B]` samples whose ratio lies outside the clip range, a scalar."""
    return ((log_ratio.exp() - 1.0).abs() > clip_range).to(log_ratio.dtype).mean()


def explained_variance(*, values: Tensor, returns: Tensor) -> Tensor:
    """`1 - Var(returns - values) / Var(returns)`, a scalar; 1 is perfect, 0 no better than the mean.

    Not a number if the returns do not vary, as a single one does not.
    """
    if len(returns) < 2:
        return returns.new_full((), torch.nan)
    variance = returns.var()
    return torch.where(variance > 0, 1.0 - (returns - values).var() / variance, torch.nan)
