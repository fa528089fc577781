"""Parameters in one contiguous buffer, so that a copy, a norm or an optimizer step is one operation."""

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.errors import ConfigurationError


def bind(tensor: Tensor, storage: Tensor) -> None:
    """Let a parameter or a buffer use other memory, on any device; the Python object stays the same.

    Its gradient is dropped, because it must be on the device of its parameter.
    """
    tensor.grad = None
    if torch._has_compatible_shallow_copy_type(tensor, storage):
        tensor.data = storage
        return
    # torch sets `data` only between devices that it has built in. For all other devices there is the
    # exchange of whole tensors, which `module.to` uses as well.
    is_parameter = isinstance(tensor, nn.Parameter)
    other = nn.Parameter(storage, tensor.requires_grad) if is_parameter else storage.detach()
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]


def place_of(parameter: Tensor, values: Tensor) -> int:
    """Where a parameter begins in the buffer of all parameters."""
    return (parameter.data_ptr() - values.data_ptr()) // parameter.element_size()


class FlatParameters:
    """The parameters of several networks as views of one 1-D tensor, and their gradients as views of another.

    `values` is the leaf that the optimizer steps; `loss.backward()` fills `values.grad` through the networks'
    parameters. The networks stay ordinary modules.

    A device may compute faster on tensors that begin at aligned addresses. There are then gaps between parameters,
    which stay zero because no gradient reaches them. Files have no gaps (`dense`, `spread`).

    Args:
        networks: the networks by name. Parameters lie in this order; shared ones lie with the first network.
        alignment: each parameter begins at a multiple of so many numbers.

    Raises:
        ConfigurationError: if a network holds parameters that are not float32.
    """

    def __init__(self, networks: Mapping[str, nn.Module], alignment: int = 1) -> None:
        seen: set[nn.Parameter] = set()
        self._parameters: dict[str, list[nn.Parameter]] = {}
        for name, network in networks.items():
            self._parameters[name] = [parameter for parameter in network.parameters() if parameter not in seen]
            seen.update(self._parameters[name])
        everything = [parameter for network in self._parameters.values() for parameter in network]
        if any(parameter.dtype != torch.float32 for parameter in everything):
            found = ", ".join(sorted({str(parameter.dtype) for parameter in everything}))
            raise ConfigurationError(
                f"parameters must be float32, got {found}: agents are made and trained with torch's own default type, "
                "torch.set_default_dtype(torch.float32)"
            )
        self.values = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in everything]))
        self.binding = 0
        """How often the buffers were bound to memory: views must be made anew when this changes."""
        self.alignment = 1
        self._size = len(self.values)
        self.rebind(self.values.data)
        self.align(alignment)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes for copies and pickles, without gradients."""
        return {**vars(self), "_gradients": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the networks of a copy be views of its buffer, since copied tensors share no memory."""
        vars(self).update(state)
        self.rebind(self.values.data)

    def align(self, alignment: int) -> Callable[[Tensor], Tensor]:
        """Let each parameter begin at a multiple of so many numbers, in another buffer if necessary.

        Returns:
            A function that changes the layout of another tensor in the same way, such as the optimizer's moments; it
            returns tensors of another size unchanged.
        """
        if alignment == self.alignment:
            return lambda tensor: tensor
        before, old_size = self._parts(), len(self.values)
        self.alignment = alignment
        self._size = sum(self._room(parameter) for parameter in self.everything())

        def laid_out_anew(tensor: Tensor) -> Tensor:
            is_like_before = tensor.shape == (old_size,)
            return self.spread(torch.cat([tensor[part] for part in before])) if is_like_before else tensor

        self.rebind(laid_out_anew(self.values.data))
        return laid_out_anew

    def dense(self, tensor: Tensor) -> Tensor:
        """A tensor with the layout of the buffer, without the gaps; any other tensor unchanged."""
        if self.alignment == 1 or tensor.shape != (self._size,):
            return tensor
        return torch.cat([tensor[part] for part in self._parts()])

    def spread(self, tensor: Tensor) -> Tensor:
        """The result of `dense` with the present gaps of the buffer; any other tensor unchanged."""
        sizes = [parameter.numel() for parameter in self.everything()]
        if self.alignment == 1 or tensor.shape != (sum(sizes),):
            return tensor
        spread = tensor.new_zeros(self._size)
        for part, own in zip(self._parts(), torch.split(tensor, sizes), strict=True):
            spread[part] = own
        return spread

    def everything(self) -> list[nn.Parameter]:
        """All parameters in their order in the buffer."""
        return [parameter for network in self._parameters.values() for parameter in network]

    @property
    def frozen(self) -> tuple[slice, ...]:
        """The slices of the parameters that do not learn because their `requires_grad` is False."""
        everything = self.everything()
        if all(parameter.requires_grad for parameter in everything):
            return ()
        pairs = zip(everything, self._parts(), strict=True)
        return tuple(part for parameter, part in pairs if not parameter.requires_grad)

    def zero_frozen(self) -> None:
        """Set the gradient of frozen parameters to zero, if it was computed nevertheless."""
        for part in self.frozen:
            self.gradient[part] = 0.0

    def of_network(self, name: str) -> list[nn.Parameter]:
        """The parameters of one network."""
        return self._parameters[name]

    def _room(self, parameter: Tensor) -> int:
        return -(-parameter.numel() // self.alignment) * self.alignment

    def _parts(self) -> list[slice]:
        """The slice of each parameter."""
        everything = self.everything()
        starts = accumulate(map(self._room, everything[:-1]), initial=0)
        return [slice(start, start + each.numel()) for start, each in zip(starts, everything, strict=True)]

    def rebind(self, storage: Tensor) -> None:
        """Replace the buffer by `storage`, on any device, which has the same layout and values; all views follow."""
        self.binding += 1
        bind(self.values, storage)
        gradient = torch.zeros_like(storage)
        pairs = list(zip(self.everything(), self._parts(), strict=True))
        self._gradients = [gradient[part].view(parameter.shape) for parameter, part in pairs]
        for parameter, part in pairs:
            bind(parameter, storage[part].view(parameter.shape))
        self.attach_gradients()
        sizes = [sum(map(self._room, parameters)) for parameters in self._parameters.values()]
        ends = pairwise(accumulate(sizes, initial=0))
        self._ranges = {name: slice(*own) for name, own in zip(self._parameters, ends, strict=True)}
        self.values.grad = gradient

    def require_all_of(self, *networks: nn.Module) -> None:
        """Refuse networks with parameters that are not views of the buffer: no optimizer step would change them.

        Raises:
            ConfigurationError: naming the parameter.
        """
        if not (self.values.is_cpu or self.values.is_cuda):  # torch knows no addresses of some other devices
            return
        ours = self.values.untyped_storage().data_ptr()
        for name, parameter in (named for network in networks for named in network.named_parameters()):
            if parameter.untyped_storage().data_ptr() != ours:
                raise ConfigurationError(
                    f"the parameter {name} of a network was replaced, and would not be trained: write into it, by "
                    "parameter.data.copy_(values) or load_state_dict(..., assign=False); for other networks, pass "
                    "networks=... to train"
                )

    def attach_gradients(self) -> None:
        """Let backward passes fill the flat gradient, also after an optimizer of the user's has set others, or None."""
        for parameter, own in zip(self.everything(), self._gradients, strict=True):
            if parameter.grad is not own:
                parameter.grad = own

    @property
    def gradient(self) -> Tensor:
        """The gradient `[P]`, which `backward` fills."""
        assert self.values.grad is not None  # made with the buffer and never dropped
        return self.values.grad

    def range_of(self, name: str) -> slice:
        """The slice of the values of one network."""
        return self._ranges[name]

    def of(self, name: str) -> Tensor:
        """The values of one network, `[P_name]`; a view."""
        return self.values.data[self._ranges[name]]
