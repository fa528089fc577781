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
from hybridppo.run_directory.lines import Tail
from hybridppo.runs.settings import config_to_show
from hybridppo.system.figures import shown_clock, shown_number
from hybridppo.tools.curves import PHASES, fields_shown, names_of, result_of

Metrics = dict[str, Any]

RECENT = 20
"""Iterations over which phases are averaged."""
MOST_LINES = 2000
"""The most iterations that the curves show."""
SILENT_SECONDS = 30.0
"""Seconds without a new line of metrics after which the display says so."""
BLOCKS, PLAIN = ("▁▂▃▄▅▆▇█", "█", "░"), (".:-=+*#@", "#", ".")
"""Characters for curves, bars and the rest of a bar; the second for terminals with ASCII only."""


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
    signs = BLOCKS if _can_encode("".join(BLOCKS), out) else PLAIN
    height, changed_at, was_silent = 0, clock(), False
    while True:
        is_new = tail.read()
        if has_ended := result_of(directory.path, tail.lines) is not None:
            is_new |= tail.read()  # the lines that came before the result
        changed_at = clock() if is_new else changed_at
        silence = clock() - changed_at
        is_silent = silence > SILENT_SECONDS and not has_ended
        if is_new or has_ended or is_silent != was_silent or height == 0:
            width = min(100, shutil.get_terminal_size().columns)
            shown = frame(config, list(tail.lines), width, signs, silence if is_silent else None)
            if height and out.isatty():
                out.write(f"\x1b[{height}A\x1b[J")  # move up, and clear everything below
            out.write("\n".join(shown) + "\n")
            out.flush()
            height, was_silent = len(shown), is_silent
        if has_ended:
            out.write("the run has ended\n")
            return
        wait(seconds)


def _can_encode(text: str, out: TextIO) -> bool:
    try:
        text.encode(getattr(out, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def frame(
    config: dict[str, Any],
    lines: Sequence[Metrics],
    width: int,
    signs: tuple[str, str, str] = BLOCKS,
    silence: float | None = None,
) -> list[str]:
    """The lines to show, none wider than `width`.

    Args:
        config: the settings of the run, as in `config.json`.
        lines: the lines of its metrics, oldest first.
        width: the width of the terminal.
        signs: characters for curves and bars.
        silence: seconds without a new line; None if they are few.
    """
    placement = " ".join(str(value) for value in config["placement"].values())
    shown = [f"{config['env_id']}, seed {config['seed']}, placement {placement}"]
    if not lines:
        shown.append("no iteration has ended yet")
    else:
        shown += _numbers(config, lines, width, signs)
    if silence is not None:
        shown.append(f"nothing new for {silence:.0f} s: it is slow, or was stopped (Ctrl-C leaves)")
    return [line[:width] for line in shown]


def _numbers(config: dict[str, Any], lines: Sequence[Metrics], width: int, signs: tuple[str, str, str]) -> list[str]:
    last, recent = lines[-1], lines[-RECENT:]
    goal = config["total_steps"]
    share = min(1.0, last["env_steps"] / goal)
    rate = sum(m.get("steps_per_second") or 0.0 for m in recent) / len(recent)
    left = max(0.0, goal - last["env_steps"]) / rate if rate else float("inf")
    room = max(10, width - 30)
    shown = [
        f"{_bar(share, room, signs)} {share:4.0%} {shown_clock(left)} left",
        f"{last['env_steps']:,} of {goal:,} steps, iteration {last['iteration']:,}, {shown_clock(last['seconds'])}",
        "",
    ]
    returns = [(f"{name}/episode_return_mean", name) for name in names_of(config)]
    for name, label in (*(returns or [("episode_return_mean", "return")]), ("steps_per_second", "steps/s")):
        values = [float(m[name]) for m in lines if m.get(name) is not None]
        now = shown_number(values[-1]) if values else "-"
        shown.append(f"{label[:10]:<10}{now:>12}  {_curve(values, room, signs[0])}")
    shown += ["", f"an iteration, mean of the last {len(recent)}:"]
    means = {phase: sum(m.get(f"seconds_{phase}") or 0.0 for m in recent) / len(recent) for phase in PHASES}
    overlapped = sum(m.get("seconds_overlapped") or 0.0 for m in recent) / len(recent)
    whole = max(sum(means.values()), overlapped) or 1.0
    shown += [_phase(phase, seconds, whole, room, signs) for phase, seconds in means.items()]
    if overlapped:
        shown.append(_phase("beside", overlapped, whole, room, signs) + " (sampled while learning)")
    return shown


def _phase(name: str, seconds: float, whole: float, room: int, signs: tuple[str, str, str]) -> str:
    return f"{name:<10}{1e3 * seconds:>9.2f} ms  {_bar(seconds / whole, room // 2, signs)} {seconds / whole:4.0%}"


def _bar(share: float, room: int, signs: tuple[str, str, str]) -> str:
    done = round(share * room)
    return signs[1] * done + signs[2] * (room - done)


def _curve(values: Sequence[float], room: int, signs: str) -> str:
    """A curve of means of neighbours, scaled between the lowest and the highest."""
    if not values:
        return ""
    count = min(room, len(values))
    ends = [number * len(values) // count for number in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
    low, high = min(means), max(means)
    top = len(signs) - 1
    return "".join(signs[round((mean - low) / (high - low) * top) if high > low else 0] for mean in means)
