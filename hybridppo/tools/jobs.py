"""Runs side by side, each in a process of its own: `python -m hybridppo.tools.jobs`.

A process first receives the pickled call. When its connection closes, because the parent stops the process or dies, the
training is saved and the process ends; a later call continues the training.
"""

import contextlib
import inspect
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from hybridppo.environments.pickling import pack
from hybridppo.errors import ConfigurationError, HybridPPOError, shown
from hybridppo.reporting.progress import ProgressBar
from hybridppo.run_directory.files import Tail, as_json, read_object, replace_synced, wait_until_free
from hybridppo.runners.processes import connection_of_stdin, started, wait_for_ends
from hybridppo.running import TrainResult
from hybridppo.settings import can_change_result, fields_of, name_of_source
from hybridppo.system.validation import is_number
from hybridppo.training import resume, split_schedules, train, with_further

OBJECTIVE = "objective.json"
"""The file in a run directory with the value of an objective of one's own."""
EXIT_DONE, EXIT_ERROR, EXIT_STOPPED = 0, 1, 130
POLL_SECONDS = 0.2
STOP_SECONDS = 60.0
"""The longest time in which a training may be saved. After it, the process is killed, and the training later continues
from its last checkpoint."""


@dataclass(frozen=True)
class Run:
    """A training in a run directory."""

    run_dir: Path
    env: Any
    """An environment's id, or a function that makes it."""
    total_steps: int
    seed: int
    config: Any
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `train`, `evaluation_episodes` among them; `resume` gets those that it takes."""

    objective: Callable[[TrainResult], float] | None = None
    """What `value` is of the training's result; None for the mean return of the evaluation after it."""

    def train(self, callbacks: Any = ()) -> bool:
        """Train, or resume an existing run; whether it has ended, and was not interrupted."""
        own = self.options.get("callbacks", ())
        further: dict[str, Any] = {"total_steps": self.total_steps, "on_interrupt": "return"}
        further["callbacks"] = [*callbacks, *(own if isinstance(own, Sequence) else [own])]
        if not (self.run_dir / "config.json").exists():
            further |= {"seed": self.seed, "config": self.config, "run_dir": self.run_dir}
            result = train(self.env, progress=False, **{**self.options, **further})
        else:
            self.require_own()
            wait_until_free(self.run_dir, STOP_SECONDS)  # another process may still be saving it
            env, takes = None if isinstance(self.env, str) else self.env, inspect.signature(resume).parameters
            again = {name: value for name, value in self.options.items() if name in takes}
            result = resume(self.run_dir, env=env, progress=False, **{**again, **further})
        if not result.interrupted and self.objective is not None:
            value = self.objective(result)
            if not is_number(value):
                raise HybridPPOError(f"objective returned {shown(value)} for {self.run_dir}, and must return a number")
            replace_synced(self.run_dir / OBJECTIVE, as_json({"value": float(value)}).encode())
        return not result.interrupted

    def value(self) -> float:
        """The objective's value, or the mean return of the evaluation after the training.

        Raises:
            HybridPPOError: if it is no finite number.
        """
        if self.objective is not None:
            return float((read_object(self.run_dir / OBJECTIVE) or {})["value"])
        value = (self.result() or {}).get("evaluation_return_mean")
        if value is None or not math.isfinite(value):
            raise HybridPPOError(f"{self.run_dir} has no return that is a number")
        return float(value)

    def require_own(self) -> None:
        """Refuse a run directory that was begun with other settings, or with other code to run.

        Raises:
            ConfigurationError: if a setting differs.
        """
        asked = {"env_id": name_of_source(self.env), "total_steps": self.total_steps, "seed": self.seed}
        usual = {"imports": "", "env_kwargs": None, "track": "", "address": None}
        asked |= {name: self.options.get(name, value) for name, value in usual.items()}
        # As `train` saves it, which also writes the numbers of threads and whether updates are compiled.
        schedules, _ = split_schedules(self.options.get("schedules"))
        config = with_further(self.config, schedules, self.options.get("settings")).to_json()
        decide = [name for name, each in fields_of(type(self.config)).items() if can_change_result(each, config)]
        require_same(self.run_dir / "config.json", {**asked, **{name: config[name] for name in decide}})

    def result(self) -> dict[str, Any] | None:
        """The contents of `result.json`; None if the run has not ended.

        Raises:
            RunDirectoryError: if the file is damaged.
        """
        result = read_object(self.run_dir / "result.json")
        if self.objective is not None:  # which may have stopped before its goal
            return result if (self.run_dir / OBJECTIVE).exists() else None
        if result is None or result.get("env_steps", 0) < self.total_steps:
            return None
        return None if self.options.get("evaluation_episodes") and "evaluation_return_mean" not in result else result


