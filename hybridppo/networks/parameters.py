"""Parameters in one contiguous buffer, so that a copy, a norm or an optimizer step is one operation."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def bind(tensor: Tensor, storage: Tensor) -> None:
    """Make a parameter or a buffer show other memory, of any device; it stays the object that others hold.

    Its gradient is dropped: it may not lie on another device than its parameter.
    """
    tensor.grad = None
    if torch._has_compatible_shallow_copy_type(tensor, storage):
        tensor.data = storage
        return
    # torch changes the data of a tensor only between devices that it brings itself. For all others there is the
    # exchange of whole tensors, of which `module.to` makes use likewise.
    is_parameter = isinstance(tensor, nn.Parameter)
    other = nn.Parameter(storage, tensor.requires_grad) if is_parameter else storage.detach()
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]


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
        bind(self.values, storage)
        gradient = torch.zeros_like(storage)
        self._ranges: dict[str, slice] = {}
        offset = 0
        for name, parameters in self._parameters.items():
            start = offset
            for parameter in parameters:
                end = offset + parameter.numel()
                bind(parameter, storage[offset:end].view(parameter.shape))
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
