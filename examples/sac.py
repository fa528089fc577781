"""Soft actor-critic as a subclass of TD3 (Haarnoja et al., 2018, "Soft Actor-Critic Algorithms and Applications").

    python examples/sac.py

It is TD3 with other exploration, networks and losses. Comments name sections and appendices of the paper.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import hybridppo
from hybridppo import TD3, TD3Config
from hybridppo.agents.ddpg import Critics, critic_loss, targets
from hybridppo.distributions.deterministic import DeterministicActions, deterministic_actions
from hybridppo.rollouts.replay import Transitions

LOG_STD = (-5.0, 2.0)


class Normals(DeterministicActions):
    """Normals squashed by tanh. The actor's outputs are means and log standard deviations.

    The last number of a row of noise is 0 during warm-up: the action is then the noise itself, a uniform action.
    """

    def __init__(self, low: Any, high: Any, dtype: Any, warmup: int) -> None:
        super().__init__(low, high, dtype, std=1.0, warmup=warmup)
        self.output_size = 2 * self.size

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Actions from -1 to 1."""
        mean, log_std = outputs[..., : self.size], outputs[..., self.size :].clip(*LOG_STD)
        drawn = np.tanh(mean + np.exp(log_std) * noise[..., :-1])
        return np.where(noise[..., -1:] > 0.0, drawn, noise[..., :-1]).astype(np.float32)

    def mode(self, outputs: Any) -> Any:
        """The most probable actions."""
        return np.tanh(outputs[..., : self.size])


def drawn(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions `[B, d]` from -1 to 1, and their log-probabilities `[B]` (appendix C)."""
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD)
    u = mean + log_std.exp() * noise
    log_prob = -(0.5 * noise.square() + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1)
    return u.tanh(), log_prob - (2.0 * (math.log(2.0) - u - softplus(-2.0 * u))).sum(-1)


class EntropyCritics(Critics):
    """The critics and the weight of the entropy, which is learned and saved with them."""

    def __init__(self, critics: Critics) -> None:
        super().__init__(list(critics.critics))
        self.log_alpha = nn.Parameter(torch.zeros(()))


class SAC(TD3):
    """TD3 with other exploration, networks and losses."""

    def critic_loss(self, minibatch: Transitions) -> tuple[Tensor, Tensor]:
        """The loss of the critics and of the entropy's weight, and the values."""
        following, weight = minibatch.next_observations, self.critics.log_alpha
        with torch.no_grad():
            actions, log_prob = drawn(self.actor(following), minibatch.noise)
            next_values = self.target_critics(following, actions) - (weight.exp() * log_prob)[:, None]
            target = targets(returns=minibatch.returns, discounts=minibatch.discounts, next_values=next_values)
        values = self.critics(minibatch.observations, minibatch.actions)
        # The target of the entropy is -1 for each number of an action (section 5).
        surplus = (actions.shape[-1] - log_prob).mean()
        return critic_loss(values=values, targets=target) + weight * surplus, values

    def actor_loss(self, minibatch: Transitions) -> Tensor:
        """The loss of the actor."""
        actions, log_prob = drawn(self.actor(minibatch.observations), minibatch.noise)
        values = self.critics(minibatch.observations, actions).amin(-1)
        return (self.critics.log_alpha.exp().detach() * log_prob - values).mean()

    def make_distribution(self) -> DeterministicActions:
        """Uniform actions during warm-up, then actions drawn from the actor's normals."""
        space = deterministic_actions(self.action_space, std=1.0)
        return Normals(space.low, space.high, space.dtype, self.config.learning_starts)

    def make_networks(self, generator: torch.Generator) -> Any:
        """The actor, and the critics together with the weight of the entropy."""
        actor, critics = super().make_networks(generator)
        return actor, EntropyCritics(critics)


if __name__ == "__main__":
    config = TD3Config(policy_delay=1, target_noise_std=1.0, hidden_sizes=(64, 64))
    result = hybridppo.train("Pendulum-v1", total_steps=10_000, agent=SAC, config=config)
    print(result.metrics["episode_return_mean"])
