"""The layers of networks: multilayer perceptrons, convolutions of images, separate layers for parts of observations.

Initial weights are drawn from one generator, never from torch's global one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hybridppo.networks.modes import products_in
from hybridppo.networks.numpy_actors import EncodedTwin, NumpyActivation, NumpyTwin, twin_within
from hybridppo.spaces.rows import ImageLayout, RowLayout, RowPart

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
MakeLayer = Callable[[Any, float], Any]
"""Gives a layer initial weights of this gain, and returns it."""


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


Convolutions = Literal["nature", "impala"]
Convolve = Callable[[ImageLayout], tuple[nn.Module, int]]
"""Makes the layers for an image; returns them and the length of their output."""


class ConvolutionOfBytes(EmptyConvolution):
    """The first convolution of an image, whose bytes stand for 0 to 1.

    It scales its weights instead of the bytes, of which there are many more. Bytes are exact in bfloat16.
    """

    def forward(self, images: Tensor) -> Tensor:
        """`[B, channels, height, width]`, 0 to 255, to `[B, filters, *]`."""
        return self._conv_forward(images.type(products_in(self.weight)), self.weight / 255.0, self.bias)


class Nature(nn.Sequential):
    """Convolutions that suit the size of an image, each with ReLU: the only ones with a NumPy twin."""


def nature(image: ImageLayout, make_layer: MakeLayer) -> tuple[nn.Module, int]:
    """The layers for an image (`ImageLayout.convolutions`), and the length of their output."""
    layers: list[nn.Module] = []
    channels = image.channels
    for filters, kernel, stride in image.convolutions:
        kind = EmptyConvolution if layers else ConvolutionOfBytes
        layers += [make_layer(kind(channels, filters, kernel, stride), math.sqrt(2.0)), nn.ReLU()]
        channels = filters
    return Nature(*layers), image.num_features


IMPALA_FILTERS = (16, 32, 32)


class Residual(nn.Module):
    """`x` plus the output of two convolutions, each after ReLU."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, images: Tensor) -> Tensor:
        """Images of the same shape."""
        return images + self.layers(images)


