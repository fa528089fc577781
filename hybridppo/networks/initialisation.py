"""Layers without initial weights, and functions that initialise them."""

import math
from typing import Protocol, TypeVar

import torch
from torch import nn


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


class Initialise(Protocol):
    """Initialises a layer."""

    def __call__(self, layer: Layer, gain: float, generator: torch.Generator) -> Layer:
        """The layer, with weights drawn from `generator`."""


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
