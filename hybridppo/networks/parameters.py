"""Parameters in one contiguous buffer, so that a copy, a norm or an optimizer step is one operation."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters of several networks as views of one 1-D tensor, and their gradients of another.

    `values` is the leaf that the optimizer steps; `loss.backward()` fills `values.grad` through the
    networks' own parameters. The networks stay ordinary modules.

    Raises:
        TypeError: where a network holds parameters that are not float32.
    """

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        self._parameters = {name: list(network.parameters()) for name, network in networks.items()}
        everything = [parameter for network in self._parameters.values() for parameter in network]
        if any(parameter.dtype != torch.float32 for parameter in everything):
            raise TypeError(f"parameters must be float32, got {sorted({str(p.dtype) for p in everything})}")
        self.values = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in everything]))
        self.binding = 0
        """How often the buffers were bound: whoever keeps views of them must make new ones when it changes."""
        self.rebind(self.values.data)

    def rebind(self, storage: Tensor) -> None:
        """Make `storage` (`[P]`, any device, holding the values already) the buffer all views show."""
        self.binding += 1
        self.values.grad = None  # a gradient may not lie on another device than its parameter
        self.values.data = storage
        gradient = torch.zeros_like(storage)
        self._ranges: dict[str, slice] = {}
        offset = 0
        for name, parameters in self._parameters.items():
            start = offset
            for parameter in parameters:
                end = offset + parameter.numel()
                parameter.grad = None
                parameter.data = storage[offset:end].view(parameter.shape)
                parameter.grad = gradient[offset:end].view(parameter.shape)
                offset = end
            self._ranges[name] = slice(start, offset)
        self.values.grad = gradient

    @property
    def gradient(self) -> Tensor:
        """`[P]`, what `backward` fills."""
        assert self.values.grad is not None  # made with the buffer, and never dropped
        return self.values.grad

    def range_of(self, name: str) -> slice:
        """Where the values of one network lie, `[P_name]` of them."""
        return self._ranges[name]

    def of(self, name: str) -> Tensor:
        """The values of one network, `[P_name]`, a view."""
        return self.values.data[self._ranges[name]]
