"""Loggers write the metrics of a training to TensorBoard, Weights & Biases, Trackio, MLflow, a table, or elsewhere.

    class Printer(hybridppo.Logger):
        name = "printer"

        def log(self, env_steps, values):
            print(env_steps, values)

    hybridppo.train("CartPole-v1", total_steps=100_000, track="tensorboard", loggers=[Printer()])

The packages have queues of their own, so that a training does not wait for them. They are imported when they are used.
"""

import csv
import io
import math
import os
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hybridppo.errors import ConfigurationError, RunDirectoryError, hint, is_installed, pip_install, shown
from hybridppo.reporting.callbacks import Callback, OnIteration, TrainingRun, require_callbacks
from hybridppo.run_directory.directory import METRICS
from hybridppo.run_directory.files import finite, plain_file, read_file, read_lines, replace_synced
from hybridppo.system.messages import ThrottledWarning
from hybridppo.system.validation import require_path

_ROLLOUT = {"episodes", "episode_return_mean", "episode_length_mean", "env_restarts", "agent_steps", "policy_lag"}
_TIME = {"iteration", "env_steps", "steps_per_second", "publishes", "bytes_copied", "samplers_busy", "steps_dropped"}
_MOST_PARAMS, _LONGEST_PARAM = 100, 500
"""MLflow's limits: the parameters of one call, and the length of a parameter."""


def grouped(name: str) -> str:
    """The name of a metric in its group: `rollout/`, `train/`, `time/` or `eval/`; one with a `/` has its own group."""
    if name.startswith("evaluation_"):
        return f"eval/{name.removeprefix('evaluation_')}"
    group = "rollout" if name in _ROLLOUT else "time" if name in _TIME or name.startswith("seconds") else "train"
    return name if "/" in name else f"{group}/{name}"


class Logger(Callback):
    """Receives the metrics and evaluations of a training. A subclass overrides `log`, and others if needed.

    An error in `open`, `log` or `close` is a warning, and the training continues.
    """

    name: str = ""
    """Its name in messages, and in the folder `loggers/` of the run directory."""
    needs_run_dir: bool = False
    """Whether it needs a run directory."""
    groups: bool = False
    """Whether `log` gets names in groups, as `train/policy_loss`, in place of those in `metrics.jsonl`."""

    def open(self, run: TrainingRun, before: str | None) -> str | None:
        """Begin to log a training, or continue.

        Args:
            run: the training.
            before: in a resumed training, the value that `open` returned earlier; else None.

        Returns:
            A value that lets a later `open` continue the same run, such as an id; or None.
        """
        return None

    def log(self, env_steps: int, values: dict[str, float]) -> None:
        """Receive the metrics of an iteration, or an evaluation, after so many environment steps."""
        raise NotImplementedError

    def close(self) -> None:
        """The training has ended; called if `open` has returned."""

    def on_start(self, run: TrainingRun) -> None:
        """Open, with the value that was saved in the run directory."""
        self._outage, self._is_open = ThrottledWarning(f"the logger {self.name}"), False
        file = None if run.run_dir is None else run.run_dir / "loggers" / f"{self.name}.txt"
        with self._outage.tolerating(Exception, "this training is not logged by it"):
            if file is not None and file.parent.is_symlink():
                raise RunDirectoryError(f"{file.parent} is a link: put a folder in its place")
            before = read_file(file).decode() if file is not None and file.exists() else None
            opened = self.open(run, before)
            self._is_open = True
            if file is not None and opened is not None:
                file.parent.mkdir(exist_ok=True)
                replace_synced(file, opened.encode())

    def on_iteration(self, run: TrainingRun, metrics: dict[str, float]) -> None:
        """Log the metrics; evaluations come separately, with the steps of the evaluated agent."""
        of_evaluation = {name for name in metrics if name.split("/")[-1].startswith("evaluation_")}
        self._log(metrics["env_steps"], {name: each for name, each in metrics.items() if name not in of_evaluation})

    def on_evaluation(self, run: TrainingRun, evaluation: dict[str, Any]) -> None:
        """Log the evaluation."""
        left_out = ("seconds", "checkpoint")
        self._log(evaluation["env_steps"], {name: each for name, each in evaluation.items() if name not in left_out})

    def on_end(self, run: TrainingRun) -> None:
        """Close."""
        if self._is_open:
            with self._outage.tolerating(Exception, "its last values may be lost"):
                self.close()

    def _log(self, env_steps: float, values: Mapping[str, Any]) -> None:
        """Log those of the values that are finite numbers."""
        if not self._is_open:
            return
        numbers = {
            grouped(name) if self.groups else name: float(value)
            for name, value in values.items()
            if isinstance(value, (int, float)) and math.isfinite(value) and name not in ("iteration", "env_steps")
        }
        with self._outage.tolerating(Exception, "the training continues, and the files in the run directory have all"):
            self.log(int(env_steps), numbers)


