"""Gradient steps of DDPG and TD3 on minibatches, by autograd.

A step of the critics, and, as often as the configuration says, one of the actor, after which the target networks
follow. All target networks are one flat tensor, laid out as the parameters are, and follow in one operation.

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning", 2016 (algorithm 1); Fujimoto et al.,
"Addressing Function Approximation Error in Actor-Critic Methods", 2018 (algorithm 1, equations 10 and 14).
"""

import copy
from collections.abc import Callable
from dataclasses import fields
from typing import Protocol

import torch
from torch import Tensor, nn

from hybridppo.agents.common.recording import tried_step
from hybridppo.agents.ddpg.config import DDPGConfig
from hybridppo.agents.ddpg.networks import Critics
from hybridppo.networks.adam import PartAdam
from hybridppo.networks.modes import learning_mode, share_buffers
from hybridppo.networks.parameters import FlatParameters
from hybridppo.rollouts.replay import Transitions
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.recording import GraphRecorder, Record

STATISTICS = ("value_loss", "q_value", "policy_loss")
"""What steps measure, in order: sums over the critics' steps, and, of the last, over the actor's."""


class Optimized(Protocol):
    """What steps need of an agent. Its parameters stay where they are: after they have moved, make other steps."""

    config: DDPGConfig
    actor: nn.Module
    critics: Critics
    parameters: FlatParameters
    optimizer: PartAdam
    """Beside its moments, it has the target networks' parameters, and the sums of `STATISTICS`."""

    @property
    def steps(self) -> "type[AutogradSteps]":
        """What it learns by."""
        ...

    def learned_buffers(self) -> list[Tensor]:
        """The buffers that steps change."""
        ...


class GradientSteps(Protocol):
    """What an agent asks of any backend."""

    def step(self, minibatch: Transitions, noise: Tensor, *, moves_actor: bool) -> None:
        """A step of the critics on a minibatch.

        Args:
            minibatch: `[B, ...]`.
            noise: `[B, d]`, on the actions of targets.
            moves_actor: whether a step of the actor on it, and of the target networks, is to follow.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics of the backend's own since the last call."""
        ...


class AutogradSteps:
    """Steps by autograd, on any device: the reference for the others."""

    def __init__(self, agent: Optimized) -> None:
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

    def step(self, minibatch: Transitions, noise: Tensor, *, moves_actor: bool) -> None:
        """As `GradientSteps.step`."""
        self.critic_step(minibatch, noise)
        if moves_actor:
            self.actor_step(minibatch)
            self._target.lerp_(self._parameters.values.data, self._config.tau)

    def critic_step(self, minibatch: Transitions, noise: Tensor) -> None:
        """A step of the critics."""
        next_observations = minibatch.next_observations
        with torch.no_grad():
            actions = self._target_actor(next_observations).tanh_()
            actions = smoothed(actions=actions, noise=noise, clip=self._config.target_noise_clip)
            target = targets(
                returns=minibatch.returns,
                discounts=minibatch.discounts,
                next_values=self._target_critic(next_observations, actions),
            )
        with self._critic_learning():
            values = self._critic(minibatch.observations, minibatch.actions)
            loss = critic_loss(values=values, targets=target)
            self._descend("critic", loss, self._critic_parameters)
        with torch.no_grad():
            self._statistics[:2] += torch.stack((loss, values.mean()))

    def actor_step(self, minibatch: Transitions) -> None:
        """A step of the actor, towards what the first critic values most."""
        observations = minibatch.observations
        with self._actor_learning():
            loss = -self._critic.first(observations, self._actor(observations).tanh()).mean()
            self._descend("actor", loss, self._actor_parameters)
        with torch.no_grad():
            self._statistics[2:] += loss

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def _descend(self, network: str, loss: Tensor, parameters: list[nn.Parameter]) -> None:
        """Step one network along the gradient of a loss; no other gradient is computed."""
        self._parameters.gradient[self._parameters.range_of(network)].zero_()
        loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        self._optimizer.step_part(network)


class CapturedSteps:
    """`AutogradSteps` recorded as CUDA graphs and replayed, one launch a step: equal to them up to rounding.

    There are two recordings at most, of a step of the critics alone and of one that the actor's follows: minibatches
    are all of one size. Each is made when its kind of step is due first.

    Args:
        agent: whose steps they are.
        record: how; a recording may run the step some times first, which is undone.
    """

    def __init__(self, agent: Optimized, record: Record | None = None) -> None:
        self._agent, self._plain = agent, agent.steps(agent)
        self._parameters, self._optimizer = agent.parameters, agent.optimizer
        device = agent.parameters.values.device
        self._record = record if record is not None else GraphRecorder(accelerator_of(device))
        self._minibatch: Transitions | None = None
        self._noise: Tensor | None = None
        self._replays: dict[bool, Callable[[], object]] = {}
        self._counts = _no_counts()

    def metrics(self) -> dict[str, float]:
        """How many kinds of step were recorded, and how many steps replayed, since the last call."""
        counts, self._counts = self._counts, _no_counts()
        return counts

    def step(self, minibatch: Transitions, noise: Tensor, *, moves_actor: bool) -> None:
        """As `GradientSteps.step`."""
        if self._minibatch is None or self._noise is None:
            self._minibatch, self._noise = minibatch.map(torch.clone), noise.clone()
        else:  # to where recordings look for it
            for field in fields(Transitions):
                getattr(self._minibatch, field.name).copy_(getattr(minibatch, field.name))
            self._noise.copy_(noise)
        if moves_actor not in self._replays:
            self._replays[moves_actor] = self._recorded(self._minibatch, self._noise, moves_actor)
            self._counts["graph_recordings"] += 1
        self._replays[moves_actor]()
        self._counts["graph_replays"] += 1

    def _recorded(self, minibatch: Transitions, noise: Tensor, moves_actor: bool) -> Callable[[], object]:
        slots = self._optimizer.state[self._parameters.values]
        return tried_step(
            lambda: self._record(lambda: self._plain.step(minibatch, noise, moves_actor=moves_actor)),
            lambda replay: replay(),
            [self._parameters.values.data, *slots.values(), *self._agent.learned_buffers()],
            slots["step_critic"],
        )


def _no_counts() -> dict[str, float]:
    return {"graph_recordings": 0, "graph_replays": 0}


def smoothed(*, actions: Tensor, noise: Tensor, clip: float) -> Tensor:
    """The target actor's actions with clipped noise on them, from -1 to 1.

    Args:
        actions: `[B, d]`, from -1 to 1.
        noise: `[B, d]`.
        clip: how large noise may be.
    """
    return (actions + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def targets(*, returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """`returns + discounts * min over critics of next_values`, `[B]`.

    Args:
        returns: `[B]`, the discounted rewards that were observed.
        discounts: `[B]`, of the next observations; 0 after an end.
        next_values: `[B, C]`, as each target critic has it.
    """
    return returns + discounts * next_values.amin(-1)


def critic_loss(*, values: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error over the minibatch, summed over critics.

    Args:
        values: `[B, C]`.
        targets: `[B]`.
    """
    return (values - targets.unsqueeze(-1)).square().mean(0).sum()
