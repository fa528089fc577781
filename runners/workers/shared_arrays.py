"""Arrays that several processes share: a file in memory, without a name where the system allows it."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.rollouts.buffer import Layout, arrays_in, size_of

Array = NDArray[Any]


class SharedArrays:
    """Named arrays in one mapped file.

    On Linux the file never has a name: whatever kills whom and when, none is left behind. Elsewhere, the process that
    makes it takes its name away as soon as the others have mapped it, or, where the system will not let a mapped
    file go (Windows), when it is closed.

    Args:
        layout: shape and type of each array, by name.
        path: of a file that another process made; None makes one.
    """

    def __init__(self, layout: Layout, path: str | None = None) -> None:
        size = size_of(layout)
        self._descriptor: int | None = None
        if path is None:
            self._descriptor = _make_nameless_file(size)
            path = f"/proc/{os.getpid()}/fd/{self._descriptor}" if self._descriptor is not None else _make_file(size)
        self.path = path
        memory = np.memmap(self.path, dtype=np.uint8, mode="r+", shape=(size,))
        self.memory: Array | None = memory
        """All arrays' bytes, until closed."""
        self._arrays = arrays_in(memory, layout)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def unlink(self) -> None:
        """Let nobody else map the file; those who have keep it. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self.path.startswith("/proc/"):
            return
        with contextlib.suppress(PermissionError):  # Windows, while it is mapped; `close` tries again
            Path(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the memory; arrays handed out keep it alive for themselves."""
        self._arrays.clear()
        self.memory = None
        self.unlink()


class PublishedParameters:
    """An actor's parameters, which one process writes while others read: the newest, whole, without waiting.

    There is room for two versions. The next is written where the newest is not.

    Args:
        arrays: laid out by `layout`.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        self._parameters, self._versions, self._count = arrays["parameters"], arrays["versions"], arrays["published"]

    @staticmethod
    def layout(num_parameters: int) -> Layout:
        """Of the arrays that it takes."""
        return {
            "parameters": ((2, num_parameters), "float32"),
            "versions": ((2,), "int64"),
            "published": ((1,), "int64"),
        }

    def write(self, parameters: Sequence[Array], version: int) -> None:
        """Publish a version."""
        count = int(self._count[0]) + 1
        np.concatenate([parameter.reshape(-1) for parameter in parameters], out=self._parameters[count % 2])
        self._versions[count % 2] = version
        self._count[0] = count

    def read(self) -> tuple[Array, int]:
        """The newest, one after the other in a copy, and their version."""
        while True:
            count = int(self._count[0])
            copied, version = self._parameters[count % 2].copy(), int(self._versions[count % 2])
            if int(self._count[0]) == count:  # else what was copied may be half of a newer version
                return copied, version


def _make_nameless_file(size: int) -> int | None:
    """The descriptor of a file in memory that processes of the same user open through /proc, if the system has it."""
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create("hybridppo")
    if not os.access(f"/proc/{os.getpid()}/fd/{descriptor}", os.R_OK | os.W_OK):  # a container without /proc
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, size)
    return descriptor


def _make_file(size: int) -> str:
    """The path of one in the file system, in memory if possible."""
    in_memory = Path("/dev/shm")
    folder = in_memory if in_memory.is_dir() and os.access(in_memory, os.W_OK) else None
    descriptor, path = tempfile.mkstemp(prefix=f"hybridppo-{os.getpid()}-", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.truncate(size)
    return path
