"""Optimizer steps on minibatches: what one does, and its plain form, by autograd.

A step fills `parameters.gradient` with the gradient of the agent's loss (`loss.py`) over a minibatch, scales it down to
`max_grad_norm`, steps the optimizer, and measures `STATISTICS`. `numpy_steps.py` and `compiled_steps.py` do the same by
hand, for the library's own loss.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hybridppo.agents.ppo.loss import LossInputs
from hybridppo.agents.ppo.losses import approx_kl, clip_fraction
from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.networks.modes import learning_mode
from hybridppo.networks.precision import rounding
from hybridppo.networks.trunks import shared_trunk_of
from hybridppo.system.interruption import Stopped

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
"""What a step measures, in order; `grad_norm` is that before it was scaled down."""


class OptimizerSteps(Protocol):
    """What PPO asks of any form."""

    written_in: str | None
    """Where its gradient is written out by hand; None where it follows from the loss."""

    def threads(self) -> AbstractContextManager[None]:
        """Within it the whole of an update is done, on the threads that suit this form."""
        ...

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values `[B]` of observations `[B, obs]`, without a gradient."""
        ...

    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """The log-probabilities `[B]` of a batch's actions by the parameters as they are now, as the steps see them.

        Asked for if the steps round products: `sizes` are those of the minibatches, on which rounding depends.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """What else is to be told of the update that has ended."""
        ...

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One epoch: the batch's rows in this order, cut into minibatches of these sizes, a step on each.

        With a memory, a `SequenceBatch` and its sequences instead. Its advantages are those that are learned from, as
        `Batch.weighed` gives them.

        Returns:
            `STATISTICS` of every step, `[len(sizes), 6]`, on the agent's device.

        Raises:
            Stopped: before a step where the agent's `should_stop` says so.
        """
        ...


class AutogradSteps:
    """The plain form, for any networks on any device, and the reference for others."""

    written_in: str | None = None

    def __init__(self, agent: "PPO") -> None:
        self._agent = agent
        self._actor, self._critic, self._distribution = agent.actor_network, agent.critic_network, agent.distribution
        self._parameters, self._optimizer, self._config = agent.parameters, agent.optimizer, agent.config
        trunk = shared_trunk_of(self._actor)
        self._once: Callable[[], AbstractContextManager[None]] = nullcontext if trunk is None else trunk.once
        networks = self._actor, self._critic
        self._learning = learning_mode(*networks)
        self._rounding = rounding(agent.config.precision, agent.parameters.values.device, networks)

    def threads(self) -> AbstractContextManager[None]:
        """As many as torch has."""
        return nullcontext()

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        # Of images, as many at once as there are in a minibatch: where its gradient fits, they do.
        has_images = observations.dtype == torch.uint8
        size = max(1, self._config.minibatch_size if has_images else len(observations))
        return torch.cat([self._critic(part).squeeze(-1) for part in torch.split(observations, size)])

    @torch.no_grad()
    def log_probs_and_values(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The log-probabilities `[B]` of the batch's actions, and its values, by the parameters as they are now."""
        outputs, values = self._forward(batch)
        return self._distribution.log_prob(outputs, batch.steps().actions), values

    @torch.no_grad()
    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """Those of a batch, cut into minibatches of these sizes, as `gradient` computes them: with rounded products."""
        found = []
        for part in batch.split(sizes):
            with self._rounding():
                outputs = self._actor(part.inputs)
            found.append(self._distribution.log_prob(outputs.float(), part.actions))
        return torch.cat(found)

    @torch.no_grad()
    def log_probs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The log-probabilities `[B]` of actions, by the parameters as they are now."""
        size = max(1, self._config.minibatch_size if observations.dtype == torch.uint8 else len(observations))
        outputs = [self._actor(part) for part in torch.split(observations, size)]
        return self._distribution.log_prob(torch.cat(outputs), actions)

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the epoch; minibatches are views."""
        shuffled = batch.gather(torch.as_tensor(order, device=self._parameters.values.device))
        statistics: list[Tensor] = []
        for minibatch in shuffled.split(sizes):
            if self._agent.should_stop():
                raise Stopped
            statistics.append(self.step(minibatch, clip_range))
        return torch.stack(statistics)

    def step(self, batch: Any, clip_range: float | Tensor) -> Tensor:
        """Gradient, clipping, step; `STATISTICS`."""
        statistics = self.gradient(batch, clip_range)
        return torch.cat((statistics, self.descend()))

    def descend(self) -> Tensor:
        """Clip the parameters' gradient, and step along it; its norm `[1]`, the last of `STATISTICS`."""
        gradient = self._parameters.gradient
        norm: Tensor = gradient.norm()
        gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step()
        return norm.reshape(1)

    def _forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The actor's outputs `[B, outputs]` and the critic's values `[B]` of the rows that are steps."""
        with self._once():
            rows = batch.inputs
            return self._actor(rows), self._critic(rows).squeeze(-1)

    def gradient(self, batch: Any, clip_range: float | Tensor) -> Tensor:
        """Fill the parameters' gradient with that of the loss; `STATISTICS` but the last."""
        with self._learning():
            return self._gradient(batch, clip_range)

    def _gradient(self, batch: Any, clip_range: float | Tensor) -> Tensor:
        with self._rounding():
            outputs, values = (tensor.float() for tensor in self._forward(batch))
        batch = batch.steps()
        log_prob, entropy = self._distribution.log_prob_and_entropy(outputs, batch.actions)
        log_ratio = log_prob - batch.log_probs
        clip_range = batch.clip_range(clip_range)
        inputs = LossInputs(
            log_ratio=log_ratio,
            advantages=batch.advantages,
            entropy=entropy,
            values=values,
            old_values=batch.values,
            returns=batch.returns,
        )
        loss = self._agent.loss(inputs, clip_range)
        self._parameters.gradient.zero_()
        loss.total.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            kl, clipped = approx_kl(log_ratio), clip_fraction(log_ratio, clip_range)
            return torch.stack((loss.policy, loss.value, loss.entropy, kl, clipped))
