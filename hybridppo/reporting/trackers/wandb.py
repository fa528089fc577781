"""Weights & Biases, also without a network (`WANDB_MODE=offline`, and `wandb sync` later)."""

import os
from collections.abc import Sequence
from typing import Any

from hybridppo.reporting.trackers.base import Row, TrackedRun, Tracker


class Wandb(Tracker):
    """A run of Weights & Biases.

    Args:
        project: its project; None for `WANDB_PROJECT`, or hybridppo.
        options: further arguments of `wandb.init`.
    """

    name = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self._project, self._options = project, options

    def open(self, run: TrackedRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        import wandb

        more = {} if before is None else {"id": before, "resume": "allow"}
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT", "hybridppo"),
            config=run.flat_config(),
            reinit="create_new",  # a run that the program has open stays as it is
            **{"name": run.name, "dir": run.run_dir, **more, **self._options},
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        return str(self._run.id)

    def log(self, rows: Sequence[Row]) -> None:  # noqa: D102 - as in the base
        for env_steps, values in rows:
            self._run.log({"env_steps": env_steps, **values})

    def close(self) -> None:  # noqa: D102 - as in the base
        self._run.finish()
