"""Normal distributions between the bounds of a `Box`: none of the probability lies outside, so no action is clipped.

    python examples/truncated_normal.py

Means are between the bounds. Deviations are parameters that depend on no observation, as those of PPO's own normal
distributions.
"""

import math

import torch
from gymnasium.spaces import Box
from torch import Tensor
from torch.special import ndtr, ndtri

import hybridppo


class TruncatedNormal(hybridppo.ActionDistribution):
    """Actions from -1 to 1, scaled to the bounds."""

    def __init__(self, space: Box) -> None:
        super().__init__(space)
        self.output_size, self.free = 2 * self.size, [-0.5] * self.size
        low, high = (torch.from_numpy(bound).float().flatten() for bound in (space.low, space.high))
        self.center, self.half_width = (high + low) / 2.0, (high - low) / 2.0

    def parts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Means, deviations, both bounds in deviations from the mean, and what the density is divided by."""
        mean, std = outputs[..., : self.size].tanh(), outputs[..., self.size :].exp()
        low, high = (-1.0 - mean) / std, (1.0 - mean) / std
        return mean, std, low, high, std * self.half_width * math.sqrt(2.0 * math.pi) * (ndtr(high) - ndtr(low))

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """The inverse of the cumulative probability, at a uniform number."""
        mean, std, low, high, _ = self.parts(outputs)
        return (mean + std * ndtri(torch.lerp(ndtr(low), ndtr(high), ndtr(noise)))).clamp(-1.0, 1.0)

    def mode(self, outputs: Tensor) -> Tensor:
        """The means."""
        return outputs[..., : self.size].tanh()

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Of the actions in units of the environment."""
        mean, std, _, _, divisor = self.parts(outputs)
        return (-0.5 * ((actions - mean) / std).square() - divisor.log()).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Likewise."""
        _, std, low, high, divisor = self.parts(outputs)
        of_bounds = low * (-0.5 * low.square()).exp() - high * (-0.5 * high.square()).exp()
        return (divisor.log() + 0.5 + 0.5 * of_bounds * std * self.half_width / divisor).sum(-1)

    def to_env(self, actions: Tensor) -> Tensor:
        """Scaled to the bounds."""
        return self.center + self.half_width * actions


if __name__ == "__main__":
    result = hybridppo.train("Pendulum-v1", total_steps=50_000, action_distribution=TruncatedNormal)
    print(result.metrics["episode_return_mean"])
