"""Normalisation of observations and of the rewards that an agent learns from."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import FrameStacks
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.prepare import numbers_of_frames, stacks_of
from hybridppo.errors import TrainingError
from hybridppo.networks.normalization import (
    Moments,
    NormalizedNetwork,
    ObservationNormalizer,
    RunningMoments,
    moments_of,
)
from hybridppo.networks.numpy_layers import EPSILON, LIMIT
from hybridppo.rollouts.advantages import discounted_sums
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.on_tensors import numbers_of

Together = Callable[[str, Sequence[Moments]], Moments]
"""Combines the moments of several parts, as `Exchange.moments`."""


class Normalization(nn.Module):
    """The moments of observations and of rewards, as configured; they change once per update.

    Args:
        config: the hyperparameters.
        encode: encoder of the observations.
    """

    def __init__(self, config: PPOConfig, encode: ObservationEncoder) -> None:
        super().__init__()
        # Images are not normalised.
        normalizes = config.normalize_observations and encode.measured.any()
        self._frames = encode.frames
        # The moments of stacks are those of a frame.
        measured = encode.measured if encode.frames is None else encode.measured[: encode.frames.size]
        self.observations = ObservationNormalizer(encode.layout, measured) if normalizes else None
        self.rewards = RewardNormalizer(config.gamma) if config.normalize_rewards else None

    def before(self, network: nn.Module) -> nn.Module:
        """The network with normalised observations."""
        return network if self.observations is None else NormalizedNetwork(self.observations, network)

    def fit(self, num_columns: int) -> None:
        """Make room for the state that the columns of a rollout carry on."""
        if self.rewards is not None:
            self.rewards.fit(num_columns)

    def of_observations(self, rollout: Rollout) -> tuple[Tensor, Tensor, FrameStacks | None]:
        """Observations `[T + 1, N, *row]` and final observations `[K, *row]`, as the networks take them.

        If frames are stacked, the observations are the numbers of their frames, and the last result makes the stacks.
        """
        normalize: nn.Module = nn.Identity() if self.observations is None else self.observations
        observations, finals = normalize(rollout.observations), normalize(rollout.final_observations)
        if self._frames is None:
            return observations, finals, None
        assert rollout.history is not None  # from a sampler of such environments
        stacks = stacks_of(observations, normalize(rollout.history), self._frames)
        return numbers_of_frames(rollout, self._frames.num_frames), finals, stacks

    def of_rewards(self, parts: Sequence[Rollout], together: Together | None) -> Sequence[Tensor]:
        """The rewards to learn from, `[T, N]` of each part.

        Args:
            parts: the parts of a rollout.
            together: combines their moments if the rollout is new, so that its rewards count from now on; else None.
        """
        rewards = [part.rewards for part in parts]
        if self.rewards is None:
            return rewards
        if together is not None:
            first, found = 0, []
            for part in parts:
                columns = slice(first, first := first + part.rewards.shape[1])
                found.append(self.rewards.gathered(part, columns))
            rewards = [of_part for of_part, _ in found]
            self.rewards.merge(*together("rewards", [moments for _, moments in found]))
        return [self.rewards.scaled(of_part) for of_part in rewards]

    @torch.no_grad()
    def learned(self, parts: Sequence[Rollout], together: Together) -> None:
        """Update the moments of observations. Only after an update: actions were drawn with the moments before."""
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
        """The normalisers that are configured, by name, each with `moments` and `merge`."""
        parts = {"observations": self.observations, "rewards": self.rewards}
        return {name: part for name, part in parts.items() if part is not None}

    def largest_variance(self, like: Tensor) -> Tensor:
        """The largest of all variances, `[1]`; not finite if a moment is too large, 0 if nothing is normalised."""
        variances = [part.moments.variance.reshape(-1) for part in self.parts.values()]
        return torch.cat(variances).amax(0, keepdim=True) if variances else like.new_zeros(1)

    def changing(self) -> list[Tensor]:
        """The tensors that change before the end of an update."""
        return [] if self.rewards is None else list(self.rewards.buffers())


class RewardNormalizer(nn.Module):
    """Divides rewards by the deviation of the discounted return so far, and clips them to 10.

    The return is the discounted sum of the rewards of an episode up to a step, as in gymnasium's `NormalizeReward` and
    OpenAI's baselines ("37 details", details for continuous actions, 8).

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
        """Make room for the returns so far of `N` columns, if there is none yet."""
        if len(self.returns) != num_columns:
            self.returns = self.returns.new_zeros(num_columns)

    def merge(self, mean: Tensor, variance: Tensor, number: Any) -> None:
        """Add returns with these moments."""
        self.moments.merge(mean, variance, number)

    @torch.no_grad()
    def gathered(self, rollout: Rollout, columns: slice = slice(None)) -> tuple[Tensor, Moments]:
        """The rewards with 0 for rows that are not steps, and the moments of the returns so far.

        Args:
            rollout: the rollout.
            columns: its columns among all.
        """
        rewards, valid_rows = rollout.rewards, rollout.valid_rows
        if len(valid_rows) < rewards.numel():
            are_steps = torch.zeros_like(rewards).view(-1).index_fill_(0, valid_rows, 1.0).view_as(rewards)
            rewards = torch.where(are_steps > 0.0, rewards, 0.0)  # rows that are not steps may have any value
        if rollout.returns_so_far is not None:
            return rewards, moments_of(rollout.returns_so_far.flatten().index_select(0, valid_rows))
        goes_on = self.gamma * (~(rollout.terminated | rollout.truncated)).to(rewards.dtype)
        # return[t] = reward[t] + goes_on[t - 1] * return[t - 1], computed backwards in reversed time.
        terms, decay = rewards.clone(), torch.zeros_like(rewards)
        terms[0] += self.returns[columns]
        decay[1:] = goes_on[:-1]
        returns = discounted_sums(terms=terms.flip(0), decay=decay.flip(0)).flip(0)
        self.returns[columns] = goes_on[-1] * returns[-1]
        return rewards, moments_of(returns.flatten().index_select(0, valid_rows))

    def scaled(self, rewards: Tensor) -> Tensor:
        """The rewards, normalised by the present moments."""
        return (rewards * (self.moments.variance + EPSILON).rsqrt()).clamp_(-LIMIT, LIMIT)


def too_large(
    iteration: int, normalization: Normalization, rollout: Rollout, encode: ObservationEncoder
) -> TrainingError:
    """The error for numbers whose variance is not finite, with the largest of them that counts."""
    rewards, observations = rollout.rewards[..., None], normalization.observations
    are_steps = torch.zeros_like(rewards).view(-1).index_fill_(0, rollout.valid_rows, 1.0).view_as(rewards)
    if observations is not None and not bool(observations.moments.variance.isfinite().all()):
        kind, numbers = "observation", numbers_of(rollout.observations[:-1], encode.layout)
        sizes = numbers.abs() * are_steps * ~observations.moments.variance.isfinite()
    else:
        kind, numbers, sizes = "reward", rewards, rewards.abs() * are_steps
    step, column, number = map(int, np.unravel_index(int(sizes.argmax()), sizes.shape))
    name = encode.names[number] if kind == "observation" else ""
    return TrainingError(
        f"training stopped in iteration {iteration}: {kind}{name} is {float(numbers[step, column, number]):g} in step "
        f"{step} of the rollout, of environment {column} (of agent {column} of all, if environments have several). The "
        f"variance of such numbers is too large for float32, and normalize_{kind}s=True needs it: give smaller "
        f"ones, or set normalize_{kind}s=False. The last checkpoint was written before"
    )
