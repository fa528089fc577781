"""Actors as samplers see them: host arrays in, host arrays out."""

from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import nn

from hybridppo.interfaces import SamplingActor
from hybridppo.networks.forms import arrays_of, is_on_cpu, numpy_form

if TYPE_CHECKING:
    from hybridppo.placements.crossing import Crossing


def sampling_actor(network: nn.Module, crossing: "Crossing", version: int) -> SamplingActor:
    """The fastest form of an actor, with the parameters it has now, where they are now."""
    form = numpy_form(network)
    if form is not None and is_on_cpu(network):
        return form.actor([tensor.numpy() for tensor in arrays_of(network)], version)
    return TorchActor(network, crossing, version)


class TorchActor:
    """Any torch module, on any device; what the device is, only `crossing` knows."""

    def __init__(self, network: nn.Module, crossing: "Crossing", version: int = 0) -> None:
        self.version = version
        self._network = network
        self._crossing = crossing

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        with self._crossing.queue():
            return self._crossing.to_host(self._network(self._crossing.to_device(observations)))
