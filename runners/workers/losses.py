"""Workers that are lost: how often, and whether others take their places."""

import logging
from collections.abc import Callable

import numpy as np

from hybridppo.errors import HybridPPOError
from hybridppo.runners.workers.transport import WorkerLostError

logger = logging.getLogger(__name__)

LOSSES_IN_A_ROW = 3
"""How often a worker may be lost, and another started in its place, before one of them has done its work."""


class Losses:
    """Counts how often each worker was lost, and starts others.

    Args:
        num_workers: how many there are.
        error: what to raise if one is lost too often.
        work: what ends a row of losses, for messages: "a whole rollout".
        dropped: what is dropped, for messages: "its unfinished episodes are".
    """

    def __init__(self, num_workers: int, error: type[HybridPPOError], work: str, dropped: str) -> None:
        self._error, self._work, self._dropped = error, work, dropped
        self._losses, self._in_a_row = [0] * num_workers, [0] * num_workers

    def end_row(self, worker: int) -> None:
        """It has done its work."""
        self._in_a_row[worker] = 0

    def replace(self, worker: int, lost: WorkerLostError, seed: int, start: Callable[[int], None]) -> None:
        """Start another in place of a worker, and another again if that one is lost too.

        Args:
            worker: which one.
            lost: how.
            seed: that it had. With the same seed, what went wrong might go wrong again.
            start: starts one with a seed of its own, and waits until it is ready.

        Raises:
            HybridPPOError: if it was lost too often in a row.
        """
        while True:
            self._losses[worker] += 1
            self._in_a_row[worker] += 1
            if self._in_a_row[worker] > LOSSES_IN_A_ROW:
                times = self._in_a_row[worker]
                raise self._error(f"lost {times} times without {self._work} between, the last: {lost}") from lost
            logger.warning("%s\nAnother is started in its place, and %s dropped.", lost, self._dropped)
            sequence = np.random.SeedSequence([seed, self._losses[worker]])
            try:
                start(int(sequence.generate_state(1)[0] >> 1))
            except WorkerLostError as again:
                lost = again
            else:
                return
