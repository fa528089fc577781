"""What NumPy needs to know of an actor, beside its parameters, to stand in for it.

Free of torch, for worker processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hybridppo.networks.numpy_forms.actor import NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.encoders import EncodedForm, NumpyEncoded, NumpyEncodedActor
from hybridppo.networks.numpy_forms.exploring import NumpyExploringActor
from hybridppo.networks.numpy_forms.images import NumpyFeatures, NumpyImageActor, num_convolution_arrays
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.networks.numpy_forms.recurrent import CellForm, NumpyRecurrentActor
from hybridppo.spaces.rows import RowLayout

Array = NDArray[Any]


OwnActor = NumpyActor | NumpyImageActor | NumpyEncodedActor | NumpyRecurrentActor | NumpyExploringActor


@dataclass(frozen=True)
class NumpyForm:
    """Which actor the parameters are of."""

    activation: NumpyActivation
    """Of every hidden layer."""
    mask_size: int = 0
    """How many of the last numbers of a row say which of the first outputs are allowed."""
    layout: RowLayout | None = None
    """What a row is, where something is made of it before the hidden layers: of its images, or of each part."""
    encoded: EncodedForm | None = None
    """Its parts, where they have layers of their own."""
    cell: CellForm | None = None
    """The memory before it, if it has one."""
    normalizes: RowLayout | None = None
    """What a row is, where it is normalised first."""

    explores: bool = False
    """Whether its exploration depends on the state: its first parameter is of the noise."""

    def actor(self, parameters: Sequence[Array], version: int = 0) -> OwnActor | NormalizingActor:
        """The actor, with its arrays as `networks.forms.arrays_of` gives them."""
        if self.normalizes is not None:
            *own, mean, variance = parameters
            return NormalizingActor(self._actor(own, version), parameters, self.normalizes, mean, variance)
        return self._actor(parameters, version)

    def _actor(self, parameters: Sequence[Array], version: int) -> OwnActor:
        if self.cell is not None:
            return self._recurrent_actor(self.cell, parameters, version)
        if self.explores:
            return NumpyExploringActor(self._of_means(parameters[1:], version), parameters[0], parameters)
        return self._of_means(parameters, version)

    def _of_means(self, parameters: Sequence[Array], version: int) -> NumpyActor | NumpyImageActor | NumpyEncodedActor:
        if self.encoded is not None:
            return NumpyEncodedActor(self.encoded, parameters, self.activation, version, self.mask_size)
        if self.layout is not None:
            return NumpyImageActor(self.layout, parameters, self.activation, version, self.mask_size)
        return NumpyActor(parameters, self.activation, version, self.mask_size)

    def _recurrent_actor(self, cell: CellForm, parameters: Sequence[Array], version: int) -> NumpyRecurrentActor:
        features: NumpyFeatures | NumpyEncoded | None = None
        start, mask_end = 0, None
        if self.encoded is not None:
            start = self.encoded.num_arrays
            features = NumpyEncoded(self.encoded, parameters[:start], self.activation)
        elif self.layout is not None:
            start = num_convolution_arrays(self.layout)
            features, mask_end = NumpyFeatures(self.layout, parameters[:start]), self.layout.num_numbers
        end = start + {"lstm": 3, "gru": 4}[cell.kind]
        network = NumpyActor(parameters[end:], self.activation, version, self.mask_size)
        return NumpyRecurrentActor(cell, parameters[start:end], network, parameters, self.mask_size, features, mask_end)
