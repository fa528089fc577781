"""Shared memory from which a GPU copies without a detour: pages that the system may not move."""

import logging
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from hybridppo.errors import DeviceError

logger = logging.getLogger(__name__)


class Registrar(Protocol):
    """What locks pages, named as CUDA names it; each returns an error's number, or 0."""

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int, /) -> Any:  # noqa: N802
        """Lock the pages of memory that is there already."""
        ...

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802
        """Unlock them."""
        ...


class PageLock:
    """Keeps the pages of an array locked until closed.

    Args:
        array: contiguous; its memory must outlive the lock.
        registrar: what locks pages; None for CUDA's runtime.

    Raises:
        DeviceError: where the system refuses.
    """

    def __init__(self, array: NDArray[Any], registrar: Registrar | None = None) -> None:
        self._registrar: Registrar = registrar if registrar is not None else torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._address = array.ctypes.data
        error = int(self._registrar.cudaHostRegister(self._address, array.nbytes, 0))
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
            error = int(self._registrar.cudaHostUnregister(self._address))
            if error:
                logger.warning("the rollouts of worker processes could not be unlocked (CUDA error %d)", error)
