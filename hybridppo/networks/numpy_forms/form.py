"""What NumPy needs to know of an actor, beside its parameters, to stand in for it.

Free of torch, for worker processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hybridppo.networks.numpy_forms.actor import NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.encoders import EncodedForm, NumpyEncoded
from hybridppo.networks.numpy_forms.exploring import NumpyExploringActor
from hybridppo.networks.numpy_forms.images import NumpyFeatures, num_convolution_arrays
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.networks.numpy_forms.recurrent import CellForm, NumpyRecurrentActor
from hybridppo.spaces.rows import RowLayout

Array = NDArray[Any]


class NumpyFeaturesActor:
    """An MLP after what is made of rows, as a sampler sees them: host arrays in, host arrays out.

    Args:
        before: makes the inputs of the MLP of rows.
        mlp: what follows.
        parameters: all that this was made of.
    """

    def __init__(self, before: NumpyFeatures | NumpyEncoded, mlp: NumpyActor, parameters: Sequence[Array]) -> None:
        self.parameters, self.version = parameters, mlp.version
        self._before, self._mlp = before, mlp

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        return self._mlp(self._before(observations))

    @property
    def features(self) -> Array:
        """As `NumpyActor.features`."""
        return self._mlp.features


OwnActor = NumpyActor | NumpyFeaturesActor | NumpyRecurrentActor | NumpyExploringActor


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

    def _of_means(self, parameters: Sequence[Array], version: int) -> NumpyActor | NumpyFeaturesActor:
        start = len(parameters) % 2  # after the log standard deviations of a Gaussian actor
        before, num_arrays, mask_end = self._before(parameters[start:])
        rest = [*parameters[:start], *parameters[start + num_arrays :]]
        mlp = NumpyActor(rest, self.activation, version, self.mask_size, mask_end)
        return mlp if before is None else NumpyFeaturesActor(before, mlp, parameters)

    def _recurrent_actor(self, cell: CellForm, parameters: Sequence[Array], version: int) -> NumpyRecurrentActor:
        before, start, mask_end = self._before(parameters)
        end = start + {"lstm": 3, "gru": 4}[cell.kind]
        network = NumpyActor(parameters[end:], self.activation, version, self.mask_size)
        return NumpyRecurrentActor(cell, parameters[start:end], network, parameters, self.mask_size, before, mask_end)

    def _before(self, parameters: Sequence[Array]) -> tuple[NumpyFeatures | NumpyEncoded | None, int, int | None]:
        """What is made of rows first, of the first of these parameters.

        Returns:
            It, or None; the number of its parameters; and after which of what it gives a mask ends, None for the last.
        """
        if self.encoded is not None:
            end = self.encoded.num_arrays
            return NumpyEncoded(self.encoded, parameters[:end], self.activation), end, None
        if self.layout is not None:
            end = num_convolution_arrays(self.layout)
            return NumpyFeatures(self.layout, parameters[:end]), end, self.layout.num_numbers
        return None, 0, None
