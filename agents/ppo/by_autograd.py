"""The gradient of PPO's loss by autograd, and the step along it.

A backend computes the gradient of a minibatch for the loop (`agents/agent.py`): `Backend` by autograd, for any
loss and any networks; `NumpyBackend` and `CompiledBackend`, written out by hand, for the library's own loss and MLPs on
a CPU. `backend_for` in `ppo.py` chooses.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridppo.agents.agent import fill_gradient, scalars
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.loss import (
    InputsOfMinibatch,
    Loss,
    LossInputs,
    approx_kl,
    checked,
    clip_fraction,
    without_padding,
)
from hybridppo.distributions.base import Distribution
from hybridppo.networks.actors import shared_trunk_of
from hybridppo.networks.modes import Precision, float32_products, learning_mode, rounding


class Backend:
    """The gradient of the loss by autograd, for any networks on any device; the reference for other backends.

    It views the parameters in their present memory: make another backend after they have moved.

    Args:
        agent: a `PPO`, with the loss, its present hyperparameters, the networks, the parameters and the optimizer.
        precision: of products; None for that of the agent's configuration.
    """

    written_in: str | None = None
    """The file with the gradient written out by hand; None if autograd computes it."""
    all_steps: Any = None
    """Makes all steps of an epoch in place of the loop, with the arguments of `OptimizationLoop.epoch`; it may return
    None, so that the loop makes them. None if the backend has no such method."""

    def __init__(self, agent: Any, precision: Precision | None = None) -> None:
        self._agent, self._config, self._parameters = agent, agent.config, agent.parameters
        self._actor, self.critic = agent.actor_network, agent.critic_network
        self._distribution: Distribution = agent.distribution
        trunk = shared_trunk_of(self._actor)
        self._once: Callable[[], AbstractContextManager[None]] = nullcontext if trunk is None else trunk.once
        networks = self._actor, self.critic
        self._learning = learning_mode(*networks, *self._agent.modules_of.values())
        self._stepped = None if agent.has_own_loss or not agent.modules_of else ("actor", "critic")
        """The networks that learn: not modules that the loss does not know, which would go on by their momentum."""
        self.extra_names: tuple[str, ...] | None = None
        """Names of the extra metrics of a custom loss; None before the first minibatch."""
        device = self._parameters.values.device
        self._rounding = rounding(self._config.precision if precision is None else precision, device, networks)

    def updating(self) -> AbstractContextManager[None]:
        """A context for a whole update, with the precision and the number of threads that suit this backend."""
        return float32_products(self._config.precision, self._parameters.values.device)

    def minibatches(self, epoch: Batch, sizes: Sequence[int]) -> Iterable[Any]:
        """An epoch's batch cut into minibatches for `gradient`, which are views."""
        return epoch.split(sizes)

    def gradient(self, minibatch: Any, clip_range: float | Tensor) -> Any:
        """Fill the gradient of the parameters with that of the loss.

        Returns:
            All of `STATISTICS` except the last, and the extra metrics of the loss, `[5 + E]`.
        """
        with self._learning():
            steps = minibatch.steps()
            inputs, clip_range = self._inputs(minibatch, steps), steps.clip_range(clip_range)
            if not isinstance(clip_range, float):  # an array, if minibatches are of NumPy
                clip_range = torch.as_tensor(clip_range)
            loss = self._agent.loss(inputs, clip_range)
            if self._agent.has_own_loss:
                loss = checked(loss, inputs.values)
            statistics = self._statistics(loss, inputs, clip_range)
            if steps.counted is not None:  # means over all rows become means over those that count
                share = steps.counted.float().mean()
                loss, statistics = replace(loss, total=loss.total / share), statistics / share
            self._backward(loss.total)
        if self.extra_names is None:
            self.extra_names = tuple(loss.extra)
        if not loss.extra and not self.extra_names:
            return statistics
        extras = scalars(loss.extra, self.extra_names, inputs.values.device)
        return torch.cat((torch.as_tensor(statistics), extras))

    def _inputs(self, minibatch: Any, steps: Batch) -> LossInputs:
        """The inputs of the loss, of the rows that are steps."""
        with self._rounding(), self._once():
            outputs = minibatch.only_steps(minibatch.outputs(self._actor, minibatch.actor_states)).float()
            values = minibatch.only_steps(minibatch.outputs(self.critic, minibatch.critic_states).squeeze(-1)).float()
        log_prob, entropy = self._distribution.log_prob_and_entropy(outputs, steps.actions)
        given = {"outputs": outputs, "values": values, "log_ratio": log_prob - steps.log_probs, "entropy": entropy}
        inputs: LossInputs = InputsOfMinibatch.of(partial(field_of, steps), agent=self._agent, **given)
        return inputs if steps.counted is None else without_padding(inputs, steps.counted)

    @torch.no_grad()
    def _statistics(self, loss: Loss, inputs: LossInputs, clip_range: float | Tensor) -> Any:
        """All of `STATISTICS` except the last, of a minibatch."""
        kl, clipped = approx_kl(inputs.log_ratio), clip_fraction(inputs.log_ratio, clip_range)
        return torch.stack((loss.policy, loss.value, loss.entropy, kl, clipped))

    def _backward(self, total: Tensor) -> None:
        """Fill the gradient of the parameters with that of the loss."""
        fill_gradient(self._parameters, total)

    def descend(self, clip_range: float | Tensor | None = None) -> Tensor | float:
        """Clip the gradient to `max_grad_norm` and step along it; return its norm before clipping."""
        gradient = self._parameters.gradient
        norm: Tensor = gradient.norm()
        if (limit := self._agent.current.max_grad_norm) is not None:
            gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        self._agent.optimizer.step(self._stepped)
        return norm

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """The critic's values `[B]` of observations `[B, *row]`, without a gradient."""
        size = self._rows_at_once(len(observations), observations)
        return torch.cat([self.critic(part).squeeze(-1) for part in torch.split(observations, size)])

    @torch.no_grad()
    def outputs_of(self, batch: Batch, sizes: Sequence[int] | None = None) -> Tensor:
        """The present outputs of the actor for a batch, `[B, outputs]`; with an axis of time, `[L, S, outputs]`.

        Args:
            batch: the batch.
            sizes: of the minibatches, for the rounding of `gradient`, which depends on them; None for no rounding.
        """
        round_products = nullcontext if sizes is None else self._rounding
        if sizes is None:
            size = self._rows_at_once(len(batch), batch.observations)
            sizes = [min(size, len(batch) - start) for start in range(0, len(batch), size)] or [0]
        found = []
        for part in batch.split(sizes):
            with round_products():
                outputs = part.outputs(self._actor, part.actor_states)
            found.append(outputs.float())
        return torch.cat(found, batch.axis_of("outputs"))

    def log_probs(self, batch: Batch, sizes: Sequence[int] | None = None) -> Tensor:
        """The present log-probabilities `[B]` of a batch's actions, from `outputs_of`; with time, `[L, S]`."""
        return self._distribution.log_prob(self.outputs_of(batch, sizes), batch.actions)

    def _rows_at_once(self, number: int, observations: Tensor) -> int:
        """The rows of a pass without gradient: of images, as many as in a minibatch, for which there is memory."""
        return max(1, self._config.samples_per_minibatch if observations.dtype == torch.uint8 else number)


def field_of(steps: Batch, name: str) -> Any:
    """The field of `LossInputs` with this name, if a column of a minibatch of tensors or arrays has it."""
    if name == "columns":
        own = {each: column for each, column in vars(steps).items() if each not in Batch.__annotations__}
        return {each: torch.as_tensor(column) for each, column in own.items()}
    if name == "raw_observations" and steps.raw_observations is None:
        name = "observations"
    column = getattr(steps, "values" if name == "old_values" else name)
    return None if column is None else torch.as_tensor(column)
