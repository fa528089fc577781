"""The networks of actor and critic, orthogonally initialised: multilayer perceptrons, after convolutions for images."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from hybridppo.images import ImageLayout
from hybridppo.numpy_form import NumpyForm
from hybridppo.numpy_mlp import FORBIDDEN

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
            layers.append(_initialised(_EmptyLinear(size, next_size), math.sqrt(2.0), generator))
            layers.append(ACTIVATIONS[activation]())
        layers.append(_initialised(_EmptyLinear(sizes[-1], outputs), output_gain, generator))
        super().__init__(*layers)


class ImageNetwork(nn.Module):
    """`[..., *image] -> [..., outputs]`: bytes as numbers from 0 to 1, the image's convolutions with ReLU, an MLP.

    The MLP is made by `make_mlp`, of as many inputs as the last convolution gives numbers: `[height, width, channels]`,
    flattened. The convolutions are initialised as its hidden layers are.
    """

    def __init__(self, image: ImageLayout, make_mlp: Callable[[int], MLP], generator: torch.Generator) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = image.channels
        for filters, kernel, stride in image.convolutions:
            convolution = _EmptyConvolution(channels, filters, kernel, stride)
            layers += [_initialised(convolution, math.sqrt(2.0), generator), nn.ReLU()]
            channels = filters
        self.convolutions = nn.Sequential(*layers)
        self.mlp = make_mlp(image.num_features)
        self.image = image

    def forward(self, observations: Tensor) -> Tensor:
        """What the MLP gives."""
        images = observations.reshape(-1, *observations.shape[-3:])
        # Channels are neighbours in memory, whatever the order of dimensions: a third faster on a CPU.
        if self.image.channels_first:
            images = images.contiguous(memory_format=torch.channels_last)
        else:
            images = images.permute(0, 3, 1, 2)
        features: Tensor = self.convolutions(images.float() / 255.0)
        outputs: Tensor = self.mlp(features.permute(0, 2, 3, 1).flatten(1))
        return outputs.view(*observations.shape[:-3], outputs.shape[-1])


class GaussianActor(nn.Module):
    """`[..., inputs] -> [..., 2 * d]`: means from a network, log standard deviations that depend on no state."""

    def __init__(self, mean: nn.Module, size: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((size,), initial_log_std))

    def forward(self, observations: Tensor) -> Tensor:
        """Means, then log standard deviations, along the last dimension."""
        mean: Tensor = self.mean(observations)
        return torch.cat((mean, self.log_std.expand_as(mean)), dim=-1)


class MaskedActor(nn.Module):
    """`[..., inputs] -> [..., n]`: logits from an MLP, where the last `n` inputs say which actions are allowed.

    The logits of the others are replaced by one so low that their probability is 0, and with it every gradient (Huang
    and Ontanon, "A closer look at invalid action masking in policy gradient algorithms", section 3).
    """

    def __init__(self, logits: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.logits, self._num_actions = logits, num_actions

    def forward(self, observations: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.logits(observations)
        return logits.masked_fill(observations[..., -self._num_actions :] == 0.0, FORBIDDEN)


def linears(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of an `MLP`, or of that within another network made here, first to last."""
    found = _mlp_and_image(network)
    assert found is not None
    return [layer for layer in found[0] if isinstance(layer, nn.Linear)]


def numpy_form(network: nn.Module) -> NumpyForm | None:
    """What NumPy needs to know to stand in for the network, on a CPU; None where it cannot.

    It can for networks made here whose hidden layers have tanh or ReLU, and that have no hooks.
    """
    found = _mlp_and_image(network)
    if found is None:
        return None
    mlp, image = found
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    activations = {type(layer) for layer in mlp if not isinstance(layer, nn.Linear)}
    if has_hooks or activations not in ({nn.Tanh}, {nn.ReLU}):
        return None
    return NumpyForm("tanh" if activations == {nn.Tanh} else "relu", isinstance(network, MaskedActor), image)


def is_on_cpu(network: nn.Module) -> bool:
    """Whether all parameters are on the CPU now."""
    return all(parameter.device.type == "cpu" for parameter in network.parameters())


def _mlp_and_image(network: nn.Module) -> tuple[MLP, ImageLayout | None] | None:
    """The MLP of a network made here, and what images it is for, if any."""
    trunk: nn.Module = network
    if type(network) is GaussianActor:
        trunk = network.mean
    elif type(network) is MaskedActor:
        trunk = network.logits
    if type(trunk) is ImageNetwork:
        return trunk.mlp, trunk.image
    return (trunk, None) if type(trunk) is MLP else None


class _EmptyLinear(nn.Linear):
    """A linear layer as it is before anyone initialises it.

    No draw from the global generator for weights that are replaced at once; and making it on the "meta" device, which
    does not draw either, loads a symbolic algebra package, which takes a fifth of a second.
    """

    def reset_parameters(self) -> None:
        """Leave it to the caller."""


class _EmptyConvolution(nn.Conv2d):
    """Likewise."""

    def reset_parameters(self) -> None:
        """Leave it to the caller."""


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def _initialised(layer: Layer, gain: float, generator: torch.Generator) -> Layer:
    assert layer.bias is not None  # all layers here have one
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
