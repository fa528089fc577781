"""Numbers as text for people."""

import math
from collections.abc import Sequence


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
