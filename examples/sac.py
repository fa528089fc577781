"""Soft actor-critic as a subclass of TD3 (Haarnoja et al., 2018, "Soft Actor-Critic Algorithms and Applications").

    python examples/sac.py

It is TD3 with other exploration and losses, and a weight of the entropy that is learned. Comments name sections of the
paper.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hybridppo
from hybridppo import TD3, TD3Config
from hybridppo.agents.ddpg import critic_loss, targets
from hybridppo.distributions.deterministic import DeterministicActions
from hybridppo.distributions.gaussian import SquashedGaussian
from hybridppo.rollouts.replay import Transitions


class Normals(DeterministicActions):
    """Normals squashed by tanh. The actor's outputs are means and log standard deviations, which are bounded.

    The last number of a row of noise is 0 during warm-up: the action is then the noise itself, a uniform action.
    """

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Actions from -1 to 1."""
        mean, log_std = outputs[..., : self.size], outputs[..., self.size :].clip(-5.0, 2.0)
        drawn = np.tanh(mean + np.exp(log_std) * noise[..., :-1])
        return np.where(noise[..., -1:] > 0.0, drawn, noise[..., :-1]).astype(np.float32)

    def mode(self, outputs: Any) -> Any:
        """The deterministic actions."""
        return super().mode(outputs[..., : self.size])


class SAC(TD3):
    """TD3 with other exploration and losses."""

    def make_distribution(self) -> Any:
        """Uniform actions during warm-up, then actions drawn from the actor's normals."""
        space: Any = self.action_space
        actions = Normals(space.low, space.high, space.dtype, std=1.0, warmup=self.config.learning_starts)
        actions.output_size *= 2
        return actions

    def make_modules(self) -> Any:
        """The weight of the entropy, which learns from the critics' loss."""
        return {"entropy": nn.ParameterDict({"log_weight": torch.zeros(())})}

    def drawn(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[B, d]` from -1 to 1, and their log-probabilities `[B]` (appendix C)."""
        mean, log_std = self.actor(observations).chunk(2, -1)
        outputs, ones = torch.cat((mean, log_std.clip(-5.0, 2.0)), -1), np.ones(mean.shape[-1])
        normals = SquashedGaussian(-ones, ones)
        actions = normals.sample(outputs, noise)
        return actions.tanh(), normals.log_prob(outputs, actions)

    def critic_loss(self, minibatch: Transitions) -> tuple[Tensor, Tensor]:
        """The loss of the critics and of the entropy's weight, and the values."""
        weight = self.modules_of["entropy"]["log_weight"]
        with torch.no_grad():
            actions, log_prob = self.drawn(minibatch.next_observations, minibatch.noise)
            values = self.target_critics(minibatch.next_observations, actions) - (weight.exp() * log_prob)[:, None]
            target = targets(returns=minibatch.returns, discounts=minibatch.discounts, next_values=values)
        values = self.critics(minibatch.observations, minibatch.actions)
        # The target of the entropy is -1 for each number of an action (section 5).
        surplus = (actions.shape[-1] - log_prob).mean()
        return critic_loss(values=values, targets=target) + weight * surplus, values

    def actor_loss(self, minibatch: Transitions) -> Tensor:
        """The loss of the actor."""
        actions, log_prob = self.drawn(minibatch.observations, minibatch.noise)
        values = self.critics(minibatch.observations, actions).amin(-1)
        return (self.modules_of["entropy"]["log_weight"].exp().detach() * log_prob - values).mean()


if __name__ == "__main__":
    config = TD3Config(policy_delay=1, target_noise_std=1.0, hidden_sizes=(64, 64))
    result = hybridppo.train("Pendulum-v1", total_steps=10_000, agent=SAC, config=config)
    print(result.metrics["episode_return_mean"])
