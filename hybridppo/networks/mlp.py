"""Multilayer perceptrons, and the initial weights of layers."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from hybridppo.networks.numpy_actors import NumpyTwin

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class EmptyLinear(nn.Linear):
    """A linear layer whose weights are not initialised.

    It draws nothing from the global generator for weights that are replaced at once. A layer on the "meta" device would
    not draw either, but loads a symbolic algebra package, which takes 0.2 s.
    """

    def reset_parameters(self) -> None:
        """Leave it to the caller."""


class EmptyConvolution(nn.Conv2d):
    """A convolution whose weights are not initialised."""

    def reset_parameters(self) -> None:
        """Leave it to the caller."""


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
Initialise = Callable[..., Any]
"""Takes a layer, a gain and a generator, and returns the layer with initial weights."""


def initialised(layer: Layer, gain: float, generator: torch.Generator) -> Layer:
    """The layer with orthogonal weights of this gain, drawn from `generator`, and biases of zero."""
    assert layer.bias is not None  # all layers here have a bias
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def uniformly_initialised(layer: Layer, gain: float, generator: torch.Generator) -> Layer:
    """The layer as torch initialises it: uniform within 1 / sqrt(inputs); `gain` is ignored."""
    assert layer.bias is not None
    bound = 1.0 / math.sqrt(layer.weight[0].numel())
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


class MLP(nn.Sequential):
    """`[..., inputs] -> [..., outputs]` through `hidden_sizes`, an activation after each hidden layer.

    Without `outputs`, it ends with the last hidden layer. With `layer_norm`, each hidden layer is normalised before its
    activation (Ba et al., 2016, "Layer Normalization").

    Weights are orthogonal with gain sqrt(2), and biases are zero. The gain of the last layer is `output_gain`: 0.01 for
    an actor, so that all actions are about equally likely at first, and 1 for a critic ("37 details", detail 2).
    Weights are drawn from `generator` alone, never from torch's global one.
    """

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        outputs: int | None = None,
        *,
        activation: Activation = "tanh",
        output_gain: float = 1.0,
        generator: torch.Generator,
        layer_norm: bool = False,
        initialise: Initialise = initialised,
    ) -> None:
        layers: list[nn.Module] = []
        sizes = [inputs, *hidden_sizes]
        for size, next_size in pairwise(sizes):
            layers.append(initialise(EmptyLinear(size, next_size), math.sqrt(2.0), generator))
            if layer_norm:
                layers.append(nn.LayerNorm(next_size))
            layers.append(ACTIVATIONS[activation]())
        if outputs is not None:
            layers.append(initialise(EmptyLinear(sizes[-1], outputs), output_gain, generator))
        super().__init__(*layers)

    def numpy_twin(self) -> NumpyTwin | None:
        """Its twin, if its activation is tanh or ReLU."""
        linears, activations = list(self)[::2], {type(layer) for layer in list(self)[1::2]}
        if not all(isinstance(layer, nn.Linear) and layer.bias is not None for layer in linears):
            return None
        if activations == {nn.Tanh}:
            return NumpyTwin("tanh")
        return NumpyTwin("relu") if activations == {nn.ReLU} else None


def linears(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of a network, first to last."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def has_gradient_hooks(*networks: nn.Module) -> bool:
    """Whether networks or their parameters have hooks of gradients, which only autograd would call."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    modules = [module for network in networks for module in network.modules()]
    of_parameters = any(each._backward_hooks or each._post_accumulate_grad_hooks for each in parameters)
    return of_parameters or any(each._backward_hooks or each._backward_pre_hooks for each in modules)
