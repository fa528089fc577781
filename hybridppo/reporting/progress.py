"""The progress bar, whose failure never ends a training."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from hybridppo.system.throttling import ThrottledWarning


class _Bar(tqdm):  # type: ignore[type-arg]
    monitor_interval = 0  # no thread that outlives the training


class ProgressBar:
    """A bar on stderr. If that fails, as when a terminal is closed, the bar ends and all else goes on.

    Args:
        enabled: whether to show anything.
        options: tqdm's own.
    """

    def __init__(self, *, enabled: bool, **options: Any) -> None:
        self._options = {**options, "disable": not enabled}
        self._bar: _Bar | None = None

    def __enter__(self) -> "ProgressBar":
        self._bar = self._attempt(lambda: _Bar(**self._options))
        return self

    def move_to(self, position: int, text: str) -> None:
        """Show that this much is done, and a text beside it."""
        if (bar := self._bar) is not None:
            bar.set_postfix_str(text, refresh=False)
            self._attempt(lambda: bar.update(position - bar.n))

    def advance(self) -> None:
        """Show that one more is done."""
        if (bar := self._bar) is not None:
            self._attempt(bar.update)

    def _attempt(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except (OSError, ValueError) as error:  # ValueError: a stream that was closed
            self._bar = None
            ThrottledWarning("drawing the progress bar").failed(error, "all else goes on without it")
            return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._attempt(self._bar.close)
