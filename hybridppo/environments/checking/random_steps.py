"""What random steps show of an environment that is checked, how many there is time for, and what they draw from."""

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.checking.report import EnvReport
from hybridppo.spaces.observations import ObservationEncoder

Array = NDArray[Any]

STEPS_OF_AN_EPISODE = 500
"""In fewer than these, none need have ended."""
LARGE = 100.0
"""Numbers larger than this are learned from slowly."""
SECONDS_TO_REPEAT = 2.0
"""Of a slow environment, fewer steps are made twice: as many as are likely to take so long."""


class Seen:
    """What random steps have shown."""

    def __init__(self, encode: ObservationEncoder) -> None:
        self._encode = encode
        self.extremes = np.outer((np.inf, -np.inf), np.ones(encode.layout.num_numbers))
        """The least and the most that each number of an observation has been."""
        self.rewards: list[float] = []
        self.step_seconds: list[float] = []
        self.reset_seconds: list[float] = []

    def add(self, rows: Array, rewards: list[float]) -> None:
        """Rows `[N, *shape]`, and what was rewarded."""
        self.rewards += rewards
        numbers = self._encode.layout.numbers(rows)
        if numbers.size:  # images have none, and at an episode's end no agent may be left
            least, most = self.extremes
            np.minimum(least, numbers.min(0), out=least)
            np.maximum(most, numbers.max(0), out=most)

    def tell_times(self, report: EnvReport) -> None:
        """The middle of the seconds of steps, and of resets."""
        report.seconds_per_step = float(np.median(self.step_seconds))
        report.seconds_per_reset = float(np.median(self.reset_seconds)) if self.reset_seconds else float("nan")


def in_time(steps: int, seconds: float, report: EnvReport, *, at_once: int = 1) -> Iterator[int]:
    """Count steps, each of `at_once` environments, until they are made or have taken so long; which is a note then."""
    start = time.perf_counter()
    for step in range(steps):
        yield step
        spent = time.perf_counter() - start
        if spent > seconds and step + 1 < steps:
            mend = "for more, check_env(..., seconds=60), or --seconds 60"
            report.add("note", f"{report.steps:,} of {steps * at_once:,} steps took {spent:.0f} s", mend)
            return


def steps_to_repeat(most: int, report: EnvReport) -> range:
    """So many steps, or as few as are likely to take `SECONDS_TO_REPEAT`."""
    return range(max(1, min(most, int(SECONDS_TO_REPEAT / max(report.seconds_per_step, 1e-9)))))


def judge_sizes(report: EnvReport, names: Sequence[str], largest: Array, rewards: Array) -> None:
    """Say what of observations, by the largest that each of their numbers was, and of rewards is hard to learn from."""
    if largest.size and largest.max() > LARGE:
        mend = "PPO normalises observations (normalize_observations); for other agents, scale them to about 1"
        report.add("note", f"observation{names[int(largest.argmax())]} goes up to {largest.max():g}", mend)
    if np.abs(rewards).max() > LARGE:
        mend = "PPO normalises rewards (normalize_rewards); for other agents, scale them to about 1"
        report.add("note", f"rewards go up to {np.abs(rewards).max():g}", mend)
    if not rewards.any():
        mend = "random actions found none: expect a long training"
        report.add("warning", f"all {len(rewards):,} rewards were 0", mend)


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
