"""Layers as they are before anyone initialises them, and how they are initialised."""

import math
from typing import Protocol, TypeVar

import torch
from torch import nn


class EmptyLinear(nn.Linear):
    """A linear layer as it is before anyone initialises it.

    No draw from the global generator for weights that are replaced at once; and making it on the "meta" device, which
    does not draw either, loads a symbolic algebra package, which takes a fifth of a second.
    """

    def reset_parameters(self) -> None:
        """Leave it to the caller."""


class EmptyConvolution(nn.Conv2d):
    """Likewise."""

    def reset_parameters(self) -> None:
        """Leave it to the caller."""


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


class Initialise(Protocol):
    """What gives a layer its first weights."""

    def __call__(self, layer: Layer, gain: float, generator: torch.Generator) -> Layer:
        """The layer, with weights drawn from `generator` alone."""
        ...


def initialised(layer: Layer, gain: float, generator: torch.Generator) -> Layer:
    """The layer with orthogonal weights of this gain, drawn from `generator`, and biases of zero."""
    assert layer.bias is not None  # all layers here have one
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def uniformly_initialised(layer: Layer, gain: float, generator: torch.Generator) -> Layer:
    """The layer as torch makes it: weights and biases uniform within one over the root of its inputs; no gain."""
    assert layer.bias is not None
    bound = 1.0 / math.sqrt(layer.weight[0].numel())
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
