"""Optimizer steps that a server of parameters makes: here only gradients are computed, each by what it has then."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.numpy_steps import NumpySteps
from hybridppo.agents.ppo.optimizer_steps import AutogradSteps
from hybridppo.agents.ppo.recurrent_steps import RecurrentSteps
from hybridppo.networks.modes import require_same_everywhere

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


class ParameterServer(Protocol):
    """What a learner asks of it."""

    def begin(self) -> None:
        """Wait until a gradient may be computed; the agent's parameters are then the server's."""
        ...

    def give(self, *, goes_on: bool) -> float:
        """The agent's gradient, for a step; its norm before it was clipped.

        The agent's parameters are then those after the step, or later ones. Where it `goes_on`, the next gradient may
        be computed, as after `begin`.
        """
        ...


class ServedSteps:
    """Steps of one learner among others, on parameters that all of them change.

    Args:
        agent: whose gradients they are.
        form: the form that computes them.
        server: steps, and has the parameters.
    """

    def __init__(self, agent: "PPO", form: AutogradSteps | NumpySteps, server: ParameterServer) -> None:
        require_same_everywhere(agent.actor_network, agent.critic_network)
        self._agent, self._form, self._server = agent, form, server
        self.written_in: str | None = form.written_in

    def threads(self) -> AbstractContextManager[None]:
        """Those of the form."""
        return self._form.threads()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values, by the form."""
        return self._form.values(observations)

    def recurrent_values(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """As `RecurrentSteps.recurrent_values`, by the form."""
        return cast(RecurrentSteps, self._form).recurrent_values(observations, state, starts)

    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """By the form."""
        return self._form.log_probs_of(batch, sizes)

    def metrics(self) -> dict[str, float]:
        """Those of the form."""
        return self._form.metrics()

    def gradient(self, batch: Any, clip_range: float) -> Tensor:
        """By the form: what is compared with the loss as it is written."""
        return self._form.gradient(batch, clip_range)

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the epoch; minibatches are views."""
        shuffled = batch.gather(torch.as_tensor(order))
        statistics: list[Tensor] = []
        self._server.begin()
        for minibatch in shuffled.split(sizes):
            measured = self._form.gradient(minibatch, clip_range)
            norm = self._server.give(goes_on=len(statistics) + 1 < len(sizes))
            statistics.append(torch.cat((measured, measured.new_tensor([norm]))))
        return torch.stack(statistics)
