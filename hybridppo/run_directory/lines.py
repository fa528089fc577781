"""Metrics as lines of JSON."""

import contextlib
import errno
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from hybridppo.errors import ConfigurationError


def append(file: io.FileIO, value: dict[str, Any]) -> None:
    """Write a line to a file that is open for appending, whole or not at all; what is not finite becomes null.

    Raises:
        OSError: where the disk will not take it.
    """
    line = as_json(value, indent=None).encode()
    end = file.seek(0, os.SEEK_END)
    try:
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)  # no half of a line
        raise


def cut(path: Path, iteration: int) -> None:
    """Cut the lines of metrics off that follow the last of `iteration` or before. In place: a full disk allows it."""
    if not path.exists():
        return
    end = position = 0
    with path.open("r+b") as file:
        for line in file:
            position += len(line)
            if line.endswith(b"\n") and _iteration_of(line) <= iteration:
                end = position
        if end < position:
            file.truncate(end)


def _iteration_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # cut short by a crash, or altered
        return math.inf


def finite(value: Any) -> Any:
    """The value as JSON can hold it: None for every number within that is not finite, NumPy's numbers as Python's."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return finite(value.tolist())
    return value


def as_json(value: Any, indent: int | None = 1) -> str:
    """As JSON has it, for files and other programs: what is not a finite number becomes null.

    Args:
        value: what JSON can hold.
        indent: for people to read; None for one line.

    Raises:
        ConfigurationError: if lists lie too deep within each other.
    """
    try:
        return json.dumps(finite(value), indent=indent, allow_nan=False) + "\n"
    except RecursionError:
        raise ConfigurationError("a value has lists too deep within each other to be written as JSON") from None
