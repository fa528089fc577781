"""Warnings about work that may fail again and again: at most one per minute."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_WARNINGS = 60.0


class ThrottledWarning:
    """Warns when some work begins to fail, at most once per minute while it fails, and reports when it works again.

    Args:
        what: the work, such as "writing metrics.jsonl".
    """

    def __init__(self, what: str) -> None:
        self.failures = 0
        """The number of failures in a row."""
        self._what = what
        self._warned_at = 0.0

    def failed(self, error: BaseException, consequence: str) -> None:
        """Count a failure, and warn unless there was a recent warning."""
        self.failures += 1
        now = time.monotonic()
        if self.failures == 1 or now - self._warned_at > SECONDS_BETWEEN_WARNINGS:
            self._warned_at = now
            times = "" if self.failures == 1 else f" ({self.failures} times in a row)"
            logger.warning("%s FAILED%s: %s: %s; %s", self._what, times, type(error).__name__, error, consequence)

    @contextmanager
    def tolerating(self, kind: type[Exception] | tuple[()], consequence: str) -> Iterator[None]:
        """Warn of errors of this kind instead of raising them."""
        try:
            yield
        except kind as error:
            self.failed(error, consequence)
        else:
            self.works()

    def works(self) -> None:
        """Count a success, and report it after failures."""
        if self.failures:
            logger.warning("%s works again, after %d failures", self._what, self.failures)
            self.failures = 0
