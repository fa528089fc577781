"""Shows a run in the terminal while it trains, from its files, on this machine or on a shared disk.

$ hybridppo watch runs/CartPole-v1-20260101-120000-seed0
"""

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.files import Tail
from hybridppo.settings import config_to_show
from hybridppo.system.messages import shown_clock, shown_number
from hybridppo.tools.plot import PHASES, fields_shown, result_of

RECENT = 20
"""Iterations over which phases are averaged."""
MOST_LINES = 2000
"""The most iterations that the curves show."""
SILENT_SECONDS = 30.0
"""Seconds without a new line of metrics after which the display says so."""
LEVELS = ".:-=+*#@"
"""The heights of a curve, which every terminal can show."""


def watch(
    run_dir: str | Path,
    *,
    seconds: float = 1.0,
    out: TextIO | None = None,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show a run until it ends. In a terminal, each frame replaces the one before.

    Args:
        run_dir: the run directory.
        seconds: seconds between two readings of its files.
        out: the stream to write to; None for the standard output.
        wait: waits for a number of seconds.
        clock: a monotonic clock in seconds.

    Raises:
        RunDirectoryError: if it is no run directory, or is damaged.
    """
    out = sys.stdout if out is None else out
    directory = RunDirectory.open(run_dir)
    config = config_to_show(directory)
    tail = Tail(directory.path / "metrics.jsonl", MOST_LINES, **fields_shown(config))
    shown, changed_at = list[str](), clock()
    while True:
        changed_at = clock() if tail.read() else changed_at
        if has_ended := result_of(directory.path, tail.lines) is not None:
            tail.read()  # the lines that came before the result
        is_silent = clock() - changed_at > SILENT_SECONDS and not has_ended
        before, shown = shown, frame(config, list(tail.lines), min(100, shutil.get_terminal_size().columns), is_silent)
        if shown != before:
            if before and out.isatty():
                out.write(f"\x1b[{len(before)}A\x1b[J")  # move up, and clear everything below
            out.write("\n".join(shown) + "\n")
            out.flush()
        if has_ended:
            out.write("the run has ended\n")
            return
        wait(seconds)


def frame(config: dict[str, Any], lines: Sequence[dict[str, Any]], width: int, is_silent: bool = False) -> list[str]:
    """The lines to show, none wider than `width`.

    Args:
        config: the settings of the run, as in `config.json`.
        lines: the lines of its metrics, oldest first.
        width: the width of the terminal.
        is_silent: whether there was no new line for long.
    """
    placement = " ".join(str(value) for value in config["placement"].values())
    shown = [f"{config['env_id']}, seed {config['seed']}, placement {placement}"]
    shown += _numbers(config, lines, max(10, width - 30)) if lines else ["no iteration has ended yet"]
    if is_silent:
        shown.append(f"nothing new for {SILENT_SECONDS:.0f} s: it is slow, or was stopped (Ctrl-C leaves)")
    return [line[:width] for line in shown]


def _numbers(config: dict[str, Any], lines: Sequence[dict[str, Any]], room: int) -> list[str]:
    last, recent, goal = lines[-1], lines[-RECENT:], config["total_steps"]
    steps = last["env_steps"]
    rate = sum(line.get("steps_per_second") or 0.0 for line in recent) / len(recent)
    left = max(0.0, goal - steps) / rate if rate else float("inf")
    share = min(1.0, steps / goal)
    shown = [
        f"{('#' * round(share * room)).ljust(room, '.')} {share:4.0%} {shown_clock(left)} left",
        f"{steps:,} of {goal:,} steps, iteration {last['iteration']:,}, {shown_clock(last['seconds'])}",
        "",
    ]
    returns = {f"{name}/episode_return_mean": name for name in config.get("policies", ())}
    curves = {**(returns or {"episode_return_mean": "return"}), "steps_per_second": "steps/s"}
    for name, label in curves.items():
        values = [float(line[name]) for line in lines if line.get(name) is not None]
        shown.append(f"{label[:10]:<10}{shown_number(values[-1]) if values else '-':>12}  {_curve(values, room)}")
    shown += ["", f"an iteration, mean of the last {len(recent)}:"]
    means = {phase: sum(line.get(f"seconds_{phase}") or 0.0 for line in recent) / len(recent) for phase in PHASES}
    whole = max(sum(means.values()) - means["overlapped"], means["overlapped"]) or 1.0
    shown += [f"{phase:<10}{1e3 * seconds:>9.2f} ms {seconds / whole:4.0%}" for phase, seconds in means.items()]
    return shown


def _curve(values: Sequence[float], room: int) -> str:
    """A curve of means of neighbours, scaled between the lowest and the highest."""
    count = min(room, len(values))
    ends = [number * len(values) // count for number in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((mean - low) * scale)] for mean in means)
