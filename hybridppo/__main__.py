"""The command `hybridppo`, and `python -m hybridppo`."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator

from hybridppo._lazy import importing_torch
from hybridppo.system.signals import flushed

EXIT_INTERRUPTED = 130  # as in `commands/parsing.py`, which is not imported yet


def main() -> None:
    """Run the command line; never returns."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python began, as some services do
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        with contextlib.suppress(OSError):  # a pipe has taken the place of a file
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a name outside its encoding is no error
    try:
        with _ending_at_once(), importing_torch():
            from hybridppo.commands.main import main as run
        run()
    except KeyboardInterrupt:  # before a command has begun, or after its end
        sys.exit(EXIT_INTERRUPTED)
    finally:
        flushed()


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Within it, Ctrl-C ends the process without a word: there is nothing to save yet, and nothing to close."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or the program's own
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the working directory, in which `python -m` looks for every module
    main()
