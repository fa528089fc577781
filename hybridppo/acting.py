"""Actors as samplers see them: host arrays in, host arrays out."""

from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import nn

from hybridppo.interfaces import SamplingActor
from hybridppo.numpy_mlp import NumpyActor, is_supported

if TYPE_CHECKING:
    from hybridppo.placement import Crossing


def sampling_actor(module: nn.Module, crossing: "Crossing", version: int) -> SamplingActor:
    """The fastest form of an actor for where its parameters are now; make another once they have moved."""
    return NumpyActor(module, version) if is_supported(module) else TorchActor(module, crossing, version)


class TorchActor:
    """Any torch module, on any device; what the device is, only `crossing` knows."""

    def __init__(self, module: nn.Module, crossing: "Crossing", version: int = 0) -> None:
        self.version = version
        self._module = module
        self._crossing = crossing

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        return self._crossing.to_host(self._module(self._crossing.to_device(observations)))
