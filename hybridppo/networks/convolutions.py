"""Networks of images: convolutions, then a multilayer perceptron."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hybridppo.networks.initialisation import EmptyConvolution, initialised
from hybridppo.networks.mlp import MLP
from hybridppo.spaces.images import ImageLayout


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
            convolution = EmptyConvolution(channels, filters, kernel, stride)
            layers += [initialised(convolution, math.sqrt(2.0), generator), nn.ReLU()]
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
