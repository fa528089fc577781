"""The orders in which the passes of an update go through the batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.accelerator import accelerator_of, sent

Order = NDArray[Any] | Tensor
"""`[B]`, every row once."""


def orders_on(device: torch.device, generator: np.random.Generator, size: int, passes: int) -> Iterator[Order]:
    """A shuffle of `size` rows for each pass, where the device finds it without waiting.

    The generator is always as if only the orders given out so far had been drawn: an update may end early, and a
    device must not change what a seed gives.
    """
    if accelerator_of(device).is_asynchronous:
        return _sent_ahead(device, generator, size, passes)
    return (generator.permutation(size) for _ in range(passes))


def _sent_ahead(device: torch.device, generator: np.random.Generator, size: int, passes: int) -> Iterator[Order]:
    """All at once, in one copy that nobody waits for: else each pass began with a wait."""
    shuffles, states = [], []
    for _ in range(passes):
        shuffles.append(generator.permutation(size))
        states.append(generator.bit_generator.state)
    for order, state in zip(sent(np.stack(shuffles), device), states, strict=True):
        generator.bit_generator.state = state
        yield order
