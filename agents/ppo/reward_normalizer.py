"""Rewards in units of what they add up to, so that values are neither large nor small."""

import torch
from torch import Tensor, nn

from hybridppo.networks.normalization import RunningMoments
from hybridppo.networks.numpy_forms.normalizing import EPSILON, LIMIT
from hybridppo.rollouts.advantages import discounted_sums


class RewardNormalizer(nn.Module):
    """Rewards divided by the deviation of the discounted return so far, and clipped to 10.

    The return is that which has been gathered up to a step, from the start of its episode, as in gymnasium's
    `NormalizeReward` and OpenAI's baselines ("37 details", details for continuous actions, 8).

    Args:
        gamma: discount per step.
    """

    returns: Tensor

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.moments = RunningMoments()
        self._gamma = gamma
        self.register_buffer("returns", torch.zeros(0))

    def fit(self, num_columns: int) -> None:
        """Make room for what the `N` columns of a rollout have gathered so far, where there is none yet."""
        if len(self.returns) != num_columns:
            self.returns = self.returns.new_zeros(num_columns)

    def merge(self, mean: Tensor, variance: Tensor, number: int) -> None:
        """Let so many returns count that somebody else had."""
        self.moments.merge(mean, variance, number)

    @torch.no_grad()
    def forward(self, rewards: Tensor, ended: Tensor, valid_rows: Tensor) -> Tensor:
        """The rewards of a rollout normalised, which counts already.

        Args:
            rewards: `[T, N]`.
            ended: `[T, N]` bool: terminated or truncated.
            valid_rows: `[M]`, the flat indices of those that are steps; of the others nothing counts.
        """
        if len(valid_rows) < rewards.numel():
            are_steps = torch.zeros_like(rewards).view(-1).index_fill_(0, valid_rows, 1.0).view_as(rewards)
            rewards = torch.where(are_steps > 0.0, rewards, 0.0)  # which may be anything, where it is of no step
        goes_on = self._gamma * (~ended).to(rewards.dtype)
        # return[t] = reward[t] + goes_on[t - 1] * return[t - 1]: solved backwards in the order of time reversed.
        terms, decay = rewards.clone(), torch.zeros_like(rewards)
        terms[0] += self.returns
        decay[1:] = goes_on[:-1]
        returns = discounted_sums(terms=terms.flip(0), decay=decay.flip(0)).flip(0)
        self.returns.copy_(goes_on[-1] * returns[-1])
        self.moments.add(returns.flatten().index_select(0, valid_rows))
        return self.scaled(rewards)

    def scaled(self, rewards: Tensor) -> Tensor:
        """Rewards that counted before, by what is known now."""
        return (rewards * (self.moments.variance + EPSILON).rsqrt()).clamp_(-LIMIT, LIMIT)
