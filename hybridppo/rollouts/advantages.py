"""Advantages: generalised advantage estimation (GAE) with exact episode ends.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
2016, equations 11 to 16.
"""

from typing import Protocol

import torch
from torch import Tensor


class AdvantageFunction(Protocol):
    """An estimate of advantages, `gae` or one's own."""

    def __call__(
        self,
        *,
        rewards: Tensor,
        values: Tensor,
        next_values: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        gamma: float,
        gae_lambda: float,
    ) -> Tensor:
        """Advantages `[T, N]`, from what `gae` takes."""
        ...


def next_values(*, values: Tensor, final_rows: Tensor, final_values: Tensor) -> Tensor:
    """The value of what followed each step, `[T, N]`, also where the environment was reset in between.

    Args:
        values: `[T + 1, N]`, the value of every observation the sampler saw, the one after the last
            step included.
        final_rows: `[K]`, flat indices `t * N + n` of the steps whose true final observation is not
            row `t + 1` of the rollout, because the environment was reset within the step.
        final_values: `[K]`, the values of those final observations.
    """
    following = values[1:].clone()
    following.view(-1)[final_rows] = final_values
    return following


def discounted_sums(*, terms: Tensor, decay: Tensor) -> Tensor:
    """Solve `s[t] = terms[t] + decay[t] * s[t + 1]` backwards in time, `s[T] = 0`; both `[T, N]`.

    Takes `log2(T)` passes over the whole block instead of `T` passes over its rows (each row an
    operation too small to be worth its launch, above all on a GPU): after the pass with stride `k`,
    `sums[t]` holds the terms of `2k` steps and `decay[t]` the product of their decays.
    """
    sums, decay = terms.clone(), decay.clone()
    stride, length = 1, terms.shape[0]
    while stride < length:
        # Right-hand sides are made before they are written: rows t and t + stride overlap.
        following = decay[:-stride] * sums[stride:]
        # 0 * nan is nan, but values beyond an episode's end must not count, whatever they are.
        sums[:-stride] += following.masked_fill_(decay[:-stride] == 0.0, 0.0)
        decay[:-stride] = decay[:-stride] * decay[stride:]
        stride *= 2
    return sums


def vtrace(
    *,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    weights: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns `[T, N]` of steps that another policy took, by V-trace.

    With weights of 1 they are those of `gae`. An advantage is that of an action which was taken: its own weight is not
    in it, but in its return, which is the value's and not the action's.

    Source: Espeholt et al., "IMPALA", 2018, equation 1, with lambda (remark 2), both truncations at 1; advantages as in
    Queeney et al., "Generalized Proximal Policy Optimization with Sample Reuse", 2021, section 6.

    Args:
        rewards: `[T, N]`, and all others as for `gae`.
        values: likewise.
        next_values: likewise.
        weights: `[T, N]`, how much more probable each action is now than when it was taken.
        terminated: as for `gae`.
        truncated: likewise.
        gamma: likewise.
        gae_lambda: likewise.
    """
    weights = weights.clamp(max=1.0)
    # delta[t] = r[t] + gamma * V(s[t+1]) * (1 - terminated[t]) - V(s[t])
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    # A[t] = delta[t] + gamma * lambda * (1 - done[t]) * w[t+1] * A[t+1]
    following = torch.cat((weights[1:], torch.ones_like(weights[:1])))
    decay = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype) * following
    advantages = discounted_sums(terms=deltas, decay=decay)
    return advantages, values + weights * advantages


def gae(
    *,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates, `[T, N]`; add `values` for the returns.

    A terminated step is followed by nothing: its return is its reward. A truncated one is followed by
    `next_values`, the value of the true final observation. Neither lets anything of the next
    episode through. Where both flags are set, terminated wins.

    Args:
        rewards: `[T, N]`.
        values: `[T, N]`, the value of the observation each step acted on.
        next_values: `[T, N]`, the value of the observation each step led to.
        terminated: `[T, N]`, bool.
        truncated: `[T, N]`, bool.
        gamma: discount, 0 to 1.
        gae_lambda: 0 (one-step TD error) to 1 (Monte Carlo return).
    """
    # delta[t] = r[t] + gamma * V(s[t+1]) * (1 - terminated[t]) - V(s[t])
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    # A[t] = delta[t] + gamma * lambda * (1 - done[t]) * A[t+1]
    decay = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    return discounted_sums(terms=deltas, decay=decay)
