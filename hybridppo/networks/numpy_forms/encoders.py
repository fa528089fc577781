"""Parts of an observation through layers of their own, in NumPy: the arithmetic of `EncodedNetwork` to rounding."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridppo.networks.numpy_forms.actor import NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.images import NumpyFeatures, num_convolution_arrays
from hybridppo.spaces.rows import RowLayout, RowPart

Array = NDArray[Any]


class EncodedForm(NamedTuple):
    """Which parts there are."""

    layout: RowLayout
    """What a row is."""
    parts: tuple[tuple[RowPart, int], ...]
    """Those that are seen, each with the number of layers that it has to itself."""
    end: int
    """After which of a row's numbers those of all parts end."""

    @property
    def num_arrays(self) -> int:
        """How many parameters convolutions and layers have."""
        return self.num_convolution_arrays + sum(2 * num_layers for _, num_layers in self.parts)

    @property
    def num_convolution_arrays(self) -> int:
        """Those of the convolutions alone."""
        return num_convolution_arrays(self.layout.images[number] for number in self.images)

    @property
    def images(self) -> list[int]:
        """The numbers of the images that are seen."""
        return [number for part, _ in self.parts for number in range(part.images.start, part.images.stop)]


class NumpyEncoded:
    """What is left of a row where each part is encoded by itself: all parts joined, then what no part has (a mask).

    What comes out for an observation does not depend on how many others are passed with it, as of `NumpyActor`.

    Args:
        form: of the parts.
        parameters: of the convolutions, image by image, then of the layers, part by part. Copied.
        activation: of every layer.
    """

    def __init__(self, form: EncodedForm, parameters: Sequence[Array], activation: NumpyActivation) -> None:
        layout, start, seen = form.layout, form.num_convolution_arrays, form.images
        self._features = NumpyFeatures(layout, parameters[:start], seen)
        sizes = [image.num_features if number in seen else 0 for number, image in enumerate(layout.images)]
        ends = np.cumsum([layout.num_numbers, *sizes]).tolist()
        self._parts: list[tuple[slice, slice, NumpyActor | None]] = []
        for part, num_layers in form.parts:
            encoder, end = None, start + 2 * num_layers
            if num_layers:  # an actor of which nobody asks the head
                head = np.zeros((1, len(parameters[end - 1])), np.float32), np.zeros(1, np.float32)
                encoder = NumpyActor([*parameters[start:end], *head], activation)
            self._parts.append((part.numbers, slice(ends[part.images.start], ends[part.images.stop]), encoder))
            start = end
        self._rest = slice(form.end, layout.num_numbers)

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
