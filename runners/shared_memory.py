"""Arrays that several processes share: a file in memory, without a name if the system allows it."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridppo.rollouts.buffer import Layout, arrays_in, size_of
from hybridppo.spaces.arrays import Array


class SharedArrays:
    """Named arrays in one mapped file.

    On Linux the file never has a name, so nothing remains of killed processes. Elsewhere, the process that makes it
    removes its name when the others have mapped it, or when it is closed if the system does not allow that before
    (Windows).

    Args:
        layout: shape and type of each array, by name.
        path: the file of another process; None makes a new one.
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
        """The bytes of all arrays; None after `close`."""
        self._arrays = arrays_in(memory, layout)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def unlink(self) -> None:
        """Remove the file's name; processes that have mapped it keep it. A second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self.path.startswith("/proc/"):
            return
        with contextlib.suppress(PermissionError):  # Windows, while it is mapped; `close` tries again
            Path(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Free the memory once no array refers to it."""
        self._arrays.clear()
        self.memory = None
        self.unlink()


class PublishedParameters:
    """An actor's parameters, which one process writes and others read: the newest version, without waiting.

    There is room for two versions; the next one is written over the older one.

    Args:
        arrays: laid out by `layout`.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        self._parameters, self._versions, self._count = arrays["parameters"], arrays["versions"], arrays["published"]

    @staticmethod
    def layout(num_parameters: int) -> Layout:
        """The layout of its arrays."""
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
        """A copy of the newest parameters, one after the other, and their version."""
        while True:
            count = int(self._count[0])
            copied, version = self._parameters[count % 2].copy(), int(self._versions[count % 2])
            if int(self._count[0]) == count:  # else the copy may be half of a newer version
                return copied, version


def _make_nameless_file(size: int) -> int | None:
    """The descriptor of a file in memory that other processes open through /proc; None if that is not possible."""
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create("hybridppo")
    if not os.access(f"/proc/{os.getpid()}/fd/{descriptor}", os.R_OK | os.W_OK):  # a container without /proc
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, size)
    return descriptor


def _make_file(size: int) -> str:
    """The path of a file, in memory if possible."""
    in_memory = Path("/dev/shm")
    folder = in_memory if in_memory.is_dir() and os.access(in_memory, os.W_OK) else None
    descriptor, path = tempfile.mkstemp(prefix=f"hybridppo-{os.getpid()}-", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.truncate(size)
    return path
