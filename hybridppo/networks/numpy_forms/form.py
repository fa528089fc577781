"""What NumPy needs to know of an actor, beside its parameters, to stand in for it.

Free of torch, for worker processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hybridppo.networks.numpy_forms.actor import NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.images import NumpyImageActor
from hybridppo.spaces.images import ImageLayout

Array = NDArray[Any]


@dataclass(frozen=True)
class NumpyForm:
    """Which actor the parameters are of."""

    activation: NumpyActivation
    """Of every hidden layer."""
    has_mask: bool = False
    """Whether the last numbers of an observation say which outputs are allowed."""
    image: ImageLayout | None = None
    """How images lie in observations, where these are images."""

    def actor(self, parameters: Sequence[Array], version: int = 0) -> NumpyActor | NumpyImageActor:
        """The actor, with parameters in torch's order."""
        if self.image is not None:
            return NumpyImageActor(self.image, parameters, self.activation, version)
        return NumpyActor(parameters, self.activation, version, self.has_mask)
