"""Signals as requests to stop: work stops at the next safe point, and its state is saved."""

import contextlib
import logging
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

_MESSAGE = "interrupted: ending this step and saving (Ctrl-C again stops at once, without saving)"
_MESSAGE_WITHOUT_SAVING = "interrupted: ending this step, with no run directory to save to (Ctrl-C again stops at once)"


SECONDS_TO_COME = 10.0
"""Seconds that a starting process may still take after a stop was requested."""

entered: "list[Interruption]" = []
"""The interruptions that handle signals at present."""


class Stopped(Exception):  # noqa: N818 - no error
    """Raised if work was broken off because a stop was requested; the work can be resumed or repeated."""


class Interruption:
    """A context in which the first signal sets `requested`; a second SIGINT then stops Python at once.

    SIGTERM, SIGHUP (a closed terminal) and SIGUSR1 (a scheduler's notice) are not handled if the program has its own
    handlers for them or ignores them, as under nohup. After the first signal, further ones change nothing, because the
    run is being saved. Outside the main thread, Python allows no handlers, and the context does nothing.

    A `Stopped` that leaves the context becomes a `KeyboardInterrupt`: there was nothing to save yet.

    Args:
        saves: whether the state will be saved; the message says so.
    """

    def __init__(self, saves: bool = True) -> None:
        self.requested = self.is_urgent = False
        """Whether a stop was requested, and whether Ctrl-C was pressed again, to stop at once."""
        self._message = _MESSAGE if saves else _MESSAGE_WITHOUT_SAVING
        self._told: list[Callable[[], object]] = []
        self.previous: dict[signal.Signals, Any] = {}
        """The handlers from before, of each signal that is handled."""
        self.requested_at = 0.0
        self._has_warned = False

    def tell(self, function: Callable[[], object]) -> None:
        """Call a function when a stop is requested, in the signal's handler; at once if it already was."""
        self._told.append(function)
        if self.requested:
            function()

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            entered.append(self)
            usual = signal.SIG_DFL, signal.default_int_handler, _interrupt
            numbers = [signal.SIGINT, *(each for each in requests_to_end() if signal.getsignal(each) in usual)]
            self.previous = {number: signal.signal(number, self.handle) for number in numbers}
        return self

    def take_back(self) -> None:
        """Handle signals again whose handlers other code has replaced, such as an environment's simulator."""
        if threading.current_thread() is not threading.main_thread():
            return
        lost = [number for number in self.previous if signal.getsignal(number) != self.handle]
        for number in lost:
            signal.signal(number, self.handle)
        if lost and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the handler of %s was replaced during the training, perhaps by an environment: it is set again before "
                "every iteration, so that this signal saves the training; set a handler of your own before training",
                " and ".join(number.name for number in lost),
            )

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The handler of all signals."""
        if self.requested:
            if signum == signal.SIGINT:
                self.is_urgent = True
                signal.default_int_handler(signum, frame)
            return
        self.requested, self.requested_at = True, time.monotonic()
        let_go_of_closed_terminals()
        for function in self._told:
            function()
        try:
            logger.warning(self._message)
        except RuntimeError:  # the signal interrupted a write to the stream of the warning
            os.write(2, f"{self._message}\n".encode())

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        while self.previous:
            signal.signal(*self.previous.popitem())
        self._told.clear()  # functions would keep their objects alive
        if self in entered:
            entered.remove(self)
        if isinstance(error, Stopped):  # there was nothing to save yet
            raise KeyboardInterrupt(str(error)) from None


def _leave_signals_to_the_parent() -> None:
    """Let signals end a copy of this process, such as a worker of gymnasium's `AsyncVectorEnv`.

    With the training's handlers, the copy would ignore SIGTERM, and the process that sent it would wait forever. The
    copy ignores Ctrl-C: it also reaches the training, which needs the workers for its last step.
    """
    for interruption in reversed(entered):
        for number, previous in interruption.previous.items():
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else previous)
        interruption.previous.clear()
    entered.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_signals_to_the_parent)


def give_up_if_stopped(whom: str) -> None:
    """End the wait for a starting process after a stop was requested; called repeatedly during the wait.

    It has an effect only in the main thread, where signals are handled.

    Args:
        whom: the process, for the message.

    Raises:
        Stopped: if a stop was requested, and `SECONDS_TO_COME` have passed since.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    now = time.monotonic()
    if any(each.requested and now - each.requested_at > SECONDS_TO_COME for each in entered):
        raise Stopped(f"stopped, while {whom} was still starting")


@contextlib.contextmanager
def stoppable(agent: Any, interruption: Interruption) -> Iterator[None]:
    """A context in which the agent stops if a stop is requested."""
    before = agent.should_stop
    agent.should_stop = partial(getattr, interruption, "requested")
    try:
        yield
    finally:
        agent.should_stop = before


def requests_to_end() -> list[signal.Signals]:
    """The signals besides SIGINT that ask a process to stop; Windows has no SIGHUP and no SIGUSR1."""
    return [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


def let_go_of_closed_terminals() -> None:
    """Redirect output away from a closed terminal, to which each write would be an error."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):  # the stream is closed
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                _discard(stream)


def _discard(stream: int) -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream)


def flushed(end: str = "") -> bool:
    """Flush the standard output, and write `end`; discard both if the reader has gone, as `head` does.

    Returns:
        Whether there is a reader, if there was anything to write.
    """
    try:
        sys.stdout.write(end)
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())
        return False
    return True


def _interrupt(signum: int, frame: FrameType | None) -> None:
    let_go_of_closed_terminals()
    signal.default_int_handler(signum, frame)


@contextlib.contextmanager
def handlers_kept(numbers: Iterable[signal.Signals], meanwhile: Any = None) -> Iterator[None]:
    """A context that restores the handlers of signals, and may set another `meanwhile`.

    Outside the main thread, where Python sets no handlers, the context does nothing.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before if meanwhile is not None else ():
            signal.signal(number, meanwhile)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # Python did not set it, and cannot
                signal.signal(number, handler)


def as_keyboard_interrupts() -> contextlib.AbstractContextManager[None]:
    """A context in which SIGTERM, SIGHUP and SIGUSR1 raise `KeyboardInterrupt`, as Ctrl-C does.

    Ignored signals stay ignored. Outside the main thread, the context does nothing.
    """
    heeded = [number for number in requests_to_end() if signal.getsignal(number) is not signal.SIG_IGN]
    return handlers_kept(heeded, _interrupt)
