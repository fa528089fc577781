"""The gradients of DDPG and TD3 by autograd, and the steps along them.

A step has a pass for the critics and, as often as the configuration says, one for the actor, after which the target
networks follow. The losses are methods of the agent, which a subclass may override.

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning", 2016 (algorithm 1); Fujimoto et al.,
"Addressing Function Approximation Error in Actor-Critic Methods", 2018 (algorithm 1, equations 10 and 14).
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hybridppo.agents.ddpg.config import DDPGConfig
from hybridppo.agents.ddpg.networks import Critics
from hybridppo.agents.loop import Extras, fill_gradient
from hybridppo.networks.modes import learning_mode
from hybridppo.networks.parameters import FlatParameters, PartAdam
from hybridppo.rollouts.replay import Transitions

STATISTICS = ("value_loss", "q_value", "policy_loss")
"""The statistics of a step, in order: the first two from the pass of the critics, the last from that of the actor."""
CRITIC, ACTOR = "critic", "actor"
"""The passes of a step, named after the networks that learn."""


class Optimized(Protocol):
    """What backends need of an agent. A backend is valid until the parameters move; then another must be made."""

    config: DDPGConfig
    actor: nn.Module
    critics: Critics
    parameters: FlatParameters
    optimizer: PartAdam
    """Its state also has the flat parameters of the target networks."""

    @property
    def has_own_loss(self) -> bool:
        """Whether a subclass has other losses."""

    def critic_loss(self, minibatch: Transitions) -> tuple[Tensor, Tensor]:
        """The loss of the critics, a scalar, and their values `[B, C]`."""

    def actor_loss(self, minibatch: Transitions) -> Tensor:
        """The loss of the actor, a scalar."""


class Backend:
    """Gradients by autograd, on any device: the reference for other backends."""

    def __init__(self, agent: Optimized) -> None:
        self._agent, self._parameters, self._optimizer = agent, agent.parameters, agent.optimizer
        self._target = agent.optimizer.state[agent.parameters.values]["target"]
        networks = {CRITIC: agent.critics, ACTOR: agent.actor}
        self._learning = {name: learning_mode(network) for name, network in networks.items()}
        self.extras = Extras()

    def num_measured(self, network: str) -> int:
        """How many numbers `gradient` returns."""
        return 2 if network == CRITIC else 1

    def gradient(self, minibatch: Transitions, network: str) -> Any:
        """Fill the gradient of one network with that of its loss; no other gradient is computed.

        Returns:
            `[2]` or `[1]`: the part of `STATISTICS` that is measured in this pass.
        """
        with self._learning[network]():
            if network == CRITIC:
                loss, values = self._agent.critic_loss(minibatch)
                measured = torch.stack((loss.detach(), values.detach().mean()))
            else:
                loss = self._agent.actor_loss(minibatch)
                measured = loss.detach().reshape(1)
            fill_gradient(self._parameters, loss, network)
        return measured

    def descend(self, network: str) -> None:
        """Step one network along its gradient; the target networks follow the actor's steps."""
        self._optimizer.step_part(network)
        if network == ACTOR:
            self._target.lerp_(self._parameters.values.data, self._agent.config.tau)


def smoothed(*, actions: Tensor, noise: Tensor, clip: float) -> Tensor:
    """The target actor's actions with clipped noise, from -1 to 1.

    Args:
        actions: `[B, d]`, from -1 to 1.
        noise: `[B, d]`.
        clip: the largest absolute value of the noise.
    """
    return (actions + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def targets(*, returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """`returns + discounts * min over critics of next_values`, `[B]`.

    Args:
        returns: `[B]`, the discounted rewards of the steps.
        discounts: `[B]`, of the next observations; 0 after a terminated episode.
        next_values: `[B, C]`, from each target critic.
    """
    return returns + discounts * next_values.amin(-1)


def critic_loss(*, values: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error over the minibatch, summed over critics.

    Args:
        values: `[B, C]`.
        targets: `[B]`.
    """
    return (values - targets.unsqueeze(-1)).square().mean(0).sum()
