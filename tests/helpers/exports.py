"""Exports in tests: a form that is no file, for what all forms share; and ONNX, faster."""

import functools
from typing import Any

import pytest
import torch

from hybridppo.tools import export as exporting


@torch.no_grad()
def _run(policy: Any, inputs: dict[str, Any]) -> list[Any]:
    return [output.numpy() for output in policy({name: torch.from_numpy(array) for name, array in inputs.items()})]


def in_torch(policy: Any) -> Any:
    """A form of `exporting._FORMS`: the policy as it is before a graph is made of it, which takes seconds."""
    return b"", exporting._call(policy, functools.partial(_run, policy))


def require_onnx() -> None:
    """Skip the test without the packages; let exports share what each parses anew, a quarter of its time."""
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    from torch.onnx._internal._lazy_import import onnxscript_apis

    if not hasattr(onnxscript_apis.get_torchlib_ops, "cache_info"):
        onnxscript_apis.get_torchlib_ops = functools.cache(onnxscript_apis.get_torchlib_ops)
