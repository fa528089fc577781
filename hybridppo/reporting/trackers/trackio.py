"""Trackio: a local folder, which `trackio show` displays."""

import os
from collections.abc import Sequence
from typing import Any

from hybridppo.reporting.trackers.base import Row, TrackedRun, Tracker


class Trackio(Tracker):
    """A run of Trackio.

    Args:
        project: the name of its project; None for `TRACKIO_PROJECT`, or hybridppo.
        options: further arguments of `trackio.init`.
    """

    name = "trackio"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self._project, self._options = project, options

    def open(self, run: TrackedRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        import trackio

        name = run.name if before is None else before
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(
            project=self._project or os.environ.get("TRACKIO_PROJECT", "hybridppo"),
            config=run.flat_config(),
            resume="never" if before is None else "allow",
            **{"name": name, **quiet, **self._options},
        )
        return str(self._run.name)

    def log(self, rows: Sequence[Row]) -> None:  # noqa: D102 - as in the base
        for env_steps, values in rows:
            self._run.log(dict(values), step=env_steps)

    def close(self) -> None:  # noqa: D102 - as in the base
        self._run.finish()
