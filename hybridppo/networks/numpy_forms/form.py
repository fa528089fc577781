"""What NumPy needs to know of an actor, beside its parameters, to stand in for it.

Free of torch, for worker processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hybridppo.networks.numpy_forms.actor import NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.images import NumpyImageActor
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.spaces.rows import RowLayout

Array = NDArray[Any]


@dataclass(frozen=True)
class NumpyForm:
    """Which actor the parameters are of."""

    activation: NumpyActivation
    """Of every hidden layer."""
    mask_size: int = 0
    """How many of the last numbers of a row say which of the first outputs are allowed."""
    layout: RowLayout | None = None
    """What a row is, where there are images in it."""
    normalizes: RowLayout | None = None
    """What a row is, where it is normalised first."""

    def actor(self, parameters: Sequence[Array], version: int = 0) -> NumpyActor | NumpyImageActor | NormalizingActor:
        """The actor, with its arrays as `networks.forms.arrays_of` gives them."""
        if self.normalizes is not None:
            *own, mean, variance = parameters
            return NormalizingActor(self._actor(own, version), parameters, self.normalizes, mean, variance)
        return self._actor(parameters, version)

    def _actor(self, parameters: Sequence[Array], version: int) -> NumpyActor | NumpyImageActor:
        if self.layout is not None:
            return NumpyImageActor(self.layout, parameters, self.activation, version, self.mask_size)
        return NumpyActor(parameters, self.activation, version, self.mask_size)