class TensorBoard(Logger):
    """Event files in the run directory: `tensorboard --logdir RUN_DIR/tensorboard`.

    Args:
        log_dir: the folder to write to; None for `tensorboard` in the run directory.
    """

    name, groups = "tensorboard", True

    def __init__(self, log_dir: str | Path | None = None) -> None:
        self._log_dir = None if log_dir is None else require_path("log_dir", log_dir)
        self.needs_run_dir = log_dir is None
        self.writer: Any = None
        """torch's `SummaryWriter` during the training, for histograms and pictures of your own."""

    def open(self, run: TrainingRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        from torch.utils.tensorboard import SummaryWriter

        log_dir = self._log_dir or cast(Path, run.run_dir) / "tensorboard"  # it has one of the two
        # TensorBoard drops later steps, which a killed process has written.
        later = None if before is None else run.env_steps + 1
        self.writer = SummaryWriter(str(log_dir), purge_step=later, flush_secs=5)
        if before is None:
            lines = [f"| {name} | {value} |" for name, value in flat_config(run).items()]
            self.writer.add_text("config", "\n".join(["| option | value |", "|---|---|", *lines]))
        return str(log_dir)

    def log(self, env_steps: int, values: dict[str, float]) -> None:  # noqa: D102 - as in the base
        for name, value in values.items():
            self.writer.add_scalar(name, value, env_steps)

    def close(self) -> None:  # noqa: D102 - as in the base
        self.writer.close()


class CSV(Logger):
    """`metrics.csv` in the run directory: the lines of `metrics.jsonl` as a table."""

    name, needs_run_dir = "csv", True

    def open(self, run: TrainingRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        self._folder, self._columns = cast(Path, run.run_dir), list[str]()
        return None

    def on_iteration(self, run: TrainingRun, metrics: dict[str, float]) -> None:
        """Append a row; if there are new columns, or no file, write the table anew."""
        with self._outage.tolerating(Exception, "the training continues, and metrics.jsonl has all"):
            path = self._folder / "metrics.csv"
            if not plain_file(path) or not metrics.keys() <= {*self._columns}:
                self.close()
                return
            with path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(finite(metrics))

    def close(self) -> None:
        """Write the table anew, because the last evaluation may have changed its row."""
        rows, text = read_lines(self._folder / METRICS), io.StringIO()
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        table = csv.DictWriter(text, self._columns)
        table.writeheader()
        table.writerows(rows)
        replace_synced(self._folder / "metrics.csv", text.getvalue().encode())

    def on_evaluation(self, run: TrainingRun, evaluation: dict[str, Any]) -> None:
        """Nothing: the metrics have its results."""


class Wandb(Logger):
    """Weights & Biases, also without a network (`WANDB_MODE=offline`, and `wandb sync` later).

    Args:
        project: the name of its project; None for the run's `track_project`, `WANDB_PROJECT`, or hybridppo.
        options: further arguments of `wandb.init`.
    """

    name, groups = "wandb", True

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self._project, self._options = project, options

    def open(self, run: TrainingRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        import wandb

        # In a terminal, it asks an unknown user for a key, and waits for a while.
        more: dict[str, Any] = {"settings": wandb.Settings(login_timeout=60)}
        more |= {"entity": run.config.get("track_entity"), "tags": _tags(run)}
        if before is not None:
            more |= {"id": before, "resume": "allow"}
        self._run: Any = wandb.init(
            project=_project(run, self._project, "WANDB_PROJECT"),
            config=flat_config(run),
            reinit="create_new",  # another open run of the program is not affected
            **{"name": name_of(run), "dir": run.run_dir, **more, **self._options},
        )
        if self._run.disabled and os.environ.get("WANDB_MODE") != "disabled":
            raise ConnectionError("nobody is logged in: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        return str(self._run.id)

    def log(self, env_steps: int, values: dict[str, float]) -> None:  # noqa: D102 - as in the base
        self._run.log({"env_steps": env_steps, **values})

    def close(self) -> None:  # noqa: D102 - as in the base
        self._run.finish()


class Trackio(Wandb):
    """Trackio: a local folder, which `trackio show` displays.

    Args:
        project: the name of its project; None for the run's `track_project`, `TRACKIO_PROJECT`, or hybridppo.
        options: further arguments of `trackio.init`.
    """

    name = "trackio"

    def open(self, run: TrainingRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        import trackio

        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(
            project=_project(run, self._project, "TRACKIO_PROJECT"),
            config=flat_config(run),
            resume="never" if before is None else "allow",
            **{"name": name_of(run) if before is None else before, **quiet, **self._options},
        )
        return str(self._run.name)

    def log(self, env_steps: int, values: dict[str, float]) -> None:  # noqa: D102 - as in the base
        self._run.log(values, step=env_steps)


class MLflow(Logger):
    """MLflow: a server, or a file of SQLite (`MLFLOW_TRACKING_URI=sqlite:///mlflow.db`).

    Args:
        experiment: the name of its experiment; None for the run's `track_project`, `MLFLOW_EXPERIMENT_NAME`, or
            hybridppo.
        tracking_uri: the address of the server or file; None for MLflow's default, which `MLFLOW_TRACKING_URI` sets.
    """

    name, groups = "mlflow", True

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        self._experiment, self._tracking_uri = experiment, tracking_uri

    def open(self, run: TrainingRun, before: str | None) -> str | None:  # noqa: D102 - as in the base
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(self._tracking_uri)
        if before is not None:
            self._run_id = before
            self._client.update_run(before, status="RUNNING")
            return before
        name = _project(run, self._experiment, "MLFLOW_EXPERIMENT_NAME")
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        made = self._client.create_run(experiment_id, run_name=name_of(run), tags=dict.fromkeys(_tags(run), ""))
        self._run_id = str(made.info.run_id)
        params = [Param(mlflow_name(name), str(value)[:_LONGEST_PARAM]) for name, value in flat_config(run).items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MOST_PARAMS])
        return self._run_id

    def log(self, env_steps: int, values: dict[str, float]) -> None:  # noqa: D102 - as in the base
        from mlflow.entities import Metric

        now = int(1e3 * time.time())
        metrics = [Metric(mlflow_name(name), value, now, env_steps) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics, synchronous=False)  # its queue logs its own errors

    def close(self) -> None:  # noqa: D102 - as in the base
        self._client.set_terminated(self._run_id)


Loggers = Logger | Callable[[dict[str, float]], object] | Sequence[Logger | Callable[[dict[str, float]], object]]
"""Loggers, and functions of each iteration's metrics: one, or several."""

LOGGERS: dict[str, type[Logger]] = {each.name: each for each in (TensorBoard, CSV, Wandb, Trackio, MLflow)}
"""The library's loggers. The package that one needs, and the extra that installs it, have its name."""


def callbacks_given(
    run_dir: str | Path | None,
    track: str,
    *,
    on_iteration: Callable[[dict[str, float]], object] | None,
    loggers: Loggers,
    callbacks: Sequence[Callback] | Callback,
) -> list[Callback]:
    """The callbacks for the arguments that `train` and `resume` share.

    Args:
        run_dir: the run directory.
        track: the names of loggers.
        on_iteration: as for `train`.
        loggers: as for `train`.
        callbacks: as for `train`.

    Raises:
        ConfigurationError: for a wrong argument, and for loggers whose package is missing.
    """
    if on_iteration is not None and not callable(on_iteration):
        raise ConfigurationError(f"on_iteration must be a function of the metrics, got {shown(on_iteration)}")
    named = logger_names(track)
    for name in named:
        if not is_installed(name):
            raise ConfigurationError(f"logging with {name} needs a package: {pip_install(name)}")
    several: Any = loggers if isinstance(loggers, Iterable) and not callable(loggers) else [loggers]
    objects = [*(LOGGERS[name]() for name in named), *(each for each in several if isinstance(each, Logger))]
    names = [each.name for each in objects]
    for each in objects:
        if each.needs_run_dir and run_dir is None:
            raise ConfigurationError(f"the logger {each.name} writes into the run directory: name one, as run_dir")
        if not each.name or names.count(each.name) > 1:
            raise ConfigurationError(
                f"each logger needs a name of its own, got {names}: set the attribute name of {type(each).__name__}"
            )
    functions = [each for each in several if not isinstance(each, Logger)]
    if wrong := [each for each in functions if not callable(each)]:
        raise ConfigurationError(
            "loggers must be functions of the metrics, as print is, or objects of subclasses of Logger, got "
            f"{shown(wrong[0])}"
        )
    # Loggers never fail, and come first: they get the metrics with which another callback fails.
    found: list[Callback] = [*objects]
    if on_iteration is not None:
        found.append(OnIteration(on_iteration))
    found += [OnIteration(each, may_fail=True) for each in functions]
    return [*found, *require_callbacks(callbacks)]


def logger_names(track: object) -> list[str]:
    """The names in a text that separates them by commas.

    Raises:
        ConfigurationError: if there is no logger of a name.
    """
    if not isinstance(track, str):
        raise ConfigurationError(f"track must name loggers, with commas between, got {shown(track)}")
    names = [name.strip() for name in track.split(",") if name.strip()]
    for name in names:
        if name not in LOGGERS:
            meant = hint(name, None, LOGGERS)
            raise ConfigurationError(f"track must name some of {', '.join(LOGGERS)}, got {shown(name)}{meant}")
    return list(dict.fromkeys(names))


def name_of(run: TrainingRun) -> str:
    """The run's `track_name`, the name of its directory, or without one, its environment and seed."""
    path = None if run.run_dir is None else run.run_dir.name
    return run.config.get("track_name") or path or f"{run.config['env_id']}-seed{run.config['seed']}"


def _project(run: TrainingRun, given: str | None, variable: str) -> str:
    return given or run.config.get("track_project") or os.environ.get(variable, "hybridppo")


def _tags(run: TrainingRun) -> list[str]:
    return [tag.strip() for tag in run.config.get("track_tags", "").split(",") if tag.strip()]


def flat_config(run: TrainingRun) -> dict[str, Any]:
    """The settings without nesting (`config.learning_rate`), and the path of the run directory."""
    return {**_flat(run.config, ""), "run_dir": None if run.run_dir is None else str(run.run_dir.resolve())}


def _flat(settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str | int | float | None) else str(value)
    return found


def mlflow_name(name: str) -> str:
    """A name that MLflow takes: the user's own keys are in names, and it refuses most punctuation and odd paths."""
    return posixpath.normpath("/" + re.sub(r"[^/\w.\- :]", "_", name)).lstrip("/")
