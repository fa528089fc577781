"""How networks compute: in `train()` or `eval()`, with which random numbers, and with products in which precision.

Networks are in `train()` while gradients are computed, and in `eval()` otherwise. The library's own networks do not
depend on the mode, and are never switched.

TF32 rounds the factors of products and convolutions to 11 significant bits, and nothing else. torch's default is TF32
for convolutions and float32 for products. Here, "fp32" is float32 for both, so that a GPU gives the results of a CPU
within the tolerance of float32; "tf32" is an option for speed.

bfloat16 is torch's autocast in the optimizer steps, which autograd then computes: it rounds the factors of products and
the activations to 8 significant bits. Parameters, last layers, losses, gradients, the optimizer, and the values for
returns stay float32.

On a CPU with AVX512, large linear layers multiply by oneDNN in float32 optimizer steps. torch uses MKL for them, which
was half as fast on an AMD processor. oneDNN rounds differently.

Actions are drawn in float32. An update with rounded products therefore begins with log-probabilities of its own
precision, so that rounding is not mistaken for a change of the policy.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hybridppo.errors import ConfigurationError, DeviceError
from hybridppo.system.devices import accelerator_of

INDEPENDENT = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.Embedding, nn.Sequential, nn.ModuleList, nn.ModuleDict,
    nn.Identity, nn.Flatten, nn.MaxPool2d, nn.AvgPool2d, nn.Tanh, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU,
    nn.Sigmoid, nn.Softplus,
)  # fmt: skip
"""Modules of torch that do not depend on the mode; any other module may."""

HOST = torch.device("cpu")
_one_thread = threading.RLock()


def depend_on_training(*networks: nn.Module) -> bool:
    """Whether some module may behave differently in `train()` and `eval()`."""
    return any(_dependent(network) for network in networks)


def _dependent(network: nn.Module) -> tuple[str, str] | None:
    """The path and the class of the first module that may depend on the mode."""
    for path, module in network.named_modules():
        kind = type(module)
        if kind not in INDEPENDENT and not kind.__module__.startswith("hybridppo."):
            return path, kind.__name__
    return None


def require_same_everywhere(networks: Mapping[str, nn.Module]) -> None:
    """Refuse networks that would differ between several learners.

    Raises:
        ConfigurationError: with the module and the remedy.
    """
    for name, network in networks.items():
        if found := _dependent(network):
            path, kind = found
            raise ConfigurationError(
                f"{name}{f'.{path}' if path else ''} is a {kind}, which cannot be shared by several learners: it may "
                "depend on train(), as dropout and batch normalisation do, or keep numbers of its own, and would "
                "differ between them. Use distributed='local', or build it of torch's other layers, as nn.LayerNorm"
            )


def learning_mode(*networks: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Put the networks in `eval()`; return a function that makes contexts in which they are in `train()`."""
    for network in networks:
        network.eval()
    return partial(_training, networks) if depend_on_training(*networks) else nullcontext


def share_buffers(network: nn.Module, with_network: nn.Module) -> None:
    """Share the buffers of a network with its copy, so that a target network has the newest statistics, too."""
    for module, other in zip(network.modules(), with_network.modules(), strict=True):
        module._buffers.update(other._buffers)


@contextmanager
def _training(networks: Sequence[nn.Module]) -> Iterator[None]:
    try:
        for network in networks:
            network.train()
        yield
    finally:
        for network in networks:
            network.eval()


@contextmanager
def noise_from(seed: Sequence[int], device: torch.device) -> Iterator[None]:
    """A context in which modules draw random numbers that follow from `seed`; it restores torch's generators.

    Dropout can only draw from torch's global generators.
    """
    with torch_seeded(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) >> 1, device):
        yield


@contextmanager
def torch_seeded(seed: int, device: torch.device = HOST) -> Iterator[None]:
    """A context in which torch's global generators have this seed; it restores them.

    Other threads wait for its end, because their trainings have the same generators.
    """
    is_on_host = device.type == "cpu"
    devices, kind = ([], "cuda") if is_on_host else ([device], device.type)
    with _one_thread, torch.random.fork_rng(devices, device_type=kind):
        torch.manual_seed(seed)
        yield


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

    With bfloat16, the last linear layer of each network stays float32: its outputs are log-probabilities, or are
    divided by a deviation that may be small. In float32, large linear layers on a CPU multiply by oneDNN.
    """
    if precision != "bf16":
        are_large = any(_is_large(layer.weight) for network in networks for layer in linears(network))
        return ByOneDNN if device.type == "cpu" and are_large and has_onednn() else nullcontext
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


LARGE, MUCH = 2**17, 2**22
"""The fewest weights of a linear layer that multiplies by oneDNN, and the fewest products of a weight and an input in a
call. With less, the calls take longer than the products."""


def _is_large(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.numel() >= LARGE


@cache
def has_onednn() -> bool:
    """Whether oneDNN is there and multiplies in AVX512."""
    has_product = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_product and torch.backends.cpu.get_cpu_capability() == "AVX512"


class ByOneDNN(TorchFunctionMode):
    """A context in which large linear layers multiply by oneDNN."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The layer's output, `[..., outputs]`; other functions are called as they are."""
        if function is not nn.functional.linear or len(args) < 3 or torch._C._are_functorch_transforms_active():
            return function(*args, **(kwargs or {}))
        inputs, weight, bias = args
        is_much = inputs.numel() * len(weight) >= MUCH
        if not (_is_large(weight) and is_much) or inputs.dtype != weight.dtype:
            return function(inputs, weight, bias)
        outputs: Tensor = _product(inputs.reshape(-1, inputs.shape[-1]), weight, bias)
        return outputs.view(*inputs.shape[:-1], len(weight))


class _Product(torch.autograd.Function):
    """`inputs @ weight.T + bias` by oneDNN: `[B, inputs]` and `[outputs, inputs]` to `[B, outputs]`."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        saved = inputs, weight
        context.save_for_backward(*saved)
        # A view of some columns would be multiplied ten thousand times as slowly.
        factors = (each if each.is_contiguous() or each.t().is_contiguous() else each.contiguous() for each in saved)
        return torch.ops.mkldnn._linear_pointwise(*factors, bias, "none", [], "")

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (inputs, weight) = gradients, context.saved_tensors
        of_inputs, of_weight, of_bias = context.needs_input_grad
        # By themselves, so that they can be differentiated, too.
        return (
            _product(gradient, weight.t(), None) if of_inputs else None,
            _product(gradient.t(), inputs.t(), None) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


_product: Callable[..., Any] = _Product.apply


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


def linears(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of a network, first to last."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def has_gradient_hooks(*networks: nn.Module) -> bool:
    """Whether networks or their parameters have hooks of gradients, which only autograd would call."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    modules = [module for network in networks for module in network.modules()]
    of_parameters = any(each._backward_hooks or each._post_accumulate_grad_hooks for each in parameters)
    return of_parameters or any(each._backward_hooks or each._backward_pre_hooks for each in modules)