class Job:
    """A call in its own process. It returns whether it has ended, and was not interrupted.

    Raises:
        EnvError: if the call cannot be pickled.
    """

    def __init__(self, call: Callable[[], bool], log: Path) -> None:
        data = pack({"source": call}, "")
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        # Not in this process's group: Ctrl-C in a terminal reaches only the parent, which then closes the connection.
        group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # only Windows has this name
        apart: dict[str, Any] = {"creationflags": group} if sys.platform == "win32" else {"start_new_session": True}
        with log.open("ab") as file:
            self.process, self._connection = started("hybridppo.tools.jobs", stdout=file, stderr=file, **apart)
        with contextlib.suppress(OSError):  # it has ended already: `ended` says how
            self._connection.send_bytes(data)

    def ended(self) -> bool:
        """Whether it has ended.

        Raises:
            HybridPPOError: if it ended with an error.
        """
        code = self.process.poll()
        if code is None:
            return False
        self.close()
        if code != EXIT_DONE:
            text = self.log.read_text(encoding="utf-8", errors="replace").strip()
            said = text.splitlines()[-1] if text else f"exit code {code}"
            raise HybridPPOError(f"{self.log.with_suffix('')} failed: {said} (see {self.log})")
        self.log.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """Ask it to stop, without waiting."""
        self._connection.close()


def stop_all(jobs: Sequence[Job]) -> None:
    """Stop them, all at the same time, and wait until they have saved and have ended."""
    for job in jobs:
        job.close()
    wait_for_ends([job.process for job in jobs], STOP_SECONDS)


def run_jobs(
    calls: Sequence[tuple[Callable[[], bool], Path]], *, jobs: int, on_progress: Callable[[int], object]
) -> None:
    """Make every call, `jobs` at once.

    Args:
        calls: the calls and their logs, in the order in which they begin.
        jobs: number of processes at once.
        on_progress: called a few times a second with the number of calls that have ended.

    Raises:
        HybridPPOError: if a call ends with an error. The others are saved and end.
    """
    waiting, running = list(calls), list[Job]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Job(*waiting.pop(0)))
            running[:] = [job for job in running if not job.ended()]
            on_progress(len(calls) - len(waiting) - len(running))
            if running:
                time.sleep(POLL_SECONDS)
    finally:
        stop_all(running)


def train_missing(runs: Sequence[Run], *, jobs: int, progress: bool, label: str | None = None) -> None:
    """Train the runs that have no result yet, `jobs` at once, under a progress bar.

    Raises:
        ConfigurationError: if a run was begun with other settings.
        HybridPPOError: if a run ends with an error.
    """
    for run in runs:
        run.require_own()
    missing = [run for run in runs if run.result() is None]
    tails = [Tail(run.run_dir / "metrics.jsonl", 1) for run in missing]
    total = sum(run.total_steps for run in missing)
    bar = ProgressBar(enabled=progress, has_lines=True, total=total, unit="step", unit_scale=True, desc=label)

    def show(done: int) -> None:
        steps = sum(tail.lines[-1]["env_steps"] for tail in tails if tail.read() or tail.lines)
        bar.move_to(min(steps, total), f"{len(runs) - len(missing) + done} of {len(runs)} runs")

    with bar:
        calls = [(run.train, run.run_dir.with_name(f"{run.run_dir.name}.log")) for run in missing]
        run_jobs(calls, jobs=jobs, on_progress=show)


def require_same(file: Path, settings: dict[str, Any]) -> None:
    """Refuse to continue in a folder that was begun with other settings.

    Args:
        file: JSON file with the settings that the folder was begun with; it may not exist yet.
        settings: the present settings.

    Raises:
        ConfigurationError: if a setting differs.
    """
    before = read_object(file) or {}
    if isinstance(of_agent := before.get("config"), dict):
        before |= of_agent
    for name, value in settings.items():
        if name in before and before[name] != json.loads(as_json(value)):
            raise ConfigurationError(
                f"{file.parent} was begun with {name} {shown(before[name])}, not {shown(value)}: name another output "
                "folder, or remove that one"
            )


def main() -> int:
    """Make the call that this process receives; the exit code."""
    connection = connection_of_stdin()
    call = cloudpickle.loads(connection.recv_bytes())["source"]
    threading.Thread(target=_stop_when_closed, args=(connection,), daemon=True).start()
    try:
        return EXIT_DONE if call() else EXIT_STOPPED
    except HybridPPOError as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:  # before training had begun
        return EXIT_STOPPED


def _stop_when_closed(connection: Any) -> None:
    with contextlib.suppress(EOFError, OSError):
        connection.recv()  # nothing ever comes
    signal.raise_signal(signal.SIGINT)
