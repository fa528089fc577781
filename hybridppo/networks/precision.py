"""The precision of the learner's matrix products: float32, or TF32 or bfloat16 on hardware that supports them.

TF32 rounds the factors of products and convolutions to 11 significant bits, and nothing else. torch's default is TF32
for convolutions and float32 for products. Here, "fp32" is float32 for both, so that a GPU gives the results of a CPU
within the tolerance of float32; "tf32" is an option for speed.

bfloat16 is torch's autocast in the optimizer steps, which autograd then computes: it rounds the factors of products and
the activations to 8 significant bits. Parameters, last layers, losses, gradients, the optimizer, and the values for
returns stay float32.

Actions are drawn in float32. An update with rounded products therefore begins with log-probabilities of its own
precision, so that rounding is not mistaken for a change of the policy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hybridppo.errors import DeviceError
from hybridppo.networks.twins import linears
from hybridppo.system.devices import accelerator_of

Precision = Literal["fp32", "bf16", "tf32"]

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "tf32")


def supports_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 faster than float32."""
    return accelerator_of(device).supports_bf16()


def require(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that the device can only emulate.

    Raises:
        DeviceError: with the remedy.
    """
    if precision == "bf16" and not supports_bf16(device):
        known = {"cuda": "tensor cores for it (Ampere or newer)", "cpu": "AVX512-BF16 or AMX"}
        wanted = known.get(device.type, "support for it here")
        raise DeviceError(f"precision 'bf16' was asked for, but {device} has no {wanted}: use precision='fp32'")
    if precision == "tf32" and not accelerator_of(device).supports_tf32():
        wanted = "tensor cores for it (a CUDA device, Ampere or newer)"
        raise DeviceError(f"precision 'tf32' was asked for, but {device} has no {wanted}: use precision='fp32'")


@contextmanager
def float32_products(precision: Precision, *devices: torch.device) -> Iterator[None]:
    """A context in which CUDA devices multiply in TF32 if the precision is "tf32", else in float32.

    It sets torch's switches, which hold for the process, and restores them afterwards. Other devices are not affected.
    """
    if not any(device.type == "cuda" for device in devices):
        yield
        return
    backends: Any = torch.backends
    # One switch per operation, as in torch 2.9 and newer. The older allow_tf32 must not be read meanwhile.
    switches = backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def rounding(
    precision: Precision, device: torch.device, networks: Sequence[nn.Module]
) -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes contexts in which torch's layers multiply in this precision.

    The last linear layer of each network stays float32: its outputs are log-probabilities, or are divided by a
    deviation that may be small.
    """
    if precision != "bf16":
        return nullcontext
    heads = [layers[-1] for network in networks if (layers := linears(network))]
    return partial(_autocast, device, heads)


@contextmanager
def _autocast(device: torch.device, heads: Sequence[nn.Module]) -> Iterator[None]:
    def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        torch.set_autocast_enabled(device.type, False)
        return tuple(each.float() for each in inputs)

    def after(*_: Any) -> None:
        torch.set_autocast_enabled(device.type, True)

    with ExitStack() as stack:
        for head in heads:
            stack.callback(head.register_forward_pre_hook(before).remove)
            stack.callback(head.register_forward_hook(after, always_call=True).remove)
        stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        yield


def products_in(weight: Tensor) -> torch.dtype:
    """The type in which a layer with this weight multiplies: that of autocast within it, else the weight's."""
    device = weight.device.type
    is_rounded = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_rounded else weight.dtype


def float32_linear(inputs: Tensor, weight: Tensor) -> Tensor:
    """`torch.nn.functional.linear` in float32, also within autocast."""
    if not torch.is_autocast_enabled(inputs.device.type):
        return nn.functional.linear(inputs, weight)
    with torch.autocast(inputs.device.type, enabled=False):
        return nn.functional.linear(inputs.float(), weight)
