"""Sends rows to a tracker, in a separate thread, and tries again if that fails.

Rows are sent about once a second. They come from `metrics.jsonl` and `evaluations.jsonl` in the run directory, or from
memory without a run directory, like the evaluation after the training. The folder `trackers/` of the run directory
saves which rows were sent, so that a resumed run continues the same run in the tracker, and sends the missing rows.
"""

import itertools
import json
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from hybridppo.errors import ConfigurationError, command
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.reporting.trackers.base import TrackedRun, Tracker
from hybridppo.run_directory.lines import Tail
from hybridppo.system.throttling import ThrottledWarning
from hybridppo.system.validation import whole

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_SENDS = 1.0
SECONDS_BETWEEN_ATTEMPTS = 15.0
"""The wait after a failure."""
SECONDS_AT_THE_END = 60.0
"""The longest time that the end of a training waits for unsent rows."""
MOST_IN_MEMORY = 10_000
"""The most rows that are kept in memory without a run directory; older ones are dropped."""
ROWS_AT_ONCE = 32

FILES = {"metrics": "metrics.jsonl", "evaluations": "evaluations.jsonl"}
"""The file of each kind of rows."""


class _Waiting(NamedTuple):
    """A row that has not been sent."""

    kind: str
    iteration: int
    env_steps: int
    values: dict[str, float]


