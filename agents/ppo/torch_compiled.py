"""The gradient of PPO's loss by autograd, compiled by `torch.compile`: forward, loss and backward are one call.

The gradient is a function of the flat parameters, so it is not accumulated parameter by parameter. All sizes of
minibatches share one compilation, so the result does not depend on which size came first.
"""

import logging
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend, Objective
from hybridppo.errors import ConfigurationError
from hybridppo.networks.modes import depend_on_training
from hybridppo.networks.parameters import place_of
from hybridppo.system.signals import Stopped

logger = logging.getLogger(__name__)

DEVICES = ("cpu", "cuda")
"""Devices that torch compiles for."""


class TorchCompiled(Backend):
    """`Backend`, compiled, for any loss and any networks without memory.

    Raises:
        ConfigurationError: if something cannot be compiled.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__(objective)
        parameters, device = self._parameters, self._parameters.values.device
        networks = nn.ModuleList([self._actor, self.critic, *self._agent.modules_of.values()])
        if device.type not in DEVICES:
            raise ConfigurationError(f"torch_compile=True is for {' and '.join(DEVICES)}, got {device}: leave it out")
        if depend_on_training(*networks):
            raise ConfigurationError(
                "torch_compile=True does not work with dropout, batch normalisation or modules that may depend on "
                "train(): leave one of them out"
            )
        self._once = nullcontext  # the compiler finds common subexpressions of a shared trunk
        self._module = _Measured(self, networks)
        self._places = [
            (name, place_of(parameter, parameters.values), parameter.shape)
            for name, parameter in self._module.named_parameters()
        ]
        self._clip_range = torch.zeros((), device=device)
        self._compiled: Any = None

    def gradient(self, minibatch: Batch, clip_range: float | Tensor) -> Any:
        """As in the base."""
        columns = minibatch.columns()
        for column in columns.values():
            torch._dynamo.maybe_mark_dynamic(column, 0)
        self._clip_range.fill_(clip_range)
        if self._compiled is None:
            self._compiled = self._made(minibatch)
        try:
            found = self._compiled(self._parameters.values.data, columns, self._clip_range)
        except torch._dynamo.exc.TorchDynamoException as error:
            if self._agent.should_stop():  # Ctrl-C ends the compiler, too
                raise Stopped from error
            raise ConfigurationError(_in_words(error)) from error
        gradient, (_, (statistics, extra)) = found
        self._parameters.gradient.copy_(gradient)
        self._parameters.zero_frozen()
        self.extras.add(extra, statistics.device)
        return statistics

    def _made(self, minibatch: Batch) -> Any:
        with torch.no_grad():  # distributions create constants in their first call, which must not be compiled
            self._distribution.log_prob_and_entropy(self._actor(minibatch.inputs), minibatch.actions)
        logger.info("torch.compile compiles the optimizer step, which takes up to a minute the first time")
        gradient = torch.func.grad_and_value(self._loss_of, has_aux=True)

        def of_this_agent(*inputs: Any) -> Any:
            return gradient(*inputs)

        # torch refuses a code object's ninth compilation in a process, whichever agent it is for.
        of_this_agent.__code__ = of_this_agent.__code__.replace()
        return torch.compile(of_this_agent, fullgraph=True)

    def _loss_of(self, flat: Tensor, columns: dict[str, Tensor], clip_range: Tensor) -> tuple[Tensor, Any]:
        """The loss and the statistics as a function of the flat parameters."""
        own = {name: flat[start : start + shape.numel()].view(shape) for name, start, shape in self._places}
        # Two networks share a parameter only if they share its module.
        found: tuple[Tensor, Any] = torch.func.functional_call(
            self._module, own, (columns, clip_range), tie_weights=False
        )
        return found


class _Measured(nn.Module):
    """The loss as a module of its networks, whose parameters may be replaced."""

    def __init__(self, backend: TorchCompiled, networks: nn.ModuleList) -> None:
        super().__init__()
        self.backend, self.networks = backend, networks

    def forward(self, columns: dict[str, Tensor], clip_range: Tensor) -> tuple[Tensor, Any]:
        loss, statistics = self.backend._loss(Batch(**columns), clip_range)
        return loss.total, (statistics, dict(loss.extra))


def _in_words(error: Exception) -> str:
    text = str(error).strip()
    if "C++ compiler" in text:
        return "torch_compile=True needs a C++ compiler, and torch found none (g++): install one, or leave it out"
    lines = [line for line in text.splitlines() if line.strip()]
    said = " ".join(lines[:2])[:300]
    return f"torch_compile=True: torch cannot compile this loss or these networks: {said}: leave it out"
