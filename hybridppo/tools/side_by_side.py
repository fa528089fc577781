"""Trains runs side by side, each in its own process.

If the parent process is stopped or dies, each run is saved and ends; the next call continues it.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hybridppo.errors import ConfigurationError, HybridPPOError, shown
from hybridppo.reporting.progress import ProgressBar
from hybridppo.run_directory.files import Tail, as_json, read_object
from hybridppo.runners.processes import command_of, wait_for_ends
from hybridppo.tools.one_run import EXIT_DONE, RunAsked

POLL_SECONDS = 0.2
STOP_SECONDS = 60.0
"""The longest time in which a run may be saved. After it, the run is killed, and later continues from its last
checkpoint."""


class RunningRun:
    """A run in its own process."""

    def __init__(self, asked: RunAsked) -> None:
        self.asked = asked
        folder = Path(asked.run_dir)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.log = folder.with_name(f"{folder.name}.log")
        self.metrics = Tail(folder / "metrics.jsonl")
        self.evaluations = Tail(folder / "evaluations.jsonl")
        # Not in this process's group: Ctrl-C in a terminal reaches only the parent, which then closes the run's input.
        on_windows = sys.platform == "win32"
        group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # only Windows has this name
        apart: dict[str, Any] = {"creationflags": group} if on_windows else {"start_new_session": True}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command_of("hybridppo.tools.one_run"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                **apart,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended already: `ended` says how
            self._process.stdin.write(asked.to_line().encode())
            self._process.stdin.flush()

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        self.metrics.read()
        return int(self.metrics.lines[-1]["env_steps"]) if self.metrics.lines else 0

    def ended(self) -> bool:
        """Whether it has ended.

        Raises:
            HybridPPOError: if it ended with an error.
        """
        code = self._process.poll()
        if code is None:
            return False
        self.close()
        if code != EXIT_DONE:
            text = self.log.read_text(encoding="utf-8", errors="replace").strip()
            said = text.splitlines()[-1] if text else f"exit code {code}"
            raise HybridPPOError(f"the run {self.asked.run_dir} failed: {said} (see {self.log})")
        self.log.unlink(missing_ok=True)
        return True

    def stop(self) -> None:
        """Stop the run, and wait until it is saved and has ended."""
        self.close()
        wait_for_ends([self._process], STOP_SECONDS)

    def close(self) -> None:
        """Ask the run to stop, without waiting."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # what was not read by a process that has ended
            self._process.stdin.close()


def result_of(run: RunAsked) -> dict[str, Any] | None:
    """The contents of a run's `result.json`; None if the run has not ended.

    Raises:
        RunDirectoryError: if the file is damaged.
    """
    result = read_object(Path(run.run_dir) / "result.json")
    has_ended = result is not None and result.get("env_steps", 0) >= run.total_steps
    return result if result is not None and has_ended and "evaluation_return_mean" in result else None


def require_same(file: Path, settings: dict[str, Any]) -> None:
    """Refuse to continue in a folder that was begun with other settings.

    Args:
        file: JSON file with the settings that the folder was begun with; it may not exist yet.
        settings: the present settings.

    Raises:
        ConfigurationError: if a setting differs.
    """
    before = read_object(file) or {}
    for name, value in settings.items():
        if name in before and before[name] != json.loads(as_json(value)):
            raise ConfigurationError(
                f"{file.parent} was begun with {name} {shown(before[name])}, not {shown(value)}: name another output "
                "folder, or remove that one"
            )


def train_missing(runs: Sequence[RunAsked], *, jobs: int, progress: bool, label: str | None = None) -> None:
    """Train the runs that have no result yet, `jobs` at once, under a progress bar.

    Raises:
        HybridPPOError: if a run ends with an error.
    """
    missing = [run for run in runs if result_of(run) is None]
    total = sum(run.total_steps for run in missing)
    bar = ProgressBar(enabled=progress, has_lines=True, total=total, unit="step", unit_scale=True, desc=label)
    with bar:

        def show(steps: int, done: int) -> None:
            bar.move_to(min(steps, total), f"{len(runs) - len(missing) + done} of {len(runs)} runs")

        run_all(missing, jobs=jobs, on_progress=show)


def run_all(
    asked: Sequence[RunAsked], *, jobs: int, on_progress: Callable[[int, int], object] = lambda steps, done: None
) -> None:
    """Train every run, `jobs` at once.

    Args:
        asked: the runs, in the order in which they begin.
        jobs: number of runs at once.
        on_progress: called a few times a second with the environment steps of all runs, and the number that have ended.

    Raises:
        HybridPPOError: if a run ends with an error. The others are saved and end.
    """
    waiting, runs, running = list(asked), list[RunningRun](), list[RunningRun]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                runs.append(RunningRun(waiting.pop(0)))
                running.append(runs[-1])
            running[:] = [run for run in running if not run.ended()]
            on_progress(sum(run.env_steps for run in runs), len(runs) - len(running))
            if running:
                time.sleep(POLL_SECONDS)
    finally:
        stop_all(running)


def stop_all(runs: Sequence[RunningRun]) -> None:
    """Stop runs, and wait until they are saved, all at the same time, and have ended."""
    for run in runs:
        run.close()
    for run in runs:
        run.stop()
