"""`EncodedNetwork` in NumPy: separate layers for each part of an observation; the same arithmetic to rounding."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridppo.networks.numpy_forms.actor import ArrayActor, NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.images import NumpyFeatures, num_convolution_arrays
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import RowLayout, RowPart


class EncodedForm(NamedTuple):
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

    def __init__(self, form: EncodedForm, parameters: Sequence[Array], activation: NumpyActivation) -> None:
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


class NumpyFeaturesActor(ArrayActor):
    """An actor of two parts: features of rows, then an MLP.

    Args:
        before: makes the inputs of the MLP from rows.
        mlp: the MLP.
    """

    def __init__(self, before: NumpyFeatures | NumpyEncoded, mlp: NumpyActor) -> None:
        self._before, self.mlp = before, mlp
        self.numbers = before.numbers if isinstance(before, NumpyEncoded) else None
        """The numbers of a row that the MLP takes, if they are all it takes; else None."""

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        return self.mlp(self._before(observations))

    @property
    def features(self) -> Array:
        """Like `NumpyActor.features`."""
        return self.mlp.features
