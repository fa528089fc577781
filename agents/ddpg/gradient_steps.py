"""Optimizer steps of DDPG and TD3 on minibatches, by autograd.

A step of the critics, and, as often as the configuration says, one of the actor, after which the target networks
follow. All target networks are one flat tensor, laid out as the parameters are, and follow in one operation.
"""

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hybridppo.agents.ddpg.targets import critic_loss, smoothed, targets
from hybridppo.networks.modes import learning_mode, share_buffers
from hybridppo.networks.parameters import FlatParameters
from hybridppo.rollouts.replay import Transitions

if TYPE_CHECKING:
    from hybridppo.agents.ddpg.ddpg import DDPG

STATISTICS = ("value_loss", "q_value", "policy_loss")
"""What steps measure, in order: sums over the critics' steps, and, of the last, over the actor's."""


class GradientSteps(Protocol):
    """What an agent asks of any form."""

    def step(self, batch: Transitions, noise: Tensor, *, moves_actor: bool) -> None:
        """A step of the critics on a minibatch.

        Args:
            batch: `[B, ...]`.
            noise: `[B, d]`, on the actions of targets.
            moves_actor: whether a step of the actor on it, and of the target networks, is to follow.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """What the form has to say of the steps since the last call."""
        ...


class StepByStep(ABC):
    """A gradient step as its three parts."""

    def step(self, batch: Transitions, noise: Tensor, *, moves_actor: bool) -> None:
        """A step of the critics on a minibatch; one of the actor too, and of the target networks, where asked for."""
        self.critic_step(batch, noise)
        if moves_actor:
            self.actor_step(batch)
            self.follow()

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    @abstractmethod
    def critic_step(self, batch: Transitions, noise: Tensor) -> None:
        """A step of the critics on a minibatch."""

    @abstractmethod
    def actor_step(self, batch: Transitions) -> None:
        """A step of the actor on a minibatch, towards what the first critic values most."""

    @abstractmethod
    def follow(self) -> None:
        """Move the target networks towards the others."""


class AutogradSteps(StepByStep):
    """The plain form, for any device, and the reference for others.

    Args:
        agent: with its parameters where they stay.
    """

    def __init__(self, agent: "DDPG") -> None:
        self._actor, self._critic = agent.actor, agent.critics
        self._parameters, self._optimizer, self._config = agent.parameters, agent.optimizer, agent.config
        slots = agent.optimizer.state[agent.parameters.values]
        self._target, self._statistics = slots["target"], slots["statistics"]
        # The target networks are views of the flat tensor that lies with the optimizer's, and moves with them.
        self._target_actor, self._target_critic = copy.deepcopy(self._actor), copy.deepcopy(self._critic)
        networks = {"actor": self._target_actor, "critic": self._target_critic}
        FlatParameters(networks, agent.parameters.alignment).rebind(self._target)
        for target, network in ((self._target_actor, self._actor), (self._target_critic, self._critic)):
            share_buffers(target, network)
            target.eval()
        self._actor_learning, self._critic_learning = learning_mode(self._actor), learning_mode(self._critic)
        self._actor_parameters = list(self._actor.parameters())
        self._critic_parameters = list(self._critic.parameters())

    def critic_step(self, batch: Transitions, noise: Tensor) -> None:
        """A step of the critics on a minibatch."""
        config = self._config
        with torch.no_grad():
            actions = self._target_actor(batch.next_observations).tanh_()
            actions = smoothed(actions=actions, noise=noise, clip=config.target_noise_clip)
            next_values = self._target_critic(batch.next_observations, actions)
            wanted = targets(returns=batch.returns, discounts=batch.discounts, next_values=next_values)
        with self._critic_learning():
            values = self._critic(batch.observations, batch.actions)
            loss = critic_loss(values=values, targets=wanted)
            self._descend("critic", loss, self._critic_parameters)
        with torch.no_grad():
            self._statistics[:2] += torch.stack((loss, values.mean()))

    def actor_step(self, batch: Transitions) -> None:
        """A step of the actor on a minibatch, towards what the first critic values most."""
        with self._actor_learning():
            values = self._critic.first(batch.observations, self._actor(batch.observations).tanh())
            loss = -values.mean()
            self._descend("actor", loss, self._actor_parameters)
        with torch.no_grad():
            self._statistics[2:] += loss

    def follow(self) -> None:
        """Move the target networks towards the others."""
        self._target.lerp_(self._parameters.values.data, self._config.tau)

    def _descend(self, network: str, loss: Tensor, parameters: list[torch.nn.Parameter]) -> None:
        """Step one network along the gradient of a loss; no other gradient is computed."""
        self._parameters.gradient[self._parameters.range_of(network)].zero_()
        loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        self._optimizer.step_part(network)