class Tracking(Callback):
    """Sends the metrics and evaluations of a training to a tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._outage = ThrottledWarning(f"the tracker {tracker.name}")
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def on_start(self, run: TrainingRun) -> None:
        """Begin with the rows that were not sent before the run was resumed.

        A training that continues after the loss of a learner ends and starts once more.
        """
        self._rows: deque[_Waiting] = deque()
        self._last: _Waiting | None = None
        self._is_ending = self._is_open = False
        self._dropped = 0
        name = run.run_dir.name if run.run_dir is not None else f"{run.config['env_id']}-seed{run.config['seed']}"
        self._run = TrackedRun(name, run.config, run.run_dir)
        self._file = None if run.run_dir is None else run.run_dir / "trackers" / f"{self.tracker.name}.json"
        self._file_outage = ThrottledWarning(f"writing {self._file}")
        state = _read(self._file)
        self._before: str | None = state.get("run")
        # A killed process may have sent rows of iterations that are now repeated: these are sent again.
        self._sent = {kind: min(state.get(kind, 0), run.iteration) for kind in FILES}
        self._tails = (
            {kind: Tail(run.run_dir / file) for kind, file in FILES.items()} if run.run_dir is not None else {}
        )
        self._thread = threading.Thread(target=self._work, name=f"hybridppo-{self.tracker.name}", daemon=True)
        self._thread.start()

    def on_iteration(self, run: TrainingRun, metrics: dict[str, float]) -> None:
        """Keep the metrics to be sent."""
        self._keep("metrics", metrics)

    def on_evaluation(self, run: TrainingRun, evaluation: dict[str, Any]) -> None:
        """Keep the evaluation to be sent; the one after the training is sent last."""
        if run.has_ended:
            self._last = _row("evaluations", evaluation)
        else:
            self._keep("evaluations", evaluation)

    def on_end(self, run: TrainingRun) -> None:
        """Send the remaining rows, and wait for that."""
        if self._thread is None:
            return
        with self._condition:
            self._is_ending = True
            self._condition.notify()
        self._thread.join(SECONDS_AT_THE_END)
        if self._thread.is_alive():
            logger.warning(
                "the tracker %s is not done after %g s, and is left to itself", self.tracker.name, SECONDS_AT_THE_END
            )

    def _keep(self, kind: str, line: dict[str, Any]) -> None:
        """Keep a row in memory if no file has it."""
        if self._tails:
            return
        with self._condition:
            if len(self._rows) >= MOST_IN_MEMORY:
                self._rows.popleft()
                self._dropped += 1
            self._rows.append(_row(kind, line))

    def _work(self) -> None:
        """Send rows until the training has ended."""
        seconds = 0.0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_ending, timeout=seconds)
                is_ending = self._is_ending
            try:
                self._send()
                if is_ending:
                    self.tracker.close()
            except Exception as error:  # services and other libraries may raise any error
                seconds = SECONDS_BETWEEN_ATTEMPTS
                if is_ending:
                    self._warn_of_the_rest(error)
                else:
                    self._outage.failed(error, "training goes on, and it gets the rows later")
            else:
                seconds = SECONDS_BETWEEN_SENDS
                self._outage.works()
            if is_ending:
                return

    def _warn_of_the_rest(self, error: Exception) -> None:
        run_dir = self._run.run_dir
        lost = f"{len(self._rows)} rows are lost"
        left = lost if run_dir is None else f"`{command('hybridppo', 'resume', run_dir)}` sends the rest"
        logger.warning(
            "the tracker %s did not get all rows: %s: %s; %s", self.tracker.name, type(error).__name__, error, left
        )

    def _send(self) -> None:
        if not self._is_open:
            self._before = self.tracker.open(self._run, self._before)
            self._is_open = True
            self._write()
        while rows := self._next():
            self.tracker.log([(row.env_steps, row.values) for row in rows])
            for row in rows:
                self._sent[row.kind] = max(self._sent[row.kind], row.iteration)
            with self._condition:
                for _ in range(min(len(rows), len(self._rows))):
                    if self._rows[0].iteration <= self._sent[self._rows[0].kind]:
                        self._rows.popleft()
            self._write()
        if self._dropped:
            logger.warning(
                "the tracker %s lacks %d rows, for which there was no room", self.tracker.name, self._dropped
            )
            self._dropped = 0

    def _next(self) -> list[_Waiting]:
        """The next rows to send, the oldest first."""
        if not self._rows:  # during an outage, further rows stay in their files
            for kind, tail in self._tails.items():
                tail.read()
                rows = (_row(kind, line) for line in tail.lines)
                self._rows.extend(row for row in rows if row.iteration > self._sent[kind])
                tail.lines.clear()
            if self._tails:
                self._rows = deque(sorted(self._rows, key=lambda row: row.env_steps))
        with self._condition:
            if not self._rows and self._last is not None:
                self._rows.append(self._last)
                self._last = None
            return list(itertools.islice(self._rows, ROWS_AT_ONCE))

    def _write(self) -> None:
        """Save which rows were sent. If that fails, a resumed run sends some rows twice."""
        if self._file is None:
            return
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}.tmp")
        with self._file_outage.tolerating(OSError, "a run that goes on from here may send some rows twice"):
            self._file.parent.mkdir(exist_ok=True)
            temporary.write_text(json.dumps({"run": self._before, **self._sent}, allow_nan=False))
            temporary.replace(self._file)


def tracked(trackers: Sequence[Tracker], run_dir: str | Path | None) -> list[Tracking]:
    """Callbacks that send the rows of a training to trackers.

    Raises:
        ConfigurationError: if two trackers have the same name, or one needs a run directory.
    """
    names = [tracker.name for tracker in trackers]
    for tracker in trackers:
        if tracker.needs_run_dir and run_dir is None:
            raise ConfigurationError(
                f"tracking with {tracker.name} writes into the run directory: name one, as run_dir"
            )
        if not tracker.name or names.count(tracker.name) > 1:
            raise ConfigurationError(
                f"each tracker needs a name of its own, got {names}: set the attribute name of {type(tracker).__name__}"
            )
    return [Tracking(tracker) for tracker in trackers]


def _row(kind: str, line: dict[str, Any]) -> _Waiting:
    """A row with the finite numbers of a line. Evaluations have separate rows."""
    left_out = ("iteration", "env_steps") if kind == "metrics" else ("iteration", "env_steps", "seconds", "checkpoint")
    values = {
        name: float(value)
        for name, value in line.items()
        if isinstance(value, (int, float)) and math.isfinite(value) and name not in left_out
        if kind == "evaluations" or not (name.startswith("evaluation_") or name.endswith("/evaluation_return_mean"))
    }
    return _Waiting(kind, int(line["iteration"]), int(line["env_steps"]), values)


def _read(file: Path | None) -> dict[str, Any]:
    """The saved state of a tracker; empty if it has not begun, or the file cannot be read."""
    if file is None or not file.exists():
        return {}
    try:
        state = json.loads(file.read_bytes())
        if not (isinstance(state, dict) and isinstance(state.get("run", ""), (str, NoneType))):
            raise TypeError("it names no run")
        return {"run": state.get("run"), **{kind: whole(state, kind) for kind in FILES}}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s cannot be read (%s): the tracker begins anew", file, error)
        return {}
