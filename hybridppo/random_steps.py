"""What random steps show of an environment that is checked, how many there is time for, and what they draw from."""

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.reporting.env_report import EnvReport
from hybridppo.spaces.observations import ObservationEncoder

Array = NDArray[Any]


class Seen:
    """What random steps have shown."""

    def __init__(self, encode: ObservationEncoder) -> None:
        self._encode = encode
        self.extremes = np.zeros((2, encode.layout.num_numbers))
        """The least and the most that each number of an observation has been; 0 before the first."""
        self._is_first = True
        self.rewards: list[float] = []
        self.step_seconds: list[float] = []
        self.reset_seconds: list[float] = []

    def add(self, rows: Array, rewards: list[float]) -> None:
        """Rows `[N, *shape]`, and what was rewarded."""
        self.rewards += rewards
        numbers = self._encode.layout.numbers(rows)
        if not numbers.size:
            return
        now = np.stack((numbers.min(0), numbers.max(0)))
        if self._is_first:
            self.extremes[:], self._is_first = now, False
        else:
            np.minimum(self.extremes[0], now[0], out=self.extremes[0])
            np.maximum(self.extremes[1], now[1], out=self.extremes[1])

    def tell_times(self, report: EnvReport) -> None:
        """The middle of the seconds of steps, and of resets."""
        report.seconds_per_step = float(np.median(self.step_seconds))
        report.seconds_per_reset = float(np.median(self.reset_seconds)) if self.reset_seconds else float("nan")


def in_time(steps: int, seconds: float, report: EnvReport) -> Iterator[int]:
    """Count steps until they are made, or have taken so long."""
    start = time.perf_counter()
    for step in range(steps):
        yield step
        if time.perf_counter() - start > seconds:
            break
    else:
        return
    mend = "for more, check_env(..., seconds=60), or --seconds 60"
    report.add("note", f"{report.steps:,} of {steps:,} steps took {time.perf_counter() - start:.0f} s", mend)


@contextlib.contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Add what it takes."""
    start = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start)


@contextlib.contextmanager
def global_generators(seed: int) -> Iterator[None]:
    """Within it, Python's and NumPy's global generators are seeded; afterwards as they were."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
