"""The gradient of PPO's loss by autograd, and the step along it.

A backend computes the gradient of a minibatch for the loop (`agents/loop.py`): `Backend` by autograd, for any
loss and any networks; `NumpyBackend` and `CompiledBackend`, written out by hand, for the library's own loss and MLPs on
a CPU. `choosing.py` chooses.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hybridppo.agents.loop import Extras, LearningAgent, fill_gradient
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.loss import (
    STATISTICS,
    TAKEN,
    Loss,
    LossInputs,
    approx_kl,
    checked,
    clip_fraction,
    without_padding,
)
from hybridppo.agents.ppo.stacked_rows import StackedRows
from hybridppo.distributions.base import Distribution
from hybridppo.networks.actors import shared_trunk_of
from hybridppo.networks.modes import learning_mode
from hybridppo.networks.precision import rounding


class Optimized(LearningAgent, Protocol):
    """What backends need of an agent."""

    config: PPOConfig
    current: PPOConfig
    distribution: Distribution
    modules_of: nn.ModuleDict

    @property
    def actor_network(self) -> nn.Module:
        """Computes the outputs of the distribution."""

    @property
    def critic_network(self) -> nn.Module:
        """Computes the values."""

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is a custom one."""

    @property
    def is_the_librarys(self) -> bool:
        """Whether the loss and the networks are the library's."""

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """The loss of a minibatch."""


