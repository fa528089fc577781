"""A Beta distribution for actions of a `Box` with finite bounds.

    python examples/beta.py

Chou, Maturana and Scherer, "Improving Stochastic Policy Gradients in Continuous Control with Deep Reinforcement
Learning using the Beta Distribution", 2017. No action is clipped. Both concentrations are above 1, so that the density
has one peak.
"""

import torch
from gymnasium.spaces import Box
from torch import Tensor, distributions
from torch.nn.functional import softplus

import hybridppo

ATTEMPTS = 6


def gamma(concentration: Tensor, noise: Tensor) -> Tensor:
    """Draws of gamma distributions with concentrations of at least 1 (Marsaglia and Tsang, 2000).

    At least 95 % of the attempts succeed.
    """
    normal, other = noise.unflatten(-1, (2, ATTEMPTS, -1)).unbind(-3)
    d = (concentration - 1.0 / 3.0).unsqueeze(-2)
    v = (1.0 + normal / (9.0 * d).sqrt()).clamp(min=1e-3) ** 3
    succeeds = torch.special.log_ndtr(other) < 0.5 * normal.square() + d * (1.0 - v + v.log())
    return (d * v).gather(-2, succeeds.int().argmax(-2, keepdim=True)).squeeze(-2)


class Beta(hybridppo.ActionDistribution):
    """Actions from 0 to 1, scaled to the bounds."""

    def __init__(self, space: Box) -> None:
        super().__init__(space)
        self.output_size, self.noise_size = 2 * self.size, 4 * ATTEMPTS * self.size
        self.low, high = (torch.from_numpy(bound).float().flatten() for bound in (space.low, space.high))
        self.width = high - self.low

    def beta(self, outputs: Tensor) -> distributions.Beta:
        """The distributions of the single numbers."""
        first, second = (1.0 + softplus(outputs)).chunk(2, -1)
        return distributions.Beta(first, second, validate_args=False)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Two gamma variables give a Beta one."""
        first, second = gamma(1.0 + softplus(outputs), noise).chunk(2, -1)
        return (first / (first + second)).clamp(1e-6, 1.0 - 1e-6)

    def mode(self, outputs: Tensor) -> Tensor:
        """The peaks of the densities."""
        first, second = softplus(outputs).chunk(2, -1)
        return first / (first + second)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Of the actions in units of the environment."""
        return (self.beta(outputs).log_prob(actions) - self.width.log()).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Likewise."""
        return (self.beta(outputs).entropy() + self.width.log()).sum(-1)

    def kl(self, old_outputs: Tensor, new_outputs: Tensor) -> Tensor:
        """A sum over the numbers of an action."""
        return distributions.kl_divergence(self.beta(old_outputs), self.beta(new_outputs)).sum(-1)

    def to_env(self, actions: Tensor) -> Tensor:
        """Scaled to the bounds."""
        return self.low + self.width * actions


if __name__ == "__main__":
    result = hybridppo.train("Pendulum-v1", total_steps=50_000, action_distribution=Beta)
    print(result.metrics["episode_return_mean"])
