"""Two threads that wait for each other within machine code, where a wait takes less than Python could be asked in."""

from pathlib import Path
from typing import Any

import numpy as np

LINE = 16
"""Numbers between those of two threads, so that they lie in cache lines of their own."""
GONE = 2 * LINE
NUM_SIGNALS = 3 * LINE
LOOKS = 2**12
"""How often a thread looks, some microseconds, before it lets others have its core."""


def tell_number(numbers: Any, index: int, value: int) -> None:
    """`numbers[index] = value`, seen by others after all that was written before: `signals.py`."""
    raise NotImplementedError


def number_told(numbers: Any, index: int) -> int:
    """`numbers[index]` as another thread has told it."""
    raise NotImplementedError


def give_way() -> None:
    """Let others have this core for a moment."""
    raise NotImplementedError


GIVEN = (tell_number, number_told, give_way)
"""What `text_of_signals` has."""


def meeting_place() -> tuple[Any, Any]:
    """Where two threads wait for each other, and what they tell each other there."""
    return np.zeros(NUM_SIGNALS, np.int64), np.zeros((2, 2))


def text_of_signals() -> str:
    """What this file leaves out."""
    return Path(__file__).with_name("signals.py").read_text(encoding="utf-8")


def meet(signals: Any, mine: int, count: int) -> bool:
    """Wait until the other of two threads is here for the `count`th time too; False where it never will be.

    Args:
        signals: `[NUM_SIGNALS]` of int64, zeros before the first time; at `GONE`, whether one has failed.
        mine: 0 or 1, which of the threads this is.
        count: 1, 2, and so on.
    """
    tell_number(signals, LINE * mine, count)
    looks = 0
    while number_told(signals, LINE * (1 - mine)) < count:
        if number_told(signals, GONE) != 0:
            return False
        looks += 1
        if looks % LOOKS == 0:
            give_way()
    return True
