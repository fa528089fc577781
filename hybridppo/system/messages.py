"""Numbers and tables as text; and warnings about work that may fail again and again: at most one per minute."""

import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hybridppo.errors import shown_error

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_WARNINGS = 60.0


def shown_seconds(seconds: float) -> str:
    """Seconds as text in microseconds, milliseconds or seconds, with three digits."""
    if seconds == 0.0:
        return "0 s"
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 99.95 else f"{seconds:.3g} s"


def shown_return(mean: float) -> str:
    """The mean return of episodes as text, if there were any."""
    return f"return {shown_number(mean)}" if math.isfinite(mean) else "no whole episode"


def shown_number(number: float) -> str:
    """A number as text with three digits, but all digits before the point: 0.968, -12.3, -121, 4,567."""
    return f"{number:,.0f}" if abs(number) >= 99.95 else f"{number:.3g}"


def shown_returns(mean: float, deviation: float, episodes: int) -> str:
    """The returns of an evaluation as text."""
    return f"{shown_return(mean)} +- {shown_number(deviation)} over {episodes} episode{'s' * (episodes != 1)}"


def shown_clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str, keep: str = "\n\t") -> str:
    """A text without characters that control a terminal, such as those in a name from a file, which become escapes."""
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, which is also readable in a terminal.

    The first column is aligned to the left, the others to the right.
    """
    widths = [max(3, *map(len, column)) for column in zip(heads, *rows, strict=True)]
    rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_table_line(cells, widths) for cells in (heads, rules, *rows))


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(padded)} |"


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
            logger.warning("%s FAILED%s: %s; %s", self._what, times, shown_error(error), consequence)

    @contextmanager
    def tolerating(self, kind: type[Exception] | tuple[type[Exception], ...], consequence: str) -> Iterator[None]:
        """Warn of errors of this kind, or of these kinds, instead of raising them."""
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


_WRITING = ThrottledWarning("writing lines to stderr")
NO_STREAM = (OSError, ValueError, AttributeError)
"""Errors if stderr cannot be written to, was closed (ValueError), or is None or an object with only some methods of a
stream (AttributeError)."""


def say(line: str) -> None:
    """Write a line to stderr, above a progress bar if there is one. A failure is only a warning."""
    from tqdm.std import tqdm

    try:
        tqdm.write(printable(line), file=sys.stderr)
        sys.stderr.flush()
    except NO_STREAM as error:
        _WRITING.failed(error, "all else goes on without it")
