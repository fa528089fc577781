"""A second device for the tests, on machines that have none: its tensors lie in the CPU's memory, but out of its reach.

    def test(second_device: str) -> None:           # the fixture in conftest.py registers it
        tensor = torch.zeros(3, device=second_device)
        tensor + torch.ones(3)                      # refused, as on CUDA
        tensor.numpy()                              # refused, as on CUDA

A copy that is forced on the CPU says how often something crossed, but never that something was left behind: there,
every tensor is where it should be. Here, an operation on tensors of both devices is an error, and results are the CPU's
bit for bit, since it is the CPU that computes them. torch takes such a device from Python: a name, a tensor that hides
another, and a fallback for the operations that have no such tensor among their arguments.

Stricter than CUDA in one thing: an index that lies on the CPU is refused, which CUDA would copy.

What it cannot show: anything that is asynchronous (streams, events, copies from page-locked memory that are not over
yet), CUDA graphs and what only they want on the device (a learning rate, which operations take from the CPU), autocast,
more than one such device, another rounding, and whether any of it is fast.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import backend_registration

NAME = "second"
_CROSSINGS = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


_ABOUT_TENSORS = (torch.ops.aten._has_compatible_shallow_copy_type.default,)
"""Operations that ask about a tensor, and not about its contents."""


class Crossings:
    """Copies, by the name of the operation: to the host (numbers and truth values included), and to the device."""

    def __init__(self) -> None:
        self.to_host: list[str] = []
        self.to_device: list[str] = []


_counting: list[Crossings] = []


@contextmanager
def counted_crossings() -> Iterator[Crossings]:
    """Count all copies between the devices within this context."""
    crossings = Crossings()
    _counting.append(crossings)
    try:
        yield crossings
    finally:
        _counting.remove(crossings)


def _count(operation: Any, args: Any, results: Any) -> None:
    is_there = [isinstance(arg, SecondTensor) for arg in args if isinstance(arg, Tensor)]
    gives_tensor_there = isinstance(results, SecondTensor) or not isinstance(results, (Tensor, int, float, bool))
    for crossings in _counting if operation not in _ABOUT_TENSORS else ():
        if any(is_there) and not gives_tensor_there:
            crossings.to_host.append(str(operation))
        elif operation in _CROSSINGS and not all(is_there):
            crossings.to_device.append(str(operation))


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
    """The CPU's results for the hidden tensors, hidden again; an error if CPU tensors are among the arguments."""
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
    kernel = _KERNELS.get(operation, operation)
    results = kernel(*_each(hidden, args), **{name: _each(hidden, value) for name, value in kwargs.items()})

    def shown(value: Any) -> Any:
        if not isinstance(value, Tensor) or leaves_the_device:
            return value
        if id(value) not in given:
            return SecondTensor(value)
        same = given[id(value)]
        if isinstance(same, SecondTensor) and (same.shape, same.stride()) != (value.shape, value.stride()):
            same.data = SecondTensor(value)  # it was resized
        return same

    shown_results = _each(shown, results)
    if _counting:
        _count(operation, args, shown_results)
    return shown_results


def _lstm_cell(of_inputs: Any, of_state: Any, cell: Any, bias: Any = None, bias_state: Any = None) -> Any:
    let_in, keep, new, let_out = (of_inputs + of_state + bias + bias_state).chunk(4, 1)
    let_in, keep, new, let_out = let_in.sigmoid(), keep.sigmoid(), new.tanh(), let_out.sigmoid()
    after = keep * cell + let_in * new
    return let_out * after.tanh(), after, torch.cat((let_in, keep, new, let_out), 1)


def _lstm_cell_backward(of_output: Any, of_after: Any, cell: Any, after: Any, gates: Any, has_bias: bool) -> Any:
    let_in, keep, new, let_out = gates.chunk(4, 1)
    squashed = after.tanh()
    of_output = torch.zeros_like(after) if of_output is None else of_output
    of_cell = of_output * let_out * (1 - squashed**2) + (0 if of_after is None else of_after)
    of_gates = torch.cat((of_cell * new, of_cell * cell, of_cell * let_in, of_output * squashed), 1)
    of_gates *= torch.cat((let_in * (1 - let_in), keep * (1 - keep), 1 - new**2, let_out * (1 - let_out)), 1)
    return of_gates, of_cell * keep, of_gates.sum(0)


def _gru_cell(of_inputs: Any, of_state: Any, state: Any, bias: Any = None, bias_state: Any = None) -> Any:
    reset, update, new = (of_inputs + bias).chunk(3, 1)
    reset_of_state, update_of_state, new_of_state = (of_state + bias_state).chunk(3, 1)
    reset, update = (reset + reset_of_state).sigmoid(), (update + update_of_state).sigmoid()
    new = (new + reset * new_of_state).tanh()
    return new + update * (state - new), torch.cat((reset, update, new, state, new_of_state), 1)


def _gru_cell_backward(of_output: Any, workspace: Any, has_bias: bool) -> Any:
    reset, update, new, state, new_of_state = workspace.chunk(5, 1)
    of_new = of_output * (1 - update) * (1 - new**2)
    of_update = of_output * (state - new) * update * (1 - update)
    of_reset = of_new * new_of_state * reset * (1 - reset)
    of_inputs = torch.cat((of_reset, of_update, of_new), 1)
    of_state = torch.cat((of_reset, of_update, of_new * reset), 1)
    return of_inputs, of_state, of_output * update, of_inputs.sum(0), of_state.sum(0)


_KERNELS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._thnn_fused_lstm_cell.default: _lstm_cell,
    torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    torch.ops.aten._thnn_fused_gru_cell.default: _gru_cell,
    torch.ops.aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
"""Operations that torch needs of every device but the CPU."""


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to a value, or to each member of a list or tuple."""
    if isinstance(value, (list, tuple)):
        return type(value)([_each(function, one) for one in value])
    return function(value)


class Module:
    """`torch.second`: what torch and code that waits for a device need of it."""

    waits = 0

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def synchronize(self) -> None:
        Module.waits += 1


def is_possible() -> bool:
    """Whether this version of torch accepts a device written in Python."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def announce() -> None:
    """Let torch expect a device that will be registered: the first `backward` of a process starts threads for all.

    Nothing else changes yet: there is no device, under any name.
    """
    if is_possible():
        torch._C._acc.register_python_privateuseone_device_guard(backend_registration._DummyDeviceGuard())


@cache
def register() -> str:
    """Register the device with torch, from now on in this process; returns its name, as torch writes it."""
    if not is_possible():
        pytest.skip(f"torch {torch.__version__} takes no device from Python")
    # As after any other tests: were the device not announced, this file alone would show it too.
    torch.ones(1, requires_grad=True).sum().backward()
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    # torch gives every module a method of the device's name, which would hide a layer that is called so.
    delattr(nn.Module, NAME)
    operations, fallback = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    # By name: a test may put another in the place of `_compute`, which must see new memory as well.
    fallback.fallback(lambda operation, *args, **kwargs: _compute(operation, *args, **kwargs), "PrivateUse1")
    # torch.tensor(..., device=...) copies where no subclass is asked, and there a fallback is not enough.
    operations.impl("copy_", partial(_compute, torch.ops.aten.copy_.default), "PrivateUse1")
    register.libraries = operations, fallback  # good as long as somebody holds them
    return f"{NAME}:0"
