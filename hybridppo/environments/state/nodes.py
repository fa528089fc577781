"""The nodes of a description."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

BIT_GENERATORS: dict[str, Callable[..., np.random.BitGenerator]] = {
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
    "MT19937": np.random.MT19937,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}


PLAIN_DTYPES = "?biufcmMSU"

MISSING = object()

Node = Any
"""None, a bool, an int, a finite float, a str, or a dict whose first key is its kind."""


def is_python_object(value: object) -> bool:
    """Whether an object holds everything in its `__dict__`: its class and base classes are written in Python."""
    kind = type(value)
    has_slots = any(name not in ("__dict__", "__weakref__") for cls in kind.__mro__ for name in _slots_of(cls))
    return kind.__new__ is object.__new__ and kind.__dictoffset__ != 0 and not has_slots


def _slots_of(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def plain_dtype(text: str) -> np.dtype[Any]:
    """The dtype of this name; a ValueError if it is not one of plain numbers or text."""
    dtype = np.dtype(str(text))
    if dtype.kind not in PLAIN_DTYPES:
        raise ValueError(f"{text!r} is no type of plain numbers or text")
    return dtype


def attribute_path(owner: object, name: str) -> str:
    """The path of an attribute, for messages."""
    return f"{type(owner).__name__}.{name}"


def class_name(value: object) -> str:
    """The name of its class in a description."""
    return type(value).__qualname__


def full_class_name(value: object) -> str:
    """The name of its class with the module, for messages."""
    module = getattr(type(value), "__module__", None)  # types made by SWIG have no module
    return f"{module}.{class_name(value)}" if module else class_name(value)


def array_bytes(array: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def to_text(data: "bytes | memoryview") -> str:
    """Bytes as text for JSON."""
    return base64.b64encode(data).decode("ascii")


def to_bytes(text: str) -> bytes:
    """The bytes that `to_text` wrote."""
    return base64.b64decode(text, validate=True)
