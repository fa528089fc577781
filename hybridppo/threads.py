"""How many CPU threads a training uses."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

from hybridppo._blas import KERNEL_VARIABLE, WIDE_KERNELS, is_misjudged

logger = logging.getLogger(__name__)


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Within it, CPU operations of torch and NumPy use `count` threads; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    controller = ThreadpoolController()
    _say_where_kernels_are_narrow(controller.info())
    try:
        with controller.limit(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def _say_where_kernels_are_narrow(libraries: list[dict[str, Any]]) -> None:
    architectures = [library.get("architecture") for library in libraries if library["internal_api"] == "openblas"]
    if architectures and WIDE_KERNELS not in architectures and is_misjudged():
        logger.info(
            "NumPy's matrix products run at half their speed: its OpenBLAS took the processor for %s. "
            "Import hybridppo before numpy and gymnasium, or set %s=%s",
            architectures[0],
            KERNEL_VARIABLE,
            WIDE_KERNELS,
        )
