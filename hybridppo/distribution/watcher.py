"""Ends what is left of Ray when the process that had started it is killed: its agents would wait a minute more.

A script of its own, `python watcher.py PID`, which needs nothing installed; of Linux alone, for it reads /proc. It
looks at the processes below the `raylet` that the process PID has started, writes a byte when it has first done so, and
kills those that are left when its standard input ends, as it does with whoever holds the other end.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_END = 3.0
"""How long they may take to end by themselves, as most of them do."""

Process = tuple[int, str]
"""Its number, and when it was started: numbers are given again."""


def processes() -> dict[int, tuple[int, str, str]]:
    """The parent, name and start of every process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # ended meanwhile
                before, _, after = (folder / "stat").read_text().rpartition(")")
                fields = after.split()
                found[int(folder.name)] = int(fields[1]), before.partition("(")[2], fields[19]
    return found


def below_raylet(root: int) -> set[Process]:
    """The `raylet` that is a child of a process, and all below it."""
    everything = processes()
    found = {pid for pid, (parent, name, _) in everything.items() if parent == root and name == "raylet"}
    while more := {pid for pid, (parent, _, _) in everything.items() if parent in found} - found:
        found |= more
    return {(pid, everything[pid][2]) for pid in found}


def left_of(known: set[Process]) -> set[Process]:
    """Those that are there still."""
    now = {(pid, started) for pid, (_, _, started) in processes().items()}
    return known & now


def main() -> None:
    """Watch until standard input ends, and then end what is left."""
    root = int(sys.argv[1])
    known = below_raylet(root)
    os.write(1, b"1")
    while not select.select([0], [], [], SECONDS_BETWEEN_LOOKS)[0]:
        known = left_of(known) | below_raylet(root)
    rounds = int(SECONDS_TO_END / 0.2)
    while (left := left_of(known)) and rounds:
        rounds -= 1
        select.select([], [], [], 0.2)
    for pid, _ in left:
        with contextlib.suppress(OSError):  # ended meanwhile
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
