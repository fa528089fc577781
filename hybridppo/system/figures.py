"""Figures in the words that people read."""

import math


def shown_seconds(seconds: float) -> str:
    """In microseconds, milliseconds or seconds, by three digits."""
    if seconds == 0.0:
        return "0 s"
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 99.95 else f"{seconds:.3g} s"


def shown_return(mean: float) -> str:
    """The mean return of episodes, where there were any."""
    return f"return {mean:.1f}" if math.isfinite(mean) else "no whole episode"
