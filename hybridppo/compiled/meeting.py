"""Lets two threads wait for each other within machine code, where a wait is shorter than a call of Python."""

from pathlib import Path
from typing import Any

import numpy as np

LINE = 16
"""Distance between the numbers of two threads, which puts them into separate cache lines."""
GONE = 2 * LINE
NUM_SIGNALS = 3 * LINE
LOOKS = 2**12
"""Number of checks, within some microseconds, before a waiting thread yields its core."""


def tell_number(numbers: Any, index: int, value: int) -> None:
    """`numbers[index] = value`, visible to others after all earlier writes: `signals.py`."""
    raise NotImplementedError


def number_told(numbers: Any, index: int) -> int:
    """`numbers[index]` as another thread has written it."""
    raise NotImplementedError


def give_way() -> None:
    """Yield this core for a moment."""
    raise NotImplementedError


GIVEN = (tell_number, number_told, give_way)
"""The functions of `text_of_signals`."""


def meeting_place() -> tuple[Any, Any]:
    """Numbers in which two threads wait for each other, and numbers that they exchange."""
    return np.zeros(NUM_SIGNALS, np.int64), np.zeros((2, 2))


def text_of_signals() -> str:
    """The text of the functions that this file only declares."""
    return Path(__file__).with_name("signals.py").read_text(encoding="utf-8")


def meet(signals: Any, mine: int, count: int) -> bool:
    """Wait until the other of two threads is here for the `count`th time, too; False if it failed.

    Args:
        signals: `[NUM_SIGNALS]` of int64, zeros at first; at `GONE`, whether a thread has failed.
        mine: 0 or 1, the number of this thread.
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
