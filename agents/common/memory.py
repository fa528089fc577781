"""Errors if a device or the machine lacks the memory that a configuration needs."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from hybridppo.errors import OutOfMemoryError

_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED", "Storage size calculation")
"""Parts of torch's messages in a bare RuntimeError for lack of memory: CPU, Windows, CUDA and its libraries."""


@contextlib.contextmanager
def explaining(needs: Callable[[], dict[str, int]]) -> Iterator[None]:
    """A context in which errors for lack of memory say what needs it and which field to lower.

    Args:
        needs: returns estimated bytes by purpose, with the fields to lower.

    Raises:
        OutOfMemoryError: in place of torch's and NumPy's errors.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_ours = isinstance(error, OutOfMemoryError)
        if is_ours or not (
            isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in str(error) for sign in _SIGNS)
        ):
            raise
        found = needs()
        largest = max(found, key=found.__getitem__)
        sizes = ", ".join(f"{what} {readable(size)}" for what, size in found.items())
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OutOfMemoryError(
            f"out of memory: {said}. What the configuration needs, roughly: {sizes}. Lower first what "
            f"{largest} comes from"
        ) from error


def host_memory() -> int | None:
    """Free memory for this process in bytes, by the system and by the container; None if neither is known.

    Memory that the system would release, such as cached files, counts as free.
    """
    found = [number for number in (_available(), _left_in_container()) if number is not None]
    return min(found, default=None)


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:  # all memory, where the free memory is unknown (macOS); Windows has no such call
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _left_in_container() -> int | None:
    """The part of a control group's limit (version 2) that no process uses."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text())
        used = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - int(used["anon"]))
    except (OSError, ValueError, KeyError):  # no such group, or "max": no limit
        return None


def readable(size: float) -> str:
    """A number of bytes with its unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.3g} {units[0]}"
