"""Networks of images: convolutions, then a multilayer perceptron."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from hybridppo.errors import ConfigurationError
from hybridppo.networks.initialisation import EmptyConvolution, Initialise, initialised
from hybridppo.networks.precision import products_in
from hybridppo.spaces.rows import Convolution, ImageLayout, layer_sizes

Convolutions = Literal["nature", "a3c", "impala"]
Convolve = Callable[[ImageLayout], tuple[nn.Module, int]]
"""Makes the layers for an image; returns them and the length of their output."""


class ImageNetwork(nn.Module):
    """`[..., *image] -> [..., outputs]`: bytes scaled to 0..1, convolutions with ReLU, then an MLP.

    `make_mlp` makes the MLP; its inputs are the last convolution's output `[height, width, channels]`, flattened. The
    convolutions are initialised like hidden layers.
    """

    def __init__(self, image: ImageLayout, make_mlp: Callable[[int], nn.Module], convolve: Convolve) -> None:
        super().__init__()
        self.convolutions, self.num_features = convolve(image)
        self.mlp = make_mlp(self.num_features)
        self.image = image

    def forward(self, observations: Tensor) -> Tensor:
        """The outputs of the MLP."""
        images = observations.reshape(-1, *observations.shape[-3:])
        outputs: Tensor = self.mlp(features_of(images, self.image, self.convolutions))
        return outputs.view(*observations.shape[:-3], outputs.shape[-1])


class ConvolutionOfBytes(EmptyConvolution):
    """The first convolution of an image, whose bytes stand for 0 to 1.

    It scales its weights instead of the bytes, of which there are many more. Bytes are exact in bfloat16.
    """

    def forward(self, images: Tensor) -> Tensor:
        """`[B, channels, height, width]`, 0 to 255, to `[B, filters, *]`."""
        outputs: Tensor = self._conv_forward(images.type(products_in(self.weight)), self.weight / 255.0, self.bias)
        return outputs


class Nature(nn.Sequential):
    """Convolutions that suit the size of an image, each with ReLU: the only ones with a NumPy form."""


def nature(
    image: ImageLayout, generator: torch.Generator, initialise: Initialise = initialised
) -> tuple[nn.Module, int]:
    """The layers for an image (`ImageLayout.convolutions`), and the length of their output."""
    return Nature(*_layers(image, image.convolutions, generator, initialise)), image.num_features


A3C = (Convolution(16, 8, 4), Convolution(32, 4, 2))
"""Mnih et al., "Playing Atari with deep reinforcement learning", 2013, section 4.1; also A3C, 2016, section 8."""


def a3c(image: ImageLayout, generator: torch.Generator, initialise: Initialise = initialised) -> tuple[nn.Module, int]:
    """Two layers for an image of at least 20 x 20 pixels, and the length of their output: a third of nature's work.

    Raises:
        ConfigurationError: for a smaller image.
    """
    height, width, filters = layer_sizes(image, A3C)[-1]
    if min(height, width) < 1:
        raise ConfigurationError(
            f"convolutions='a3c' need images of at least 20 x 20 pixels, got {image.height} x {image.width}: use "
            "'nature', which has a layer for small ones"
        )
    return nn.Sequential(*_layers(image, A3C, generator, initialise)), height * width * filters


def _layers(
    image: ImageLayout, convolutions: Sequence[Convolution], generator: torch.Generator, initialise: Initialise
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = image.channels
    for filters, kernel, stride in convolutions:
        kind = EmptyConvolution if layers else ConvolutionOfBytes
        layers += [initialise(kind(channels, filters, kernel, stride), math.sqrt(2.0), generator), nn.ReLU()]
        channels = filters
    return layers


IMPALA_FILTERS = (16, 32, 32)


class Residual(nn.Module):
    """`x` plus the output of two convolutions, each after ReLU."""

    def __init__(self, filters: int, generator: torch.Generator, initialise: Initialise) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), _same_size(EmptyConvolution, filters, filters, generator, initialise),
            nn.ReLU(), _same_size(EmptyConvolution, filters, filters, generator, initialise),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Images of the same shape."""
        added: Tensor = images + self.layers(images)
        return added


def impala(
    image: ImageLayout, generator: torch.Generator, initialise: Initialise = initialised
) -> tuple[nn.Module, int]:
    """Residual layers for an image, and the length of their output.

    Three times: a convolution, pooling to half the size, and two residual blocks (Espeholt et al., 2018, "IMPALA",
    figure 3, right).
    """
    layers: list[nn.Module] = []
    channels, height, width = image.channels, image.height, image.width
    for filters in IMPALA_FILTERS:
        kind = EmptyConvolution if layers else ConvolutionOfBytes
        layers += [_same_size(kind, channels, filters, generator, initialise), nn.MaxPool2d(3, 2, 1)]
        layers += [Residual(filters, generator, initialise) for _ in range(2)]
        channels, height, width = filters, -(-height // 2), -(-width // 2)
    return nn.Sequential(*layers, nn.ReLU()), channels * height * width


def _same_size(
    kind: type[EmptyConvolution], channels: int, filters: int, generator: torch.Generator, initialise: Initialise
) -> nn.Module:
    return initialise(kind(channels, filters, 3, 1, 1), math.sqrt(2.0), generator)


CONVOLUTIONS: dict[Convolutions, Callable[..., tuple[nn.Module, int]]] = {
    "nature": nature, "a3c": a3c, "impala": impala
}  # fmt: skip


def features_of(images: Tensor, image: ImageLayout, convolutions: nn.Module) -> Tensor:
    """The output of the convolutions for bytes `[B, *image]`: `[B, height * width * channels]`."""
    # Channels lie last in memory, whatever the order of dimensions: a third faster on a CPU. `stack` moves bytes
    # twice as fast as `contiguous`.
    if image.channels_first:
        images = torch.stack(images.unbind(1), -1)
    features: Tensor = convolutions(images.permute(0, 3, 1, 2))
    return features.permute(0, 2, 3, 1).flatten(1)
