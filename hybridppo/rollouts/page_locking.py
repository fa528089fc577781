"""Page-locked memory: a GPU copies from it directly, and without making the host wait."""

import logging
import mmap
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridppo.errors import DeviceError
from hybridppo.rollouts.buffer import Layout, RolloutBuffer, arrays_in, size_of
from hybridppo.system.devices import Accelerator, accelerator_of

logger = logging.getLogger(__name__)


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
