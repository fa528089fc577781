"""Shared memory from which a GPU copies without a detour: pages that the system may not move."""

import logging
from typing import Any

from numpy.typing import NDArray

from hybridppo.accelerator import Accelerator
from hybridppo.errors import DeviceError

logger = logging.getLogger(__name__)


class PageLock:
    """Keeps the pages of an array locked until closed.

    Args:
        array: contiguous; its memory must outlive the lock.
        accelerator: whose copies it is for.

    Raises:
        DeviceError: where the system refuses.
    """

    def __init__(self, array: NDArray[Any], accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._address = array.ctypes.data
        error = accelerator.lock_pages(self._address, array.nbytes)
        self._is_locked = error == 0
        if error:  # and not a slower run without: CUDA would report the error again, from whatever is done next
            raise DeviceError(
                f"the rollouts of worker processes ({array.nbytes / 1e6:.1f} MB) could not be locked in memory (CUDA "
                f"error {error}): free memory, lower num_envs or num_steps, or sample without workers (num_workers=0)"
            )

    def close(self) -> None:
        """Unlock the pages; a second call does nothing."""
        if self._is_locked:
            self._is_locked = False
            error = self._accelerator.unlock_pages(self._address)
            if error:
                logger.warning("the rollouts of worker processes could not be unlocked (CUDA error %d)", error)
