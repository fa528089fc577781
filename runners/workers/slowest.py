"""The cost of waiting for the slowest worker at the end of each rollout."""

import logging
from collections.abc import Sequence

import numpy as np

from hybridppo.runners.workers.transport import Work

logger = logging.getLogger(__name__)

FEWEST_ROLLOUTS = 5
"""Rollouts before the first warning, because the first ones load and compile."""
SHARE_THAT_COUNTS = 0.5
"""There is a warning if a usual worker has waited for at least this share of the time."""
SECONDS_THAT_COUNT = 1.0
"""There is a warning if a usual worker has also waited for at least this number of seconds in all."""


class SlowestWorker:
    """Sums the time that each worker takes to fill its columns, and warns once if a usual worker waits long.

    Args:
        work: the work of the workers.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._seconds = np.zeros(len(work.shares))
        self._rollouts = 0
        self._is_logged = False

    def add(self, seconds: Sequence[float]) -> None:
        """Count a rollout with the seconds of each worker."""
        self._seconds += seconds
        self._rollouts += 1
        if self._is_logged or self._rollouts < FEWEST_ROLLOUTS:
            return
        slowest, usual = int(self._seconds.argmax()), float(np.median(self._seconds))
        longest = float(self._seconds[slowest])
        if longest - usual < max(SECONDS_THAT_COUNT, SHARE_THAT_COUNTS * longest):
            return
        self._is_logged = True
        logger.warning(
            "%s took %.3g s for %d rollouts and a usual worker %.3g s, which waited for %.0f %% of the time. With "
            "placement=Auto(max_lag=2) or more (--placement auto --max-lag 2), workers need not wait for each other",
            self._work.name(slowest), longest, self._rollouts, usual, 100.0 * (1.0 - usual / longest),
        )  # fmt: skip
