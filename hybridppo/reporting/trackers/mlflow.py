"""MLflow: a server, or a file of SQLite (`MLFLOW_TRACKING_URI=sqlite:///mlflow.db`)."""

import os
import posixpath
import re
import time
from collections.abc import Sequence

from hybridppo.reporting.trackers.base import Row, TrackedRun, Tracker

_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM = 1000, 100, 500
"""The most metrics and parameters of one call, and the longest parameter."""


class MLflow(Tracker):
    """A run of MLflow.

    Args:
        experiment: the name of its experiment; None for `MLFLOW_EXPERIMENT_NAME`, or hybridppo.
        tracking_uri: the address of the server or file; None for MLflow's default, which `MLFLOW_TRACKING_URI` sets.
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        self._experiment, self._tracking_uri = experiment, tracking_uri

    def open(self, run: TrackedRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self._tracking_uri)
        if before is not None:
            self._run_id = before
            self._client.update_run(before, status="RUNNING")
            return before
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "hybridppo")
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        self._run_id = str(self._client.create_run(experiment_id, run_name=run.name).info.run_id)
        params = [Param(allowed(name), str(value)[:_LONGEST_PARAM]) for name, value in run.flat_config().items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MOST_PARAMS])
        return self._run_id

    def log(self, rows: Sequence[Row]) -> None:  # noqa: D102 - as in the base
        from mlflow.entities import Metric

        now = int(1e3 * time.time())
        metrics = [
            Metric(allowed(name), value, now, env_steps) for env_steps, values in rows for name, value in values.items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _MOST_METRICS])

    def close(self) -> None:  # noqa: D102 - as in the base
        self._client.set_terminated(self._run_id)


def allowed(name: str) -> str:
    """A name that MLflow takes: the user's own keys are in names, and it refuses most punctuation and odd paths."""
    return posixpath.normpath("/" + re.sub(r"[^/\w.\- :]", "_", name)).lstrip("/")
