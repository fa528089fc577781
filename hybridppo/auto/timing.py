"""How a calibration takes its times."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

SECONDS_FOR_A_MEDIAN = 0.5
"""What is not stable by then is not going to be."""
Clock = Callable[[], float]


def stable_median(
    measure: Callable[[], float], seconds: float, *, clock: Clock = time.perf_counter, tolerance: float = 0.03
) -> float:
    """The median of a measurement, repeated until it is known to `tolerance`, or `seconds` or half a second are over.

    The standard error of a median is about 0.93 times the distance of the quartiles over the square root of the
    number of samples (of normal ones; an outlier does not move it).
    """
    samples: list[float] = []
    end = clock() + min(seconds, SECONDS_FOR_A_MEDIAN)
    while True:
        samples.append(measure())
        median = statistics.median(samples)
        if clock() >= end or len(samples) >= 1000:
            return median
        if len(samples) >= 3:
            lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
            if 0.93 * (upper - lower) <= tolerance * median * len(samples) ** 0.5:
                return median


@contextlib.contextmanager
def generators_untouched() -> Iterator[None]:
    """The global generators as they were, afterwards: environments may draw from them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
