"""What an agent normalises: its observations, and the rewards that it learns from."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.stacked_rows import stacked_rows
from hybridppo.networks.normalization import (
    Moments,
    NormalizedNetwork,
    ObservationNormalizer,
    RunningMoments,
    moments_of,
)
from hybridppo.networks.numpy_forms.normalizing import EPSILON, LIMIT
from hybridppo.rollouts.advantages import discounted_sums
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.observations import ObservationEncoder

Together = Callable[[str, Sequence[Moments]], Moments]
"""The moments of all rows that are learned from, from those of the parts that are here, as `Exchange.moments`."""


class Normalization(nn.Module):
    """The moments of observations and of rewards, where they are asked for; they change once an update.

    Args:
        config: says which.
        encode: of the observations.
    """

    def __init__(self, config: PPOConfig, encode: ObservationEncoder) -> None:
        super().__init__()
        # Images alone have nothing to normalise.
        normalizes = config.normalize_observations and encode.measured.any()
        self._frames = encode.frames
        # Of stacks, the moments are those of a frame.
        measured = encode.measured if encode.frames is None else encode.measured[: encode.frames.size]
        self.observations = ObservationNormalizer(encode.layout, measured) if normalizes else None
        self.rewards = RewardNormalizer(config.gamma) if config.normalize_rewards else None

    def before(self, network: nn.Module) -> nn.Module:
        """The network with the observations normalised before it."""
        return network if self.observations is None else NormalizedNetwork(self.observations, network)

    def fit(self, num_columns: int) -> None:
        """Make room for what the columns of a rollout carry on."""
        if self.rewards is not None:
            self.rewards.fit(num_columns)

    def of_observations(self, rollout: Rollout) -> tuple[Any, Tensor]:
        """Its observations `[T + 1, N, *row]` and final observations `[K, *row]`, as the networks take them.

        Stacks of frames are `StackedRows`.
        """
        normalize = _as_they_are if self.observations is None else self.observations
        observations, finals = normalize(rollout.observations), normalize(rollout.final_observations)
        if self._frames is None:
            return observations, finals
        assert rollout.history is not None  # of a sampler of such environments
        return stacked_rows(rollout, observations, normalize(rollout.history), self._frames), finals

    def of_rewards(self, parts: Sequence[Rollout], together: Together | None) -> Sequence[Tensor]:
        """The rewards that are learned from, `[T, N]` of each part.

        Args:
            parts: of a rollout.
            together: of a new rollout, whose rewards count from now on; None of others.
        """
        if self.rewards is None:
            return [part.rewards for part in parts]
        rewards = [part.rewards for part in parts]
        if together is not None:
            first, found = 0, []
            for part in parts:
                columns = slice(first, first := first + part.rewards.shape[1])
                found.append(
                    self.rewards.gathered(part.rewards, part.terminated | part.truncated, part.valid_rows, columns)
                )
            rewards = [of_part for of_part, _ in found]
            self.rewards.merge(*together("rewards", [moments for _, moments in found]))
        return [self.rewards.scaled(of_part) for of_part in rewards]

    @torch.no_grad()
    def learned(self, parts: Sequence[Rollout], together: Together) -> None:
        """Let the observations count. Not before: actions were drawn, and are learned from, under one normalisation."""
        if self.observations is None:
            return
        found = []
        for part in parts:
            rows = part.observations[:-1].flatten(0, 1)
            is_whole = len(part.valid_rows) == len(rows)
            found.append(self.observations.moments_of(rows if is_whole else rows.index_select(0, part.valid_rows)))
        self.observations.merge(*together("observations", found))

    @property
    def parts(self) -> "dict[str, ObservationNormalizer | RewardNormalizer]":
        """What there is of the two, by name: each with its `moments`, and `merge`."""
        parts = {"observations": self.observations, "rewards": self.rewards}
        return {name: part for name, part in parts.items() if part is not None}

    def largest_variance(self, like: Tensor) -> Tensor:
        """Of all moments, `[1]`: no finite number if one of them has become too large; 0 if nothing is normalised."""
        variances = [part.moments.variance.reshape(-1) for part in self.parts.values()]
        return torch.cat(variances).amax(0, keepdim=True) if variances else like.new_zeros(1)

    def changing(self) -> list[Tensor]:
        """What an update changes before it is over."""
        return [] if self.rewards is None else list(self.rewards.buffers())

    def state(self) -> dict[str, Tensor]:
        """What no network holds: that of the rewards."""
        return {} if self.rewards is None else self.rewards.state_dict()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Take it over."""
        if self.rewards is not None:
            self.rewards.fit(tensors["returns"].numel())
            self.rewards.load_state_dict(tensors)


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
        self.gamma = gamma
        self.register_buffer("returns", torch.zeros(0))

    def fit(self, num_columns: int) -> None:
        """Make room for what the `N` columns of a rollout have gathered so far, where there is none yet."""
        if len(self.returns) != num_columns:
            self.returns = self.returns.new_zeros(num_columns)

    def merge(self, mean: Tensor, variance: Tensor, number: Any) -> None:
        """Let so many returns count whose moments these are."""
        self.moments.merge(mean, variance, number)

    @torch.no_grad()
    def gathered(
        self, rewards: Tensor, ended: Tensor, valid_rows: Tensor, columns: slice = slice(None)
    ) -> tuple[Tensor, Moments]:
        """The rewards of a rollout as they count, and the moments of the returns that they have brought.

        Args:
            rewards: `[T, N]`.
            ended: `[T, N]` bool: terminated or truncated.
            valid_rows: `[M]`, the flat indices of those that are steps; of the others nothing counts.
            columns: which they are of those that there is room for.
        """
        if len(valid_rows) < rewards.numel():
            are_steps = torch.zeros_like(rewards).view(-1).index_fill_(0, valid_rows, 1.0).view_as(rewards)
            rewards = torch.where(are_steps > 0.0, rewards, 0.0)  # which may be anything, where it is of no step
        goes_on = self.gamma * (~ended).to(rewards.dtype)
        # return[t] = reward[t] + goes_on[t - 1] * return[t - 1]: solved backwards in the order of time reversed.
        terms, decay = rewards.clone(), torch.zeros_like(rewards)
        terms[0] += self.returns[columns]
        decay[1:] = goes_on[:-1]
        returns = discounted_sums(terms=terms.flip(0), decay=decay.flip(0)).flip(0)
        self.returns[columns] = goes_on[-1] * returns[-1]
        return rewards, moments_of(returns.flatten().index_select(0, valid_rows))

    def scaled(self, rewards: Tensor) -> Tensor:
        """Rewards that counted before, by what is known now."""
        return (rewards * (self.moments.variance + EPSILON).rsqrt()).clamp_(-LIMIT, LIMIT)


def _as_they_are(rows: Tensor) -> Tensor:
    return rows
