"""Actors as samplers see them: host arrays in, host arrays out."""

from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import nn

if TYPE_CHECKING:
    from hybridppo.placement import Crossing


class TorchActor:
    """Any torch module, on any device; what the device is, only `crossing` knows."""

    def __init__(self, module: nn.Module, crossing: "Crossing") -> None:
        self.version = 0
        self._module = module
        self._crossing = crossing

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        return self._crossing.to_host(self._module(self._crossing.to_device(observations)))
