"""Convolutions in NumPy: the same arithmetic as in `ImageNetwork` and `EncodedNetwork` to rounding, without torch.

As for `NumpyActor`, workers need no torch, and the outputs for an image do not depend on the number of images, because
each passes through the convolutions by itself.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hybridppo.networks.numpy_mlp import NumpyActivation, NumpyActor
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import ImageLayout, RowLayout, RowPart


def num_convolution_arrays(images: Iterable[ImageLayout]) -> int:
    """Number of parameter arrays of the convolutions of these images."""
    return sum(2 * len(image.convolutions) for image in images)


class NumpyFeatures:
    """The features of a row with images: its numbers, and the outputs of convolutions with ReLU for each image.

    A convolution is a product: each patch is copied to a row, which is multiplied with all filters at once. The patches
    of one image stay in the cache.

    Args:
        layout: the layout of a row: an image, or numbers and images.
        parameters: weights `[filters, channels, kernel, kernel]` and biases `[filters]` of the convolutions, image by
            image. Copied.
        seen: indices of the images that have convolutions; None for all.
    """

    def __init__(self, layout: RowLayout, parameters: Sequence[Array], seen: Collection[int] | None = None) -> None:
        self._layout, self._num_numbers = layout, layout.num_numbers
        self._convolutions: list[tuple[ImageLayout, slice, list[_Layer]]] = []
        start, column = 0, layout.num_numbers
        self._seen = range(len(layout.images)) if seen is None else sorted(seen)
        for image in [layout.images[number] for number in self._seen]:
            end = start + 2 * len(image.convolutions)
            features = slice(column, column + image.num_features)
            self._convolutions.append((image, features, _layers(image, parameters[start:end])))
            start, column = end, features.stop
        self._features = np.empty((0, column), np.float32)

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, num_features]`; the result is reused by the next call."""
        if len(observations) != len(self._features):
            self._features = np.empty((len(observations), self._features.shape[1]), np.float32)
        if self._num_numbers:
            self._features[:, : self._num_numbers] = self._layout.numbers(observations)
        for (image, columns, layers), images in zip(self._convolutions, self._images(observations), strict=True):
            if image.channels_first:
                # As bytes, since a transposed view becomes floats at a third of the speed.
                images = np.stack([*images.swapaxes(0, 1)], -1)
            for values, features in zip(images, self._features[:, columns], strict=True):
                for layer in layers:
                    values = layer(values)
                features[:] = values.ravel()
        return self._features

    def _images(self, observations: Array) -> list[Array]:
        """The images of rows, `[N, *image]` each."""
        if self._layout.is_one_image:
            return [observations]
        layout = self._layout
        parts = [(layout.images[number], layout.image_slices[number]) for number in self._seen]
        return [observations[:, part].reshape(-1, *image.shape) for image, part in parts]


def _layers(image: ImageLayout, parameters: Sequence[Array]) -> "list[_Layer]":
    """The convolutions of an image."""
    layers = [
        _Layer(*sizes, stride, weight, bias)
        for sizes, (_, _, stride), weight, bias in zip(
            pairwise(image.sizes), image.convolutions, parameters[::2], parameters[1::2], strict=True
        )
    ]
    layers[0].weight /= np.float32(255.0)  # scale the weights instead of the bytes
    return layers


class _Layer:
    """One convolution with ReLU, for an image of `size` (height, width, channels)."""

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


class EncodedTwin(NamedTuple):
    """Describes the parts of an observation."""

    layout: RowLayout
    """Layout of a row."""
    parts: tuple[tuple[RowPart, int], ...]
    """The parts that are seen, each with its number of layers."""
    end: int
    """Index after the last of a row's numbers that belong to a part."""

    @property
    def num_arrays(self) -> int:
        """Number of parameter arrays of convolutions and layers."""
        return self.num_convolution_arrays + sum(2 * num_layers for _, num_layers in self.parts)

    @property
    def num_convolution_arrays(self) -> int:
        """Number of parameter arrays of the convolutions."""
        return num_convolution_arrays(self.layout.images[number] for number in self.images)

    @property
    def images(self) -> list[int]:
        """Indices of the images that are seen."""
        return [number for part, _ in self.parts for number in range(part.images.start, part.images.stop)]


class NumpyEncoded:
    """Encodes each part of a row by itself: the features of all parts, followed by the rest of the row (a mask).

    The features of an observation do not depend on the number of observations, as for `NumpyActor`.

    Args:
        form: describes the parts.
        parameters: of the convolutions, image by image, then of the layers, part by part. Copied.
        activation: activation of every layer.
    """

    def __init__(self, form: EncodedTwin, parameters: Sequence[Array], activation: NumpyActivation) -> None:
        layout, start, seen = form.layout, form.num_convolution_arrays, form.images
        self._features = NumpyFeatures(layout, parameters[:start], seen)
        sizes = [image.num_features if number in seen else 0 for number, image in enumerate(layout.images)]
        ends = np.cumsum([layout.num_numbers, *sizes]).tolist()
        self._parts: list[tuple[slice, slice, NumpyActor | None]] = []
        for part, num_layers in form.parts:
            encoder, end = None, start + 2 * num_layers
            if num_layers:  # a NumpyActor whose last layer is not used
                head = np.zeros((1, len(parameters[end - 1])), np.float32), np.zeros(1, np.float32)
                encoder = NumpyActor([*parameters[start:end], *head], activation)
            self._parts.append((part.numbers, slice(ends[part.images.start], ends[part.images.stop]), encoder))
            start = end
        self._rest = slice(form.end, layout.num_numbers)
        is_plain = [num_layers for _, num_layers in form.parts] == [0] and not layout.images
        self.numbers = form.parts[0][0].numbers if is_plain and form.end == layout.num_numbers else None
        """The numbers of a row that it returns, if it does nothing else; else None."""

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, features]`."""
        features = self._features(observations)
        joined: list[Array] = []
        for numbers, images, encoder in self._parts:
            seen = np.concatenate((features[:, numbers], features[:, images]), axis=1)
            if encoder is not None:
                encoder(seen)
                seen = encoder.features
            joined.append(seen)
        return np.concatenate((*joined, features[:, self._rest]), axis=1)
