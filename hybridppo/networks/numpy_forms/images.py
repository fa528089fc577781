"""Actors of images in NumPy: the same arithmetic as `networks.ImageNetwork` to rounding, without torch.

For the same two reasons as `numpy_mlp`: worker processes need not load torch, and what comes out for an image does not
depend on how many others there are, because each passes through the convolutions by itself.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hybridppo.networks.numpy_forms.actor import NumpyActivation, NumpyActor
from hybridppo.spaces.images import ImageLayout

Array = NDArray[Any]


class NumpyImageActor:
    """Convolutions and an MLP as a sampler sees them: host arrays in, host arrays out.

    A convolution is a product: each patch that its filters look at is copied to a row, which is multiplied with all
    filters at once. The patches of one image stay in the cache.

    Args:
        image: how images lie in observations.
        parameters: as for `NumpyActor`, with weights `[filters, channels, kernel, kernel]` and biases `[filters]` of
            the convolutions before those of the first layer. Copied when it is made.
        activation: of every hidden layer; convolutions have ReLU.
        version: of these parameters.
    """

    def __init__(
        self, image: ImageLayout, parameters: Sequence[Array], activation: NumpyActivation, version: int = 0
    ) -> None:
        self.parameters, self.version = parameters, version
        self._channels_first = image.channels_first
        first = len(parameters) % 2  # after the log standard deviations of a Gaussian actor
        end = first + 2 * len(image.convolutions)
        self._mlp = NumpyActor([*parameters[:first], *parameters[end:]], activation, version)
        self._layers = [
            _Layer(*sizes, stride, weight, bias)
            for sizes, (_, _, stride), weight, bias in zip(
                pairwise(image.sizes), image.convolutions, parameters[first:end:2], parameters[first + 1 : end : 2],
                strict=True,
            )
        ]  # fmt: skip
        self._layers[0].weight /= np.float32(255.0)  # so that bytes need not be divided
        self._features = np.empty((0, image.num_features), np.float32)

    def __call__(self, observations: Array) -> Array:
        """`[N, *image] -> [N, outputs]`; the result is reused by the next call."""
        if len(observations) != len(self._features):
            self._features = np.empty((len(observations), self._features.shape[1]), np.float32)
        images = observations.transpose(0, 2, 3, 1) if self._channels_first else observations
        for image, features in zip(images, self._features, strict=True):
            values = image
            for layer in self._layers:
                values = layer(values)
            features[:] = values.ravel()
        return self._mlp(self._features)


class _Layer:
    """One convolution and its ReLU, of an image of `size` (height, width, channels)."""

    def __init__(
        self, size: tuple[int, int, int], next_size: tuple[int, int, int], stride: int, weight: Array, bias: Array
    ) -> None:
        filters, channels, kernel, _ = weight.shape
        height, width, _ = next_size
        # [filters, channels, kernel, kernel] -> [kernel * kernel * channels, filters]
        self.weight = np.ascontiguousarray(weight.transpose(2, 3, 1, 0).reshape(-1, filters))
        self._bias = bias.copy()
        self._image = np.empty(size, np.float32)
        windows = sliding_window_view(self._image, (kernel, kernel), axis=(0, 1))[::stride, ::stride]
        # [height, width, channels, kernel, kernel] -> [height, width, kernel, kernel, channels]
        self._windows = windows.transpose(0, 1, 3, 4, 2)
        self._patches = np.empty(self._windows.shape, np.float32)
        self._rows = self._patches.reshape(height * width, kernel * kernel * channels)
        self._out = np.empty(next_size, np.float32)
        self._products = self._out.reshape(height * width, filters)

    def __call__(self, image: Array) -> Array:
        """`[height, width, channels] -> [height, width, filters]`; the result is reused by the next call."""
        self._image[:] = image
        self._patches[:] = self._windows
        np.dot(self._rows, self.weight, out=self._products)
        self._products += self._bias
        np.maximum(self._products, 0.0, out=self._products)
        return self._out
