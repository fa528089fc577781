"""Parameters in one contiguous buffer, so that a copy, a norm or an optimizer step is one operation."""

from collections.abc import Callable, Mapping

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

    Where a device computes faster on tensors that begin at round addresses, there are gaps between them, which hold
    zeros and stay zero: no gradient reaches them. Files know no gaps (`dense`, `spread`).

    Args:
        networks: by name; their parameters lie in this order, those that two share with the first.
        alignment: each parameter begins at a multiple of so many numbers.

    Raises:
        TypeError: if a network holds parameters that are not float32.
    """

    def __init__(self, networks: Mapping[str, nn.Module], alignment: int = 1) -> None:
        seen: set[nn.Parameter] = set()
        self._parameters: dict[str, list[nn.Parameter]] = {}
        for name, network in networks.items():
            self._parameters[name] = [parameter for parameter in network.parameters() if parameter not in seen]
            seen.update(self._parameters[name])
        everything = [parameter for network in self._parameters.values() for parameter in network]
        if any(parameter.dtype != torch.float32 for parameter in everything):
            raise TypeError(f"parameters must be float32, got {sorted({str(p.dtype) for p in everything})}")
        self.values = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in everything]))
        self.binding = 0
        """How often the buffers were bound: whoever keeps views of them must make new ones when it changes."""
        self.alignment = 1
        self._size = len(self.values)
        self.rebind(self.values.data)
        self.align(alignment)

    def align(self, alignment: int) -> Callable[[Tensor], Tensor]:
        """Let each parameter begin at a multiple of so many numbers, in another buffer if need be.

        Returns:
            What lays another tensor out anew that was laid out as the buffer was, such as an optimizer's; others are
            given back as they are.
        """
        if alignment == self.alignment:
            return lambda tensor: tensor
        before, sizes = self._parts(), [parameter.numel() for parameter in self.everything()]
        old_size = len(self.values)
        self.alignment = alignment
        self._size = sum(self._room(size) for size in sizes)
        after = self._parts()

        def laid_out_anew(tensor: Tensor) -> Tensor:
            if tensor.shape != (old_size,):
                return tensor
            anew = tensor.new_zeros(self._size)
            for old, new in zip(before, after, strict=True):
                anew[new] = tensor[old]
            return anew

        self.rebind(laid_out_anew(self.values.data))
        return laid_out_anew

    def dense(self, tensor: Tensor) -> Tensor:
        """A tensor that is laid out as the buffer, without the gaps; any other as it is."""
        if self.alignment == 1 or tensor.shape != (self._size,):
            return tensor
        return torch.cat([tensor[part] for part in self._parts()])

    def spread(self, tensor: Tensor) -> Tensor:
        """What `dense` gave, with the gaps that the buffer has now; any other as it is."""
        if self.alignment == 1 or tensor.shape != (sum(parameter.numel() for parameter in self.everything()),):
            return tensor
        spread, start = tensor.new_zeros(self._size), 0
        for part in self._parts():
            end = start + part.stop - part.start
            spread[part] = tensor[start:end]
            start = end
        return spread

    def everything(self) -> list[nn.Parameter]:
        """The parameters in the order in which they lie."""
        return [parameter for network in self._parameters.values() for parameter in network]

    def _room(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def _parts(self) -> list[slice]:
        """Where each parameter lies."""
        parts, offset = [], 0
        for parameter in self.everything():
            parts.append(slice(offset, offset + parameter.numel()))
            offset += self._room(parameter.numel())
        return parts

    def rebind(self, storage: Tensor) -> None:
        """Make `storage` (any device, laid out as the buffer is, and holding its values) the buffer all views show."""
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
                offset += self._room(parameter.numel())
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
