"""In which numbers the learner multiplies matrices: float32, or bfloat16 where the hardware is made for it.

With bfloat16 only the products of the optimizer steps are rounded, to 8 significant bits; parameters, activations,
losses, gradients, the optimizer and the values that returns are made of stay float32. (Where torch differentiates, its
autocast rounds activations and outputs as well.)
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hybridppo.errors import DeviceError

Precision = Literal["fp32", "bf16"]

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def supports_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def require(precision: Precision, device: torch.device) -> None:
    """Refuse what the device can only emulate.

    Raises:
        DeviceError: with the remedy.
    """
    if precision == "bf16" and not supports_bf16(device):
        known = {"cuda": "tensor cores for it (Ampere or newer)", "cpu": "AVX512-BF16 or AMX"}
        wanted = known.get(device.type, "support for it here")
        raise DeviceError(f"precision 'bf16' was asked for, but {device} has no {wanted}: use precision='fp32'")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """A context in which torch's linear layers multiply so."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def matmul(precision: Precision) -> Callable[..., object]:
    """`numpy.matmul`, or the same by way of torch in bfloat16."""
    return np.matmul if precision == "fp32" else matmul_bf16


def matmul_bf16(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """`[..., n, k] @ [..., k, m]` of float32 rounded to bfloat16; sums are made in float32 and rounded once."""
    product = torch.matmul(torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16())
    torch.from_numpy(out).copy_(product)
