"""What Ray makes an actor of, to measure what a call costs. Free of torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class RemoteProbe:
    """Answers at once.

    Args:
        size: bytes of its array.
    """

    def __init__(self, size: int) -> None:
        self._array = np.random.default_rng(0).integers(0, 256, size, np.uint8)  # which nothing makes less of

    def answer(self, value: Any) -> Any:
        """What it was given."""
        return value

    def array(self) -> NDArray[np.uint8]:
        """Always the same."""
        return self._array
