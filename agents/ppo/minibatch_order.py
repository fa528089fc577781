"""The orders in which the passes of an update go through the batch."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.system.accelerator import sent

Order = NDArray[Any] | Tensor
"""`[B]`, every row once."""


def orders_on(
    device: torch.device, generator: np.random.Generator, size: int, passes: int
) -> tuple[Tensor, list[dict[str, Any]]]:
    """A shuffle of `size` rows for each pass, `[passes, size]`, on the device, in one copy that nobody waits for.

    Returns:
        The shuffles, and the generator's state after each: an update may end early, and the generator must then be as
        if only the shuffles of its passes had been drawn.
    """
    shuffles, states = [], []
    for _ in range(passes):
        shuffles.append(generator.permutation(size))
        states.append(dict(generator.bit_generator.state))
    return sent(np.stack(shuffles), device), states
