"""The networks: multilayer perceptrons for actor and critic, orthogonally initialised."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from hybridppo.numpy_mlp import FORBIDDEN, NumpyActivation

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class MLP(nn.Sequential):
    """`[..., inputs] -> [..., outputs]` through `hidden_sizes`, an activation after each hidden layer.

    Weights are orthogonal with gain sqrt(2), biases zero, and the last layer's gain is `output_gain`:
    0.01 for an actor, so that every action is about as likely at first, and 1 for a critic ("37 details",
    detail 2). Rows are drawn from `generator` alone, never from torch's global one.
    """

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        outputs: int,
        *,
        activation: Activation = "tanh",
        output_gain: float,
        generator: torch.Generator,
    ) -> None:
        layers: list[nn.Module] = []
        sizes = [inputs, *hidden_sizes]
        for size, next_size in pairwise(sizes):
            layers += [_linear(size, next_size, math.sqrt(2.0), generator), ACTIVATIONS[activation]()]
        layers.append(_linear(sizes[-1], outputs, output_gain, generator))
        super().__init__(*layers)


class GaussianActor(nn.Module):
    """`[..., inputs] -> [..., 2 * d]`: means from an MLP, log standard deviations that depend on no state."""

    def __init__(self, mean: MLP, size: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((size,), initial_log_std))

    def forward(self, observations: Tensor) -> Tensor:
        """Means, then log standard deviations, along the last dimension."""
        mean = self.mean(observations)
        return torch.cat((mean, self.log_std.expand_as(mean)), dim=-1)


class MaskedActor(nn.Module):
    """`[..., inputs] -> [..., n]`: logits from an MLP, where the last `n` inputs say which actions are allowed.

    The logits of the others are replaced by one so low that their probability is 0, and with it every gradient (Huang
    and Ontanon, "A closer look at invalid action masking in policy gradient algorithms", section 3).
    """

    def __init__(self, logits: MLP, num_actions: int) -> None:
        super().__init__()
        self.logits, self._num_actions = logits, num_actions

    def forward(self, observations: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.logits(observations)
        return logits.masked_fill(observations[..., -self._num_actions :] == 0.0, FORBIDDEN)


def linears(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of an `MLP`, or of that within another actor, first to last."""
    return [layer for layer in _mlp_of(network) if isinstance(layer, nn.Linear)]


def is_plain_mlp(network: nn.Module) -> bool:
    """Whether NumPy can stand in for the network, on a CPU: an MLP with hidden layers of tanh or ReLU, no hooks."""
    if type(network) not in (MLP, GaussianActor, MaskedActor) or type(_mlp_of(network)) is not MLP:
        return False
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    activations = [layer for layer in _mlp_of(network) if not isinstance(layer, nn.Linear)]
    return not has_hooks and bool(activations) and all(type(a) in (nn.Tanh, nn.ReLU) for a in activations)


def is_on_cpu(network: nn.Module) -> bool:
    """Whether all parameters are on the CPU now."""
    return all(parameter.device.type == "cpu" for parameter in network.parameters())


def numpy_activation(network: nn.Module) -> NumpyActivation:
    """The activation of a plain MLP's hidden layers."""
    return "tanh" if any(isinstance(layer, nn.Tanh) for layer in _mlp_of(network)) else "relu"


def _mlp_of(network: nn.Module) -> MLP:
    mlp: nn.Module = network
    if isinstance(network, GaussianActor):
        mlp = network.mean
    elif isinstance(network, MaskedActor):
        mlp = network.logits
    assert isinstance(mlp, MLP)
    return mlp


class _EmptyLinear(nn.Linear):
    """A linear layer as it is before anyone initialises it.

    No draw from the global generator for weights that are replaced at once; and making it on the "meta" device, which
    does not draw either, loads a symbolic algebra package, which takes a fifth of a second.
    """

    def reset_parameters(self) -> None:
        """Leave it to the caller."""


def _linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    layer = _EmptyLinear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
