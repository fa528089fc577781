"""Networks of images: convolutions, then a multilayer perceptron."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hybridppo.networks.initialisation import EmptyConvolution, initialised
from hybridppo.networks.mlp import MLP
from hybridppo.networks.rows import images_of, numbers_of
from hybridppo.spaces.images import ImageLayout
from hybridppo.spaces.rows import RowLayout


class ImageNetwork(nn.Module):
    """`[..., *image] -> [..., outputs]`: bytes as numbers from 0 to 1, the image's convolutions with ReLU, an MLP.

    The MLP is made by `make_mlp`, of as many inputs as the last convolution gives numbers: `[height, width, channels]`,
    flattened. The convolutions are initialised as its hidden layers are.
    """

    def __init__(self, image: ImageLayout, make_mlp: Callable[[int], nn.Module], generator: torch.Generator) -> None:
        super().__init__()
        self.convolutions = convolutions_for(image, generator)
        self.mlp = make_mlp(image.num_features)
        self.image = image

    def forward(self, observations: Tensor) -> Tensor:
        """What the MLP gives."""
        images = observations.reshape(-1, *observations.shape[-3:])
        outputs: Tensor = self.mlp(features_of(images, self.image, self.convolutions))
        return outputs.view(*observations.shape[:-3], outputs.shape[-1])


class JoinedNetwork(nn.Module):
    """`[..., bytes] -> [..., outputs]`: the numbers of a row, and what convolutions make of each of its images, an MLP.

    As in `ImageNetwork`, but that the MLP has all of them as inputs: the numbers first.
    """

    def __init__(self, layout: RowLayout, make_mlp: Callable[[int], nn.Module], generator: torch.Generator) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([convolutions_for(image, generator) for image in layout.images])
        self.mlp = make_mlp(layout.num_features)
        self.layout = layout

    def forward(self, observations: Tensor) -> Tensor:
        """What the MLP gives."""
        rows = observations.reshape(-1, observations.shape[-1])
        images = zip(images_of(rows, self.layout), self.layout.images, self.convolutions, strict=True)
        features = [features_of(batch, image, convolutions) for batch, image, convolutions in images]
        outputs: Tensor = self.mlp(torch.cat((numbers_of(rows, self.layout), *features), dim=-1))
        return outputs.view(*observations.shape[:-1], outputs.shape[-1])


def convolutions_for(image: ImageLayout, generator: torch.Generator) -> nn.Sequential:
    """The layers for an image, each with ReLU."""
    layers: list[nn.Module] = []
    channels = image.channels
    for filters, kernel, stride in image.convolutions:
        convolution = EmptyConvolution(channels, filters, kernel, stride)
        layers += [initialised(convolution, math.sqrt(2.0), generator), nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers)


def features_of(images: Tensor, image: ImageLayout, convolutions: nn.Module) -> Tensor:
    """What the convolutions make of bytes `[B, *image]`: `[B, height * width * channels]`."""
    # Channels are neighbours in memory, whatever the order of dimensions: a third faster on a CPU.
    if image.channels_first:
        images = images.contiguous(memory_format=torch.channels_last)
    else:
        images = images.permute(0, 3, 1, 2)
    features: Tensor = convolutions(images.float() / 255.0)
    return features.permute(0, 2, 3, 1).flatten(1)
