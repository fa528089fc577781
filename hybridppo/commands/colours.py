"""Colours in a terminal: whether they are wanted (https://no-color.org), and text without them."""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CODES = re.compile(r"\x1b\[[0-9;]*m")
"""What turns a colour on or off."""


def are_wanted() -> bool:
    """Whether text may be coloured: not in a file or a pipe, not if NO_COLOR is set, and not by a dumb terminal."""
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Within it, warnings have no colours unless they are wanted: gymnasium colours all of its own."""
    before = warnings.formatwarning

    def plain(*arguments: Any, **options: Any) -> str:
        text = before(*arguments, **options)
        return text if are_wanted() else CODES.sub("", text)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = before
