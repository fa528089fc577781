"""TensorBoard: event files in the run directory, `tensorboard --logdir RUN_DIR/tensorboard`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridppo.reporting.trackers.base import Row, TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes event files, without torch's writer or TensorFlow.

    Args:
        log_dir: the folder to write to; None for `tensorboard` in the run directory.
    """

    name = "tensorboard"

    def __init__(self, log_dir: str | Path | None = None) -> None:
        self._log_dir = log_dir
        self.needs_run_dir = log_dir is None

    def open(self, run: TrackedRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        log_dir = self._log_dir
        if log_dir is None:  # looked up again for a resumed run, whose directory may have been moved
            assert run.run_dir is not None  # it needs one
            log_dir = run.run_dir / "tensorboard"
        self._writer: Any = EventFileWriter(str(log_dir))
        self._goes_on = before is not None
        if before is None:
            lines = [f"| {name} | {value} |" for name, value in run.flat_config().items()]
            table = "\n".join(["| option | value |", "|---|---|", *lines])
            self._writer.add_event(Event(wall_time=time.time(), step=0, summary=text_pb("config", table)))
        return str(log_dir)

    def log(self, rows: Sequence[Row]) -> None:  # noqa: D102 - as in the base
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        now = time.time()
        if self._goes_on:  # tells TensorBoard to drop later steps, which a killed process has written
            started = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=now, step=rows[0][0], session_log=started))
            self._goes_on = False
        for env_steps, values in rows:
            scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._writer.add_event(Event(wall_time=now, step=env_steps, summary=Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:  # noqa: D102 - as in the base
        self._writer.close()
