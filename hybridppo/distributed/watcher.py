"""Ends Ray's processes if the process that started Ray was killed. By themselves they would end a minute later.

`python watcher.py PID` needs no package, and works on Linux only, because it reads /proc. It finds the processes below
the `raylet` that process PID has started, and writes a byte when it has found them for the first time. Its standard
input closes when the process at the other end is gone; then it kills the processes that are left.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_END = 3.0
"""Seconds in which processes may end by themselves, as most do, before they are killed."""

Process = tuple[int, str]
"""The id of a process and the time of its start, because ids are reused."""


def processes() -> dict[int, tuple[int, str, str]]:
    """The parent's id, the name and the time of the start of every process, by id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                before, _, after = (folder / "stat").read_text().rpartition(")")
                fields = after.split()
                found[int(folder.name)] = int(fields[1]), before.partition("(")[2], fields[19]
    return found


def below_raylet(root: int) -> set[Process]:
    """The `raylet` that is a child of a process, and all processes below it."""
    everything = processes()
    found = {pid for pid, (parent, name, _) in everything.items() if parent == root and name == "raylet"}
    while more := {pid for pid, (parent, _, _) in everything.items() if parent in found} - found:
        found |= more
    return {(pid, everything[pid][2]) for pid in found}


def left_of(known: set[Process]) -> set[Process]:
    """The processes that still run."""
    now = {(pid, started) for pid, (_, _, started) in processes().items()}
    return known & now


def main() -> None:
    """Watch until standard input closes, and then end the processes that are left."""
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
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
