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
    """Each with the number of layers that it has to itself."""

    @property
    def num_arrays(self) -> int:
        """How many parameters convolutions and layers have."""
        return num_convolution_arrays(self.layout) + sum(2 * num_layers for _, num_layers in self.parts)


class NumpyEncoded:
    """What is left of a row where each part is encoded by itself: all parts joined, then what no part has (a mask).

    What comes out for an observation does not depend on how many others are passed with it, as of `NumpyActor`.

    Args:
        form: of the parts.
        parameters: of the convolutions, image by image, then of the layers, part by part. Copied.
        activation: of every layer.
    """

    def __init__(self, form: EncodedForm, parameters: Sequence[Array], activation: NumpyActivation) -> None:
        layout, start = form.layout, num_convolution_arrays(form.layout)
        self._features = NumpyFeatures(layout, parameters[:start])
        ends = np.cumsum([layout.num_numbers, *(image.num_features for image in layout.images)]).tolist()
        self._parts: list[tuple[slice, slice, NumpyActor | None]] = []
        for part, num_layers in form.parts:
            encoder, end = None, start + 2 * num_layers
            if num_layers:  # an actor of which nobody asks the head
                head = np.zeros((1, len(parameters[end - 1])), np.float32), np.zeros(1, np.float32)
                encoder = NumpyActor([*parameters[start:end], *head], activation)
            self._parts.append((part.numbers, slice(ends[part.images.start], ends[part.images.stop]), encoder))
            start = end
        self._rest = slice(form.parts[-1][0].numbers.stop, layout.num_numbers)

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
