"""Multilayer perceptrons, orthogonally initialised."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from hybridppo.networks.initialisation import EmptyLinear, Initialise, initialised

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
        outputs: int | None,
        *,
        activation: Activation = "tanh",
        output_gain: float,
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
