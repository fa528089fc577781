"""Counts lost workers, and starts others in their places."""

import logging
from collections.abc import Callable

from hybridppo.errors import HybridPPOError
from hybridppo.runners.workers.pool import Pool
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.system.seeds import seed_of

logger = logging.getLogger(__name__)

LOSSES_IN_A_ROW = 3
"""How often in a row a worker may be lost and replaced before it has done its work."""


class Losses:
    """Counts how often each worker was lost, and starts others.

    Args:
        pool: the workers.
        num_workers: their number.
        error: the type of error if a worker is lost too often.
        work: the work that ends a row of losses, for messages: "a whole rollout".
        dropped: what a loss drops, for messages: "its unfinished episodes are".
    """

    def __init__(self, pool: Pool, num_workers: int, error: type[HybridPPOError], work: str, dropped: str) -> None:
        self._pool, self._error, self._work, self._dropped = pool, error, work, dropped
        self._losses, self._in_a_row = [0] * num_workers, [0] * num_workers

    def end_row(self, worker: int) -> None:
        """Count losses from 0 again, because the worker has done its work."""
        self._in_a_row[worker] = 0

    def replace(self, worker: int, lost: WorkerLostError, seed: int, begin: Callable[[int], None]) -> None:
        """Start another worker in place of a lost one, and another again if that one is lost, too.

        Args:
            worker: its number.
            lost: the error of the loss.
            seed: the seed of the lost worker. The new worker has another seed, because this one might fail again.
            begin: called with the seed of the new worker when its environments are made.

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
            env_seed = seed_of(seed, f"after loss {self._losses[worker]}")
            try:
                self._pool.end(worker)
                self._pool.start(worker, env_seed)
                self._pool.wait_until_ready([worker])
                begin(env_seed)
            except WorkerLostError as again:
                lost = again
            else:
                return
