"""Shows progress: a bar in a terminal or a notebook; elsewhere lines and tables, less and less often."""

import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm.auto import tqdm as tqdm_of_here

from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.reporting.loggers import grouped
from hybridppo.system.messages import (
    NO_STREAM,
    ThrottledWarning,
    markdown_table,
    say,
    shown_clock,
    shown_number,
    shown_return,
)

FIRST_SECONDS, MOST_SECONDS = 10.0, 300.0
"""Seconds until the first line, and the largest time between two lines. Each line comes after twice the time of the
line before, until that largest time is reached."""
SECONDS_BETWEEN_TABLES = 5.0
"""With `verbose`."""
FORM = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
"""The bar: nothing is cut at 80 columns."""


class _Bar(tqdm_of_here):  # type: ignore[type-arg]
    monitor_interval = 0  # no thread that outlives the training


class _Lines:
    """Lines on stderr, less and less often, for log files, in which a bar would fill hundreds of lines."""

    def __init__(
        self, total: int, initial: int = 0, clock: Callable[[], float] = time.monotonic, *, unit: str = "step"
    ) -> None:
        self.n, self._unit = initial, unit
        self._total, self._initial, self._clock = total, initial, clock
        self._start = clock()
        self._next = FIRST_SECONDS

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self._text = text

    def update(self, number: int = 1) -> bool:
        self.n += number
        seconds = self._clock() - self._start
        if seconds < self._next:
            return False
        self._next = seconds + min(seconds, MOST_SECONDS)
        left = seconds * (self._total - self.n) / max(1, self.n - self._initial)
        done = f"{self.n:,} of {self._total:,} {self._unit}s ({self.n / self._total:.0%})"
        say(", ".join(filter(None, (done, self._text, f"{shown_clock(left)} left"))))
        return True

    def close(self) -> None:
        pass


class ProgressBar:
    """Shows progress on stderr. If that fails, for example because a terminal was closed, only the display ends.

    Args:
        enabled: whether to show anything.
        has_lines: whether to write lines if there is neither a terminal nor a notebook; otherwise nothing is written
            there.
        total: the position at the end.
        options: further options of tqdm.
    """

    def __init__(self, *, enabled: bool, total: int, has_lines: bool = False, initial: int = 0, **options: Any) -> None:
        self._bar: Any = None
        if enabled and _has_screen():
            self._bar = self._attempt(lambda: _Bar(total=total, initial=initial, **options))
        elif enabled and has_lines:
            self._bar = _Lines(total, initial, unit=options.get("unit", "step"))

    def __enter__(self) -> "ProgressBar":
        return self

    def move_to(self, position: int, text: str) -> bool:
        """Show this position, and a text beside it; whether a line was written, and no bar was moved."""
        if (bar := self._bar) is None:
            return False
        bar.set_postfix_str(text, refresh=False)
        return bool(self._attempt(lambda: bar.update(position - bar.n))) and isinstance(bar, _Lines)

    def advance(self) -> None:
        """Show that one more is done."""
        if (bar := self._bar) is not None:
            self._attempt(bar.update)

    def _attempt(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except NO_STREAM as error:
            self._bar = None
            ThrottledWarning("showing the progress").failed(error, "all else goes on without it")
            return None

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._attempt(self._bar.close)


class ProgressOfTraining(Callback):
    """Shows the progress of a training: speed, return, and the share of sampling in the time.

    Args:
        bar: whether to show a bar, or lines with tables of the metrics.
        verbose: whether to show tables of the metrics every few seconds, and at the end.
    """

    is_of_library = True

    def __init__(self, *, bar: bool = True, verbose: bool = False) -> None:
        self._has_bar, self._verbose, self._shown_at, self._metrics = bar, verbose, time.monotonic(), dict[str, float]()

    def on_start(self, run: TrainingRun) -> None:
        """Show the bar."""
        self._total = run.config["total_steps"]
        options: dict[str, Any] = {"initial": run.env_steps, "unit_scale": True, "dynamic_ncols": True}
        options |= {"unit": "step", "bar_format": FORM, "has_lines": True}
        self._bar = ProgressBar(enabled=self._has_bar, total=self._total, **options)

    def on_iteration(self, run: TrainingRun, metrics: dict[str, float]) -> None:
        """Move the bar."""
        parts = [metrics[f"seconds_{part}"] for part in ("sampling", "learning", "copying")]
        text = f"{shown_return(metrics['episode_return_mean'])}, sampling {parts[0] / sum(parts):.0%}"
        wrote, self._metrics = self._bar.move_to(min(run.env_steps, self._total), text), metrics
        if wrote or (self._verbose and time.monotonic() - self._shown_at >= SECONDS_BETWEEN_TABLES):
            self._show_table()

    def _show_table(self) -> None:
        rows = sorted((grouped(name), shown_number(value)) for name, value in self._metrics.items())
        say(markdown_table(["metric", "value"], rows))
        self._shown_at = time.monotonic()

    def on_finish(self, run: TrainingRun) -> None:
        """Close the bar, before an evaluation shows its own."""
        self._bar.__exit__()
        if self._verbose:
            self._show_table()

    def on_end(self, run: TrainingRun) -> None:
        """Close the bar after an error."""
        self._bar.__exit__()


def _has_screen() -> bool:
    """Whether there is a terminal or a notebook."""
    is_notebook = "notebook" in tqdm_of_here.__mro__[1].__module__
    try:
        return is_notebook or sys.stderr.isatty()
    except NO_STREAM:
        return False
