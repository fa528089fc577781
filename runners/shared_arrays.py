"""Arrays that several processes share: a file in memory, gone from the file system once all have mapped it."""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Layout = Mapping[str, tuple[tuple[int, ...], str]]

_ALIGNMENT = 64  # a cache line, so that processes writing neighbouring arrays do not slow each other down


class SharedArrays:
    """Named arrays in one mapped file.

    The process that makes them unlinks the file as soon as the others have mapped it: whatever kills whom, no file
    is left behind. Where the system will not let a mapped file go (Windows), it goes when closed.

    Args:
        layout: shape and type of each array, by name.
        path: of a file that another process made; None makes one.
    """

    def __init__(self, layout: Layout, path: str | None = None) -> None:
        offsets, size = {}, 0
        for name, (shape, dtype) in layout.items():
            offsets[name] = size
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        self.path = path if path is not None else _make_file(size)
        memory = np.memmap(self.path, dtype=np.uint8, mode="r+", shape=(size,))
        self._arrays: dict[str, Array] = {
            name: np.ndarray(shape, dtype, buffer=memory, offset=offsets[name])
            for name, (shape, dtype) in layout.items()
        }

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def unlink(self) -> None:
        """Take the file's name away; those who have mapped it keep it. A second call does nothing."""
        with contextlib.suppress(PermissionError):  # Windows, while it is mapped; `close` tries again
            Path(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the memory; arrays handed out keep it alive for themselves."""
        self._arrays.clear()
        self.unlink()


def _make_file(size: int) -> str:
    in_memory = Path("/dev/shm")
    folder = in_memory if in_memory.is_dir() and os.access(in_memory, os.W_OK) else None
    descriptor, path = tempfile.mkstemp(prefix=f"hybridppo-{os.getpid()}-", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.truncate(size)
    return path
