"""Weights & Biases, also without a network (`WANDB_MODE=offline`, and `wandb sync` later)."""

import os
from collections.abc import Sequence
from typing import Any

from hybridppo.reporting.trackers.base import Row, TrackedRun, Tracker


class Wandb(Tracker):
    """A run of Weights & Biases.

    Args:
        project: the name of its project; None for `WANDB_PROJECT`, or hybridppo.
        options: further arguments of `wandb.init`.
    """

    name = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self._project, self._options = project, options

    def open(self, run: TrackedRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        import wandb

        # In a terminal, it asks an unknown user for a key. It waits for a while, beside the training.
        more: dict[str, Any] = {"settings": wandb.Settings(login_timeout=60)}
        if before is not None:
            more |= {"id": before, "resume": "allow"}
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT", "hybridppo"),
            config=run.flat_config(),
            reinit="create_new",  # another open run of the program is not affected
            **{"name": run.name, "dir": run.run_dir, **more, **self._options},
        )
        if self._run.disabled and os.environ.get("WANDB_MODE") != "disabled":
            raise ConnectionError("nobody is logged in: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        return str(self._run.id)

    def log(self, rows: Sequence[Row]) -> None:  # noqa: D102 - as in the base
        for env_steps, values in rows:
            self._run.log({"env_steps": env_steps, **values})

    def close(self) -> None:  # noqa: D102 - as in the base
        self._run.finish()
