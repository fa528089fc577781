"""Advantages by generalised advantage estimation (GAE), with exact episode ends, and their normalisation.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016, equations
11 to 16.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

AdvantageFunction = Callable[..., Tensor | tuple[Tensor, Tensor]]
"""An estimate of advantages `[T, N]`, with the arguments of `gae`: `gae` or a custom function, which may also return a
pair of advantages and returns."""


def next_values(*, values: Tensor, final_rows: Tensor, final_values: Tensor) -> Tensor:
    """The values after each step, `[T, N]`, also if the environment was reset; or anything else that observations have.

    Args:
        values: `[T + 1, N, ...]`, the values of all observations, including the one after the last step.
        final_rows: `[K]`, flat indices `t * N + n` of steps whose true final observation is not row `t + 1` of the
            rollout, because the environment was reset within the step.
        final_values: `[K, ...]`, the values of those final observations.
    """
    following = values[1:].clone()
    following.flatten(0, 1)[final_rows] = final_values
    return following


@np.errstate(over="ignore", invalid="ignore")  # as torch: who asks checks the result
def discounted_sums(*, terms: Tensor, decay: Tensor) -> Tensor:
    """Solve `s[t] = terms[t] + decay[t] * s[t + 1]` backwards in time, with `s[T] = 0`; all `[T, N]`.

    No gradient passes.

    This takes `log2(T)` passes over the whole block instead of `T` passes over rows, which are too small for a launch
    each, above all on a GPU. After the pass with stride `k`, `sums[t]` has the terms of `2k` steps and `decay[t]` the
    product of their decays.
    """
    sums: Any
    factors: Any
    forget: Callable[[Any, Any, float], Any]
    terms, decay = terms.detach(), decay.detach()
    if terms.device.type == "cpu":  # NumPy's calls cost half of torch's, and round alike
        sums, factors, forget = terms.numpy().copy(), decay.numpy().copy(), np.putmask
    else:
        sums, factors, forget = terms.clone(), decay.clone(), Tensor.masked_fill_
    stride, length = 1, len(sums)
    while stride < length:
        here = factors[:-stride]
        # The right-hand side is computed before it is written, because rows t and t + stride overlap.
        following = here * sums[stride:]
        # 0 * NaN is NaN: after the end of an episode, nothing may count, whatever its value.
        forget(following, here == 0.0, 0.0)
        sums[:-stride] += following
        factors[:-stride] = here * factors[stride:]
        stride *= 2
    return torch.as_tensor(sums)


def gae(
    *,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
    next_weights: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimates, `[T, N]`; add `values` for the returns.

    Nothing follows a terminated step: its return is its reward. A truncated step is followed by `next_values`, the
    value of the true final observation. The next episode counts for neither. If a step is both, it counts as
    terminated.

    Args:
        rewards: `[T, N]`.
        values: `[T, N]`, the values of the observations that were acted on.
        next_values: `[T, N]`, the values of the observations after each step.
        terminated: `[T, N]`, bool.
        truncated: `[T, N]`, bool.
        gamma: discount, 0 to 1.
        gae_lambda: 0 (one-step TD error) to 1 (Monte Carlo return).
        next_weights: `[T, N]`, factors of the next steps' advantages; None for 1.
    """
    # delta[t] = r[t] + gamma * V(s[t+1]) * (1 - terminated[t]) - V(s[t])
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    # A[t] = delta[t] + gamma * lambda * (1 - done[t]) * w[t+1] * A[t+1]
    decay = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    return discounted_sums(terms=deltas, decay=decay if next_weights is None else decay * next_weights)


def vtrace(*, weights: Tensor, values: Tensor, **steps: Any) -> tuple[Tensor, Tensor]:
    """Advantages and returns `[T, N]` of steps that an older policy took, by V-trace.

    With weights of 1 they equal those of `gae`. The weight of an action is in the return of its step, which is a target
    of the value, but not in its advantage.

    Source: Espeholt et al., "IMPALA", 2018, equation 1, with lambda (remark 2), both truncations at 1; advantages as in
    Queeney et al., "Generalized Proximal Policy Optimization with Sample Reuse", 2021, section 6.

    Args:
        weights: `[T, N]`, the present probability of each action divided by that when it was taken.
        values: `[T, N]`, the values of the observations that were acted on.
        **steps: the other arguments of `gae`.
    """
    weights = weights.clamp(max=1.0)
    next_weights = torch.cat((weights[1:], torch.ones_like(weights[:1])))
    advantages = gae(values=values, next_weights=next_weights, **steps)
    return advantages, values + weights * advantages


def normalize(
    advantages: Tensor, *, weights: Tensor | None = None, counted: Tensor | None = None, sums: Any = None
) -> Tensor:
    """Normalise advantages to mean 0 and standard deviation 1 in each minibatch, with the unbiased deviation.

    A single advantage has no deviation and becomes zero. Source: Huang et al., "The 37 Implementation Details of
    Proximal Policy Optimization", 2022, detail 7.

    Args:
        advantages: `[..., B]`, minibatches of one size.
        weights: `[..., B]`, factors of the advantages; the products are normalised.
        counted: `[..., B]` bool, which rows are steps; the others become zero. None if all are.
        sums: `advantage_sums` of the whole minibatches, if these are shards of them.
    """
    weighed, weights = _weighed(advantages, weights, counted)
    if sums is None:
        sums = advantage_sums(advantages, weights=weights, counted=counted)
    number, total, squares, of_weights = sums
    # w * A - w * mean, where the mean makes the sum 0
    mean = total / number if weights is None else weights * (total / of_weights)
    normalized: Tensor = (weighed - mean) / ((squares / (number - 1)).sqrt() + 1e-8)
    if isinstance(number, Tensor):
        return normalized.masked_fill(number < 2, 0.0)
    return normalized if number > 1 else torch.zeros_like(normalized)


def advantage_sums(
    advantages: Tensor, *, weights: Tensor | None = None, counted: Tensor | None = None
) -> tuple[Any, Tensor, Tensor, Any]:
    """The sums that `normalize` needs of each minibatch, as numbers or `[..., 1]`; arguments as there.

    Returns:
        The number of rows that count, the sum of the weighted advantages, the sum of their squared deviations from the
        mean, and the sum of the weights.
    """
    number: Any = advantages.shape[-1] if counted is None else counted.sum(-1, keepdim=True)
    weighed, weights = _weighed(advantages, weights, counted)
    total = weighed.sum(-1, keepdim=True)
    spread = weighed - total / number
    if counted is not None:
        spread = spread.masked_fill(~counted, 0.0)
    of_weights = number if weights is None else weights.sum(-1, keepdim=True)
    return number, total, spread.square().sum(-1, keepdim=True), of_weights


def _weighed(advantages: Tensor, weights: Tensor | None, counted: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The weighted advantages and the weights; weights of rows that do not count are 0."""
    if counted is not None:
        counts = counted.to(advantages.dtype)
        advantages = advantages.masked_fill(~counted, 0.0)
        weights = counts if weights is None else counts * weights
    return advantages if weights is None else weights * advantages, weights


def explained_variance(*, values: Tensor, returns: Tensor) -> Tensor:
    """`1 - Var(returns - values) / Var(returns)`, a scalar; 1 is perfect, 0 no better than the mean.

    NaN if the returns do not vary, or there is only one.
    """
    if len(returns) < 2:
        return returns.new_full((), torch.nan)
    variance = returns.var()
    return torch.where(variance > 0, 1.0 - (returns - values).var() / variance, torch.nan)
