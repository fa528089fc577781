"""Ctrl-C, SIGTERM and SIGUSR1 as requests: whoever works stops at the next good moment, and what there is is saved."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger(__name__)

_MESSAGE = "interrupted: ending this step and saving (Ctrl-C again stops at once, without saving)"
_MESSAGE_WITHOUT_SAVING = "interrupted: ending this step, with no run directory to save to (Ctrl-C again stops at once)"


class Stopped(Exception):  # noqa: N818 - no error
    """Raised where work was broken off because a stop was requested, as if it had not begun or to be gone on with."""


class Interruption:
    """While entered, the first of the signals sets `requested`; after it, SIGINT is Python's own again.

    SIGTERM and SIGUSR1 (which schedulers send before they take a machine away) are left alone where the program has
    handlers of its own for them. Once requested, further ones change nothing: the run is being saved. Outside the
    main thread, where Python allows no handlers, it does nothing.

    Args:
        saves: whether what there is will be saved; the message says so.
    """

    def __init__(self, saves: bool = True) -> None:
        self.requested = False
        self._message = _MESSAGE if saves else _MESSAGE_WITHOUT_SAVING
        self._told: list[Callable[[], object]] = []
        self._previous: dict[signal.Signals, Any] = {}

    def tell(self, function: Callable[[], object]) -> None:
        """Call a function when a stop is requested, in the signal's handler; at once where it has been."""
        self._told.append(function)
        if self.requested:
            function()

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._request)
            for number in requests_to_end():
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._previous[number] = signal.signal(number, self._request)
        return self

    def _request(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            if signum == signal.SIGINT:
                signal.default_int_handler(signum, frame)
            return
        self.requested = True
        for function in self._told:
            function()
        try:
            logger.warning(self._message)
        except RuntimeError:  # the signal came in the middle of a write to the very stream that the warning goes to
            os.write(2, f"{self._message}\n".encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())


def requests_to_end() -> list[signal.Signals]:
    """The signals, besides Ctrl-C's, that ask a process to end: Windows has no SIGUSR1."""
    return [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]


@contextlib.contextmanager
def as_keyboard_interrupts() -> Iterator[None]:
    """Within it, SIGTERM and SIGUSR1 raise `KeyboardInterrupt`, as Ctrl-C does: what is open gets closed.

    Outside the main thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, signal.default_int_handler) for number in requests_to_end()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
