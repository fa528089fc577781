"""A second device for the tests, on machines that have none: its tensors lie in the CPU's memory, but out of its reach.

    def test(second_device: str) -> None:           # the fixture in conftest.py registers it
        tensor = torch.zeros(3, device=second_device)
        tensor + torch.ones(3)                      # refused, as on CUDA
        tensor.numpy()                              # refused, as on CUDA

A copy that is forced on the CPU says how often something crossed, but never that something was left behind: there, every
tensor is where it should be. Here, an operation on tensors of both devices is an error, and results are the CPU's bit
for bit, since it is the CPU that computes them. torch takes such a device from Python: a name, a tensor that hides
another, and a fallback for the operations without tensors among their arguments.

Stricter than CUDA in one thing: an index that lies on the CPU is refused, which CUDA would copy.

What it cannot show: anything that is asynchronous (streams, events, copies from page-locked memory that are not over
yet), CUDA graphs, autocast, more than one such device, another rounding, and whether any of it is fast.
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree, backend_registration

NAME = "second"
_CROSSINGS = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class SecondTensor(Tensor):
    """A tensor of the second device, which hides one of the CPU; a view hides a view."""

    hidden: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, hidden: Tensor) -> "SecondTensor":
        tensor = Tensor._make_wrapper_subclass(
            cls,
            hidden.shape,
            strides=hidden.stride(),
            storage_offset=hidden.storage_offset(),
            dtype=hidden.dtype,
            device=f"{NAME}:0",
        )
        tensor.hidden = hidden
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(operation, *args, **(kwargs or {}))

    def _set_data(self, tensor: Tensor) -> None:
        Tensor.data.__set__(self, tensor)  # torch refuses what is of another device
        self.hidden = tensor.hidden

    data = property(Tensor.data.__get__, _set_data)

    def tolist(self) -> Any:
        return self.cpu().tolist()  # which torch does for devices that it knows

    def __deepcopy__(self, memo: dict[int, Any]) -> "SecondTensor":
        copied = self.detach().clone()
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:
        return f"{NAME}:{self.hidden}"


def _compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """What the CPU makes of the hidden tensors, hidden again; an error where tensors of the CPU are among them."""
    given: dict[int, Tensor] = {}

    def hidden(value: Any) -> Any:
        if isinstance(value, SecondTensor):
            given[id(value.hidden)] = value
            return value.hidden
        if isinstance(value, Tensor):
            # Numbers may be tensors of the CPU, as on CUDA; but not within a list of tensors.
            is_number = value.ndim == 0 and any(value is argument for argument in (*args, *kwargs.values()))
            if not is_number and operation not in _CROSSINGS:
                raise RuntimeError(f"all tensors of {operation} must be on {NAME}:0, but there is one of the CPU")
            given[id(value)] = value
        return torch.device("cpu") if isinstance(value, torch.device) else value

    leaves_the_device = kwargs.get("device") == torch.device("cpu")
    results = operation(*_pytree.tree_map(hidden, args), **_pytree.tree_map(hidden, kwargs))

    def shown(value: Any) -> Any:
        if not isinstance(value, Tensor) or leaves_the_device:
            return value
        if id(value) not in given:
            return SecondTensor(value)
        same = given[id(value)]
        if isinstance(same, SecondTensor) and (same.shape, same.stride()) != (value.shape, value.stride()):
            same.data = SecondTensor(value)  # it was resized
        return same

    return _pytree.tree_map(shown, results)


class _Module(backend_registration._DummyBackendModule):
    """What torch asks of `torch.second`, and what those do who wait for a device."""

    waits = 0

    def synchronize(self) -> None:
        _Module.waits += 1


@cache
def register() -> str:
    """Make the device known to torch, from now on in this process; its name, as torch writes it."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip(f"torch {torch.__version__} takes no device from Python")
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    register.library = torch.library.Library("_", "IMPL")  # good as long as somebody holds it
    register.library.fallback(_compute, "PrivateUse1")
    return f"{NAME}:0"
