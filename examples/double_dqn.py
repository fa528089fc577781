"""Double DQN: an agent without an actor, whose actions follow from the values of a replay buffer's steps.

    python examples/double_dqn.py

van Hasselt, Guez and Silver, "Deep Reinforcement Learning with Double Q-learning", 2016, after Mnih et al.,
"Human-level control through deep reinforcement learning", 2015. The network gives each action a value. The network that
learns chooses the next action of a target, and the target network gives its value. The target network follows slowly in
each step, as DDPG's does; the papers copy it once in a while.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

import hybridppo
from hybridppo import DDPG, DDPGConfig
from hybridppo.agents.ddpg import targets
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.deterministic import Exploration
from hybridppo.networks.layers import MLP
from hybridppo.rollouts.replay import Transitions


class EpsilonGreedy(Exploration, Categorical):
    """The action with the largest value, or with the probability epsilon a random one.

    Epsilon falls from 1 to 0.05 while noise for `warmup` steps is drawn.
    """

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
        """Noise that decides alone where an action is random; else zeros."""
        epsilon = max(0.05, 1.0 - self.drawn / self.warmup) if self.warmup else 0.05
        self.drawn += int(np.prod(shape))
        is_random = generator.random((*shape, 1)) < epsilon
        return np.where(is_random, 1e9 * super().draw_noise(generator, shape), 0.0).astype(np.float32)


class DoubleDQN(DDPG):
    """DDPG with a network of values in place of actor and critics."""

    def make_distribution(self) -> Any:
        """Epsilon-greedy actions."""
        space: Any = self.action_space
        actions = EpsilonGreedy(space.n, space.start)
        actions.warmup = self.settings["epsilon_steps"]
        return actions

    def make_networks(self, generator: torch.Generator) -> Any:
        """The network of values, which acts and learns."""
        space: Any = self.observation_space
        sizes = space.shape[0], self.config.hidden_sizes, self.distribution.output_size
        network = MLP(*sizes, activation=self.config.activation, generator=generator)
        return network, network

    def critic_loss(self, minibatch: Transitions) -> tuple[Tensor, Tensor]:
        """The loss of the network, and the values."""
        with torch.no_grad():
            best = self.critics(minibatch.next_observations).argmax(-1, keepdim=True)
            next_values = self.target_critics(minibatch.next_observations).gather(-1, best)  # [B, 1]
            target = targets(returns=minibatch.returns, discounts=minibatch.discounts, next_values=next_values)
        values = self.critics(minibatch.observations).gather(-1, minibatch.actions[:, None])
        return smooth_l1_loss(values.squeeze(-1), target), values


if __name__ == "__main__":
    config = DDPGConfig(batch_size=64, hidden_sizes=(64, 64), settings={"epsilon_steps": 5_000})
    result = hybridppo.train("CartPole-v1", total_steps=20_000, config=config, agent=DoubleDQN)
    print(result.metrics["episode_return_mean"])
