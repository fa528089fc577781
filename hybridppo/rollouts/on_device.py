"""Rollouts and devices: tensors of a rollout that stays on a device, and page-locked arrays.

A GPU copies from page-locked memory directly, and without making the host wait.
"""

import logging
import mmap
import weakref
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.errors import DeviceError
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Columns, Layout, RolloutBuffer, arrays_in, size_of
from hybridppo.system.devices import Accelerator, accelerator_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceRollout(Columns):
    """The tensors of one rollout, time-major, on one device, as in `RolloutBuffer`."""

    observations: Tensor
    """`[T + 1, N, *row]`."""
    outputs: Tensor
    actions: Tensor
    """`[T, N, *action]`, as drawn: int64, or float32."""
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    finals: Tensor
    """`[T, N, *row]`, the observation after each step if it was truncated; other rows do not matter."""
    absent: Tensor | None = None
    starts: Tensor | None = None
    states: Tensor | None = None

    @classmethod
    def zeros(cls, layout: Layout, device: torch.device) -> "DeviceRollout":
        """A rollout of zeros, with those arrays of a layout that it has."""
        own = {field.name: layout[field.name] for field in fields(cls) if field.name in layout}
        return cls(
            **{
                name: torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
                for name, (shape, dtype) in own.items()
            }
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that there are, by name."""
        return self.columns()

    def rows_that_matter(self, filled: int, memory: MemoryLayout | None) -> dict[str, Tensor]:
        """The rows that a checkpoint needs if `filled` are filled, as views."""
        lengths = {"observations": filled + 1, "states": memory.num_sequences(filled) if memory is not None else 0}
        return {name: rows[: lengths.get(name, filled)] for name, rows in self.tensors.items() if len(rows)}


class PageLock:
    """Keeps the pages of an array locked until closed.

    Args:
        array: a contiguous array; its memory must outlive the lock.
        accelerator: the device that copies from it.

    Raises:
        DeviceError: if the pages cannot be locked.
    """

    def __init__(self, array: NDArray[Any], accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._address = array.ctypes.data
        error = accelerator.lock_pages(self._address, array.nbytes)
        self._is_locked = error == 0
        if error:  # no slower run without a lock: the next CUDA call would report the error again
            raise DeviceError(
                f"rollouts ({array.nbytes / 1e6:.1f} MB) could not be locked in memory (CUDA error {error}): free "
                "memory, or lower num_envs or num_steps"
            )

    def close(self) -> None:
        """Unlock the pages; a second call does nothing."""
        if self._is_locked:
            self._is_locked = False
            error = self._accelerator.unlock_pages(self._address)
            if error:
                logger.warning("the memory of rollouts could not be unlocked (CUDA error %d)", error)


def allocate(layout: Layout, pin_for: torch.device | None) -> RolloutBuffer:
    """The arrays of a rollout in one block of memory, all zeros.

    Args:
        layout: as `RolloutBuffer.layout`.
        pin_for: the device that copies from it, if page-locked memory makes its copies faster; else None.
    """
    size = size_of(layout)
    memory = np.zeros(size, np.uint8) if pin_for is None else page_locked_bytes(size, accelerator_of(pin_for))
    return RolloutBuffer(**arrays_in(memory, layout))


def page_locked_bytes(size: int, accelerator: Accelerator) -> NDArray[np.uint8]:
    """Page-locked memory of exactly `size` bytes, which is unlocked when nothing refers to it any more.

    torch allocates page-locked memory in powers of two, up to twice what a rollout needs.

    Raises:
        DeviceError: if the pages cannot be locked.
    """
    # From mmap, whose pages hold nothing else: no page may be locked twice.
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    weakref.finalize(memory, PageLock(memory, accelerator).close)
    return memory
