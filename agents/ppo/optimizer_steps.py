"""The gradient steps of PPO: what one does, and its plain form, by autograd.

A step fills `parameters.gradient` with the gradient over a minibatch of

    policy_loss - entropy_coef * mean(entropy) + value_coef * value_loss

scales it down to `max_grad_norm`, steps the optimizer, and measures `STATISTICS`. `numpy_steps.py` does the same by
hand.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.losses import approx_kl, clip_fraction, clipped_value_loss, normalize, policy_loss, value_loss
from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.interruption import Stopped
from hybridppo.networks.precision import autocast

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
"""What a step measures, in order; `grad_norm` is that before it was scaled down."""


class OptimizerSteps(Protocol):
    """What PPO asks of any form."""

    def threads(self) -> AbstractContextManager[None]:
        """Within it the whole of an update is done, on the threads that suit this form."""
        ...

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values `[B]` of observations `[B, obs]`, without a gradient."""
        ...

    def metrics(self) -> dict[str, float]:
        """What else is to be told of the update that has ended."""
        ...

    def epoch(self, batch: Batch, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One pass over the batch: its rows in this order, cut into minibatches of these sizes, a step on each.

        Returns:
            `STATISTICS` of every step, `[len(sizes), 6]`, on the agent's device.

        Raises:
            Stopped: before a step where the agent's `should_stop` says so.
        """
        ...


class AutogradSteps:
    """The plain form, for any networks on any device, and the reference for others."""

    def __init__(self, agent: "PPO") -> None:
        self._agent = agent
        self._actor, self._critic, self._distribution = agent.actor, agent.critic, agent.distribution
        self._parameters, self._optimizer, self._config = agent.parameters, agent.optimizer, agent.config
        self._autocast = autocast(agent.config.precision, agent.parameters.values.device)

    def threads(self) -> AbstractContextManager[None]:
        """As many as torch has."""
        return nullcontext()

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        # Of images, as many at once as there are in a minibatch: where its gradient fits, they do.
        is_image = observations.ndim > 2
        size = max(1, self._config.minibatch_size if is_image else len(observations))
        return torch.cat([self._critic(part).squeeze(-1) for part in torch.split(observations, size)])

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def epoch(self, batch: Batch, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the pass; minibatches are views."""
        shuffled = batch.gather(torch.as_tensor(order, device=batch.returns.device))
        statistics: list[Tensor] = []
        for minibatch in shuffled.split(sizes):
            if self._agent.should_stop():
                raise Stopped
            statistics.append(self.step(minibatch, clip_range))
        return torch.stack(statistics)

    def step(self, batch: Batch, clip_range: float | Tensor) -> Tensor:
        """Loss, gradient, clipping, step; `STATISTICS`."""
        config = self._config
        with self._autocast:
            outputs = self._actor(batch.observations).float()
            values = self._critic(batch.observations).squeeze(-1).float()
        log_prob, entropy = self._distribution.log_prob_and_entropy(outputs, batch.actions)
        log_ratio = log_prob - batch.log_probs
        advantages = normalize(batch.advantages) if config.normalize_advantage else batch.advantages
        policy = policy_loss(log_ratio=log_ratio, advantages=advantages, clip_range=clip_range)
        if config.clip_range_vf is None:
            value = value_loss(values=values, returns=batch.returns)
        else:
            value = clipped_value_loss(
                values=values, returns=batch.returns, old_values=batch.values, clip_range=config.clip_range_vf
            )
        mean_entropy = entropy.mean()
        loss = policy - config.entropy_coef * mean_entropy + config.value_coef * value

        gradient = self._parameters.gradient
        gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = gradient.norm()
        gradient.mul_((config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step()
        with torch.no_grad():
            kl, clipped = approx_kl(log_ratio), clip_fraction(log_ratio, clip_range)
            return torch.stack((policy, value, mean_entropy, kl, clipped, norm))
