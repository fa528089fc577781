"""Soft actor-critic as a subclass of TD3 (Haarnoja et al., 2018, "Soft Actor-Critic Algorithms and Applications").

    python examples/sac.py

It is TD3 with other exploration and losses, and a weight of the entropy that is learned. Comments name sections of the
paper. Until learning starts, actions are nearly tanh of standard normals, because the actor's first outputs are small.
"""

from typing import Any

import torch
from torch import Tensor, nn

import hybridppo
from hybridppo.agents.ddpg import critic_loss, targets
from hybridppo.distributions.deterministic import Exploration
from hybridppo.distributions.gaussian import SquashedGaussian
from hybridppo.rollouts.replay import Transitions


class Normals(Exploration, SquashedGaussian):
    """Normals squashed by tanh. The actor's outputs are means and log standard deviations, from -5 to 5."""

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Actions before tanh, as they are stored."""
        return super().sample(outputs.clip(-5.0, 5.0), noise)


class SAC(hybridppo.TD3):
    """TD3 with other exploration and losses."""

    def make_distribution(self) -> Any:
        """Actions drawn from the actor's normals."""
        space: Any = self.action_space
        return Normals(space.low, space.high, space.dtype)

    def make_modules(self) -> Any:
        """The weight of the entropy, which learns from the critics' loss."""
        return {"entropy": nn.ParameterDict({"log_weight": torch.zeros(())})}

    def drawn(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[B, d]` from -1 to 1, and their log-probabilities `[B]` (appendix C)."""
        normals: Any = self.distribution
        outputs = self.actor(observations).clip(-5.0, 5.0)
        actions = normals.sample(outputs, noise)
        return actions.tanh(), normals.log_prob(outputs, actions) + normals.log_half_widths

    def critic_loss(self, minibatch: Transitions) -> tuple[Tensor, Tensor]:
        """The loss of the critics and of the entropy's weight, and the values."""
        weight = self.modules_of["entropy"]["log_weight"]
        with torch.no_grad():
            actions, log_prob = self.drawn(minibatch.next_observations, minibatch.noise)
            values = self.target_critics(minibatch.next_observations, actions) - (weight.exp() * log_prob)[:, None]
            target = targets(returns=minibatch.returns, discounts=minibatch.discounts, next_values=values)
        values = self.critics(minibatch.observations, minibatch.actions.tanh())
        # The target of the entropy is -1 for each number of an action (section 5).
        surplus = (actions.shape[-1] - log_prob).mean()
        return critic_loss(values=values, targets=target) + weight * surplus, values

    def actor_loss(self, minibatch: Transitions) -> Tensor:
        """The loss of the actor."""
        actions, log_prob = self.drawn(minibatch.observations, minibatch.noise)
        values = self.critics(minibatch.observations, actions).amin(-1)
        return (self.modules_of["entropy"]["log_weight"].exp().detach() * log_prob - values).mean()


if __name__ == "__main__":
    config = hybridppo.TD3Config(policy_delay=1, target_noise_std=1.0, hidden_sizes=(64, 64))
    result = hybridppo.train("Pendulum-v1", total_steps=10_000, agent=SAC, config=config)
    print(result.metrics["episode_return_mean"])