def impala(image: ImageLayout, make_layer: MakeLayer) -> tuple[nn.Module, int]:
    """Residual layers for an image, and the length of their output.

    Three times: a convolution, pooling to half the size, and two residual blocks (Espeholt et al., 2018, "IMPALA",
    figure 3, right).
    """
    layers: list[nn.Module] = []
    channels, height, width = image.channels, image.height, image.width

    def convolution(inputs: int, filters: int) -> nn.Module:
        kind = EmptyConvolution if layers else ConvolutionOfBytes
        return make_layer(kind(inputs, filters, 3, 1, 1), math.sqrt(2.0))

    for filters in IMPALA_FILTERS:
        layers += [convolution(channels, filters), nn.MaxPool2d(3, 2, 1)]
        layers += [Residual(convolution(filters, filters), convolution(filters, filters)) for _ in range(2)]
        channels, height, width = filters, -(-height // 2), -(-width // 2)
    return nn.Sequential(*layers, nn.ReLU()), channels * height * width


CONVOLUTIONS: dict[Convolutions, Callable[..., tuple[nn.Module, int]]] = {"nature": nature, "impala": impala}


PIECE, PIECE_BYTES = 32, 2**18
"""The images that pass through all convolutions together on a CPU, so that outputs between layers stay in the cache: so
many, or of small images as many as have so many bytes."""


def features_of(images: Tensor, image: ImageLayout, convolutions: nn.Module) -> Tensor:
    """The output of the convolutions for bytes `[B, *image]`: `[B, height * width * channels]`."""
    piece = max(PIECE, PIECE_BYTES // image.num_bytes)
    if torch.is_grad_enabled() and images.device.type == "cpu" and len(images) > piece:
        return torch.cat([features_of(part, image, convolutions) for part in torch.split(images, piece)])
    # Channels lie last in memory, whatever the order of dimensions: a third faster on a CPU. `stack` moves bytes
    # twice as fast as `contiguous`.
    if image.channels_first:
        images = torch.stack(images.unbind(1), -1)
    features: Tensor = convolutions(images.permute(0, 3, 1, 2))
    return features.permute(0, 2, 3, 1).flatten(1)


def unchanged(numbers: "slice[int, int, None]") -> tuple[nn.Module, int]:
    """No layers for the numbers in a slice of a row, and their number."""
    return nn.Identity(), numbers.stop - numbers.start


class EncodedNetwork(nn.Module):
    """`[..., *row] -> [..., outputs]`: each part is encoded by itself; an MLP takes all of them together.

    A part is encoded as its numbers, of which an encoder may take items (`networks/items.py`), and the convolutions'
    output for its images, `[height, width, channels]` flattened; passed through hidden layers if it has widths. The
    rest of a row (a mask) is joined unchanged.

    Args:
        layout: the layout of a row.
        parts: the parts to use, in the order of a row, each with the widths of its layers (empty for no layers).
        end: index after the last of the row's numbers that belong to a part.
        make_mlp: makes the MLP for a number of inputs.
        make_encoder: makes hidden layers for a number of inputs and widths.
        convolve: makes the convolutions of an image.
        encode_numbers: makes the encoder of the numbers in a slice of a row; returns it and the length of its output.
    """

    def __init__(
        self,
        layout: RowLayout,
        parts: Sequence[tuple[RowPart, Sequence[int]]],
        end: int,
        make_mlp: Callable[[int], nn.Module],
        make_encoder: Callable[[int, Sequence[int]], nn.Module],
        convolve: Convolve,
        encode_numbers: Callable[["slice[int, int, None]"], tuple[nn.Module, int]] = unchanged,
    ) -> None:
        super().__init__()
        seen = {number for part, _ in parts for number in range(part.images.start, part.images.stop)}
        made = [convolve(image) if i in seen else (nn.Identity(), 0) for i, image in enumerate(layout.images)]
        self.convolutions = nn.ModuleList([module for module, _ in made])
        made_for_numbers = [encode_numbers(part.numbers) for part, _ in parts]
        self.of_numbers = nn.ModuleList([module for module, _ in made_for_numbers])
        encoders: list[nn.Module] = []
        width = layout.num_numbers - end
        for (part, sizes), (_, num_numbers) in zip(parts, made_for_numbers, strict=True):
            inputs = num_numbers + sum(size for _, size in made[part.images])
            encoders.append(make_encoder(inputs, sizes) if sizes else nn.Identity())
            width += sizes[-1] if sizes else inputs
        self.encoders = nn.ModuleList(encoders)
        self.num_features = width
        self.mlp = make_mlp(width)
        self.layout, self.parts, self.end = layout, [part for part, _ in parts], end

    def forward(self, observations: Tensor) -> Tensor:
        """The MLP's outputs."""
        ndim = 3 if self.layout.is_one_image else 1
        leading, rows = observations.shape[:-ndim], observations.reshape(-1, *observations.shape[-ndim:])
        images = self.layout.pixels(rows)
        # Not len(rows), which would fix the size of a batch in an exported graph.
        numbers = self.layout.numbers(rows).reshape(rows.shape[0], self.layout.num_numbers)
        seen = [
            numbers[:, :0] if isinstance(convolutions, nn.Identity) else features_of(batch, image, convolutions)
            for batch, image, convolutions in zip(images, self.layout.images, self.convolutions, strict=True)
        ]
        features = [
            encoder(_joined([of_numbers(numbers[:, part.numbers]), *seen[part.images]]))
            for part, of_numbers, encoder in zip(self.parts, self.of_numbers, self.encoders, strict=True)
        ]
        outputs: Tensor = self.mlp(_joined([*features, numbers[:, self.end :]]))
        return outputs.view(*leading, outputs.shape[-1])

    def encoded_twin(self, activation: NumpyActivation) -> EncodedTwin | None:
        """The twin of its convolutions and of the layers of its parts, if these have this activation."""
        of_parts = [twin_within(encoder) for encoder in self.encoders if not isinstance(encoder, nn.Identity)]
        # An image that no network sees needs no twin.
        has_twins = all(isinstance(convolutions, (Nature, nn.Identity)) for convolutions in self.convolutions)
        has_twins &= all(isinstance(of_numbers, nn.Identity) for of_numbers in self.of_numbers)
        if not has_twins or any(each is None or each.activation != activation for each in of_parts):
            return None
        counts = [sum(isinstance(layer, nn.Linear) for layer in encoder.modules()) for encoder in self.encoders]
        return EncodedTwin(self.layout, tuple(zip(self.parts, counts, strict=True)), self.end)

    def numpy_twin(self) -> NumpyTwin | None:
        """Its twin, if all its layers have one activation, and images nature's convolutions."""
        twin = twin_within(self.mlp)
        encoded = None if twin is None else self.encoded_twin(twin.activation)
        if twin is None or encoded is None:
            return None
        columns = None
        if encoded.is_plain:
            numbers = np.arange(self.layout.num_numbers)
            columns = np.concatenate([*(numbers[part.numbers] for part in self.parts), numbers[self.end :]])
        return replace(twin, encoded=encoded, columns=columns)


def _joined(parts: list[Tensor]) -> Tensor:
    """Parts `[B, n]` side by side, without a copy if only one has numbers."""
    parts = [part for part in parts if part.shape[-1]] or parts[:1]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
