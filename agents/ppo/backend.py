"""The gradient of PPO's loss by autograd, and the step along it.

A backend computes the gradient of a minibatch for the loop (`agents/common/loop.py`): `Backend` by autograd, for any
loss and any networks; `NumpyBackend` and `CompiledBackend`, written out by hand, for the library's own loss and MLPs on
a CPU. `backends.py` chooses.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hybridppo.agents.common.loop import Extras, fill_gradient
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.loss import TAKEN, Loss, LossInputs, approx_kl, clip_fraction
from hybridppo.agents.ppo.stacked_rows import StackedRows
from hybridppo.networks.adam import FlatAdam
from hybridppo.networks.modes import learning_mode
from hybridppo.networks.parameters import FlatParameters
from hybridppo.networks.precision import rounding
from hybridppo.networks.trunks import shared_trunk_of
from hybridppo.spaces.distributions import Distribution


class Optimized(Protocol):
    """What loop and backends need of an agent."""

    config: PPOConfig
    current: PPOConfig
    distribution: Distribution
    parameters: FlatParameters
    optimizer: FlatAdam
    version: int
    should_stop: Callable[[], bool]
    modules_of: nn.ModuleDict

    @property
    def actor_network(self) -> nn.Module:
        """Gives the outputs of the distribution."""
        ...

    @property
    def critic_network(self) -> nn.Module:
        """Gives the values."""
        ...

    @property
    def has_own_loss(self) -> bool:
        """Whether its loss is another than the library's."""
        ...

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """The loss on a minibatch."""
        ...

    def learned_buffers(self) -> list[Tensor]:
        """The buffers that an optimizer step changes."""
        ...


class Backend:
    """The gradient of the loss by autograd: for any networks on any device, and the reference for other backends.

    Views the parameters as they lie when it is made: make another after they have moved.
    """

    written_in: str | None = None
    """The file in which the gradient is written out by hand; None if it follows from the loss."""

    def __init__(self, agent: Optimized) -> None:
        self._agent, self._config, self._parameters = agent, agent.config, agent.parameters
        self._actor, self.critic, self._distribution = agent.actor_network, agent.critic_network, agent.distribution
        trunk = shared_trunk_of(self._actor)
        self._once: Callable[[], AbstractContextManager[None]] = nullcontext if trunk is None else trunk.once
        networks = self._actor, self.critic
        self._learning = learning_mode(*networks, *agent.modules_of.values())
        self.extras = Extras(TAKEN)
        self._rounding = rounding(agent.config.precision, agent.parameters.values.device, networks)

    def threads(self) -> AbstractContextManager[None]:
        """Within it the whole of an update is done, on the threads that suit this backend."""
        return nullcontext()

    def minibatches(self, batch: Any, order: Tensor, sizes: Sequence[int]) -> Iterable[Any]:
        """The batch's rows (with a memory, its sequences) in this order, cut into minibatches as `gradient` takes them.

        One gather for all; minibatches are views.
        """
        return (minibatch.made() for minibatch in batch.gather(order).split(sizes))

    def epoch(self, batch: Any, order: Tensor, sizes: Sequence[int], clip_range: float) -> Tensor | None:
        """All steps of an epoch, as those of `OptimizationLoop.epoch`; None if the loop is to make them.

        Only for a backend that is much faster so; never asked for if an update is made together with others.
        """
        return None

    def gradient(self, minibatch: Any, clip_range: float | Tensor) -> Any:
        """Fill the parameters' gradient with that of the loss.

        Returns:
            `STATISTICS` but the last, `[5]`.
        """
        with self._learning():
            return self._gradient(minibatch, clip_range)

    def _gradient(self, minibatch: Any, clip_range: float | Tensor) -> Tensor:
        loss, statistics = self._loss(minibatch, clip_range)
        fill_gradient(self._parameters, loss.total)
        if loss.extra or self.extras.names:
            self.extras.add(loss.extra, statistics.device)
        return statistics

    def _loss(self, minibatch: Any, clip_range: float | Tensor) -> tuple[Loss, Tensor]:
        """The loss of a minibatch, and `STATISTICS` but the last."""
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
        loss = self._agent.loss(inputs, clip_range)
        with torch.no_grad():
            kl, clipped = approx_kl(log_ratio), clip_fraction(log_ratio, clip_range)
            return loss, torch.stack((loss.policy, loss.value, loss.entropy, kl, clipped))

    def descend(self, clip_range: float | Tensor | None = None) -> Tensor | float:
        """Clip the parameters' gradient, and step along it; its norm before it was clipped."""
        norm = self.clip()
        self._agent.optimizer.step()
        return norm

    def clip(self) -> Tensor | float:
        """Scale the parameters' gradient down to `max_grad_norm`; its norm before."""
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
        """The log-probabilities `[B]` of actions, by the parameters as they are now."""
        outputs = [self._actor(part) for part in self._at_once(observations)]
        return self._distribution.log_prob(torch.cat(outputs), actions)

    def _at_once(self, observations: Tensor | StackedRows) -> Iterable[Tensor]:
        """Observations that pass through together: of images, as many as there are in a minibatch, which fit."""
        if isinstance(observations, StackedRows):
            size = max(1, self._config.minibatch_size)
            return (observations[start : start + size].made() for start in range(0, len(observations), size))
        has_images = observations.dtype == torch.uint8
        return torch.split(observations, max(1, self._config.minibatch_size if has_images else len(observations)))

    @torch.no_grad()
    def outputs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """The actor's outputs of a batch by the parameters as they are now, as `gradient` computes them.

        Returns:
            `[B, outputs]`; of sequences, `[L, S, outputs]`.
        """
        found = []
        for part in batch.split(sizes):
            with self._rounding():
                outputs = part.outputs(self._actor)
            found.append(outputs.float())
        return torch.cat(found, batch.axis)

    @torch.no_grad()
    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """The log-probabilities `[B]` of a batch's actions by the parameters as they are now, as `gradient` sees them.

        Called if products are rounded: rounding depends on the sizes of the minibatches.
        """
        log_probs: Tensor = batch.only_steps(self._distribution.log_prob(self.outputs_of(batch, sizes), batch.actions))
        return log_probs

    @torch.no_grad()
    def log_probs_and_values(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The log-probabilities `[B]` of the batch's actions, and its values, by the parameters as they are now."""
        outputs, values = self._forward(batch)
        return self._distribution.log_prob(outputs, batch.steps().actions), values