class Backend:
    """The gradient of the loss by autograd, for any networks on any device; the reference for other backends.

    It views the parameters in their present memory: make another backend after they have moved.
    """

    written_in: str | None = None
    """The file with the gradient written out by hand; None if autograd computes it."""

    def __init__(self, agent: Optimized) -> None:
        self._agent, self._config, self._parameters = agent, agent.config, agent.parameters
        self._actor, self.critic, self._distribution = agent.actor_network, agent.critic_network, agent.distribution
        trunk = shared_trunk_of(self._actor)
        self._once: Callable[[], AbstractContextManager[None]] = nullcontext if trunk is None else trunk.once
        networks = self._actor, self.critic
        self._learning = learning_mode(*networks, *agent.modules_of.values())
        self.extras = Extras(TAKEN)
        self._rounding = rounding(agent.config.precision, agent.parameters.values.device, networks)

    def num_measured(self, setting: Any) -> int:
        """How many numbers `gradient` returns."""
        return len(STATISTICS) - 1

    def threads(self) -> AbstractContextManager[None]:
        """A context for a whole update, with the number of threads that suits this backend."""
        return nullcontext()

    def minibatches(self, batch: Any, order: Tensor, sizes: Sequence[int]) -> Iterable[Any]:
        """The rows of a batch (or its sequences) in this order, cut into minibatches for `gradient`.

        All rows are gathered at once; minibatches are views.
        """
        return (minibatch.made() for minibatch in batch.gather(order).split(sizes))

    def epoch(self, batch: Any, order: Tensor, sizes: Sequence[int], clip_range: float) -> Tensor | None:
        """All steps of an epoch, as `OptimizationLoop.epoch`; None if the loop is to make them.

        Some backends are much faster this way. The loop does not call it if several processes share an update.
        """
        return None

    def gradient(self, minibatch: Any, clip_range: float | Tensor) -> Any:
        """Fill the gradient of the parameters with that of the loss.

        Returns:
            All of `STATISTICS` except the last, `[5]`.
        """
        with self._learning():
            loss, statistics = self._loss(minibatch, clip_range)
            fill_gradient(self._parameters, loss.total)
        self.extras.add(loss.extra, statistics.device)
        return statistics

    def _loss(self, minibatch: Any, clip_range: float | Tensor) -> tuple[Loss, Tensor]:
        """The loss of a minibatch, and all of `STATISTICS` except the last."""
        with self._rounding():
            outputs, values = (tensor.float() for tensor in self._forward(minibatch))
        steps = minibatch.steps()
        log_prob, entropy = self._distribution.log_prob_and_entropy(outputs, steps.actions)
        log_ratio = log_prob - steps.log_probs
        clip_range = steps.clip_range(clip_range)
        inputs = LossInputs(
            observations=steps.observations,
            actions=steps.actions,
            outputs=outputs,
            log_ratio=log_ratio,
            advantages=steps.advantages,
            entropy=entropy,
            values=values,
            old_values=steps.values,
            returns=steps.returns,
            old_outputs=steps.old_outputs,
            agent=self._agent,
        )
        if steps.counted is not None:
            inputs = without_padding(inputs, steps.counted)
        loss = self._agent.loss(inputs, clip_range)
        if self._agent.has_own_loss:
            loss = checked(loss, values)
        with torch.no_grad():
            kl, clipped = approx_kl(inputs.log_ratio), clip_fraction(inputs.log_ratio, clip_range)
            statistics = torch.stack((loss.policy, loss.value, loss.entropy, kl, clipped))
        if steps.counted is not None:  # means over all rows become means over those that count
            share = steps.counted.float().mean()
            loss, statistics = replace(loss, total=loss.total / share), statistics / share
        return loss, statistics

    def descend(self, clip_range: float | Tensor | None = None) -> Tensor | float:
        """Clip the gradient and step along it; return its norm before clipping."""
        norm = self.clip()
        self._agent.optimizer.step()
        return norm

    def clip(self) -> Tensor | float:
        """Clip the gradient to `max_grad_norm`; return its norm before."""
        gradient = self._parameters.gradient
        norm: Tensor = gradient.norm()
        gradient.mul_((self._agent.current.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _forward(self, minibatch: Any) -> tuple[Tensor, Tensor]:
        """The actor's outputs `[B, outputs]` and the critic's values `[B]` of the rows that are steps."""
        with self._once():
            outputs, values = minibatch.outputs(self._actor), minibatch.values_by(self.critic)
        return minibatch.only_steps(outputs), minibatch.only_steps(values)

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """The critic's values `[B]` of observations `[B, *row]`, without a gradient."""
        return torch.cat([self.critic(part).squeeze(-1) for part in self._at_once(observations)])

    @torch.no_grad()
    def log_probs(self, observations: Tensor | StackedRows, actions: Tensor) -> Tensor:
        """The present log-probabilities `[B]` of actions."""
        outputs = [self._actor(part) for part in self._at_once(observations)]
        return self._distribution.log_prob(torch.cat(outputs), actions)

    def _at_once(self, observations: Tensor | StackedRows) -> Iterable[Tensor]:
        """Observations in parts that fit into memory: images in parts as large as a minibatch, others as one part."""
        if isinstance(observations, StackedRows):
            size = max(1, self._config.minibatch_size)
            return (observations[start : start + size].made() for start in range(0, len(observations), size))
        has_images = observations.dtype == torch.uint8
        return torch.split(observations, max(1, self._config.minibatch_size if has_images else len(observations)))

    @torch.no_grad()
    def outputs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """The present outputs of the actor for a batch, with the rounding of `gradient`.

        Returns:
            `[B, outputs]`; for sequences, `[L, S, outputs]`.
        """
        found = []
        for part in batch.split(sizes):
            with self._rounding():
                outputs = part.outputs(self._actor)
            found.append(outputs.float())
        return torch.cat(found, batch.axis)

    @torch.no_grad()
    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """The present log-probabilities `[B]` of a batch's actions, with the rounding of `gradient`.

        Rounding depends on the sizes of the minibatches.
        """
        log_probs: Tensor = batch.only_steps(self._distribution.log_prob(self.outputs_of(batch, sizes), batch.actions))
        return log_probs

    @torch.no_grad()
    def log_probs_and_values(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The present log-probabilities `[B]` of a batch's actions, and its values."""
        outputs, values = self._forward(batch)
        return self._distribution.log_prob(outputs, batch.steps().actions), values
