"""Callbacks: called during a training. They see the agent, and may end the training.

    class Patience(hybridppo.Callback):
        def on_iteration(self, run, metrics):
            if metrics["episode_return_mean"] > 400:
                run.stop("good enough")

    hybridppo.train("CartPole-v1", total_steps=100_000, callbacks=[Patience()])

Loggers, `on_iteration` and `target_return` are callbacks, too. A callback never changes the random numbers of
a training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hybridppo.environments.base import Steering
from hybridppo.environments.options import is_held_by_json
from hybridppo.errors import CallbackError, ConfigurationError, failures, shown, shown_error, shown_name
from hybridppo.system.messages import ThrottledWarning, shown_number
from hybridppo.system.validation import plain

if TYPE_CHECKING:
    from hybridppo.interfaces import Agent, Metrics

logger = logging.getLogger(__name__)


def _refuse(steering: Steering) -> list[Any]:
    raise ConfigurationError("the training has ended, and its environments are closed: call and set them in a callback")


class RunEnvironments:
    """The environments of a training, wherever they are: in this process, in workers, or over Ray.

    Calls and changes of attributes take effect in every environment, without its wrappers, between two rollouts: if a
    rollout is under way, when it has ended. They are repeated in an environment that is restarted, and when a run is
    resumed. They do not reach the environments of evaluations.

    Args:
        steer: makes a call or a change; returns the result of each environment.
    """

    def __init__(self, steer: Callable[[Steering], list[Any]]) -> None:
        self._steer = steer

    def close(self) -> None:
        """Refuse further calls, because the training has ended."""
        self._steer = _refuse

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of every environment; return the results, in the order of the environments.

        If the training is being stopped within a rollout, the list is empty, and the method is called when the rollout
        has ended in the resumed run.

        Args:
            name: the name of the method.
            arguments: values that JSON can hold: numbers, text, and lists and dicts of these.

        Raises:
            EnvError: if the environments have no such method.
            ConfigurationError: for other arguments, and for environments that are not Python objects.
        """
        return self._steer(Steering("call", name, _held(name, list(arguments))))

    def set(self, name: str, value: Any) -> None:
        """Set an existing attribute of every environment; otherwise as `call`."""
        self._steer(Steering("set", name, _held(name, [value])))


def _held(name: str, values: list[Any]) -> list[Any]:
    values = [plain(value) for value in values]
    if not is_held_by_json(values):
        raise ConfigurationError(
            "environments.call and environments.set take what JSON can hold, so that a run can go on, and for "
            f"{name!r} got {shown(values)}: pass numbers, text, lists or dicts"
        )
    return values


@dataclass
class TrainingRun:
    """The running training, for callbacks."""

    agent: Agent
    """The agent, on its learning device. Callbacks are called between two iterations, when it does not change."""
    config: dict[str, Any]
    """All settings, as in `config.json`."""
    run_dir: Path | None = None
    """The run directory, or None."""
    iteration: int = 0
    """Iterations so far, including those before a resume."""
    env_steps: int = 0
    """Environment steps so far, including those before a resume."""
    environments: RunEnvironments = field(default_factory=lambda: RunEnvironments(lambda steering: []))
    """The environments of the training."""
    save: Callable[[], object] = bool
    """Writes a checkpoint now; without a run directory, it does nothing."""
    stopped_by: str | None = field(default=None)
    """The reason for which a callback ends the training before its goal."""
    has_ended: bool = field(default=False)
    """Whether all iterations are done, so that an evaluation is the one after the training."""

    def stop(self, reason: str) -> None:
        """End the training after this iteration, as if it had reached its goal: it is saved and evaluated."""
        if self.stopped_by is None:
            self.stopped_by = reason


class Callback:
    """Override the methods that you need; they do nothing by default.

    Methods are called between two iterations, in the order of the callbacks. An error in a callback ends the training,
    after a checkpoint is written. An error in `on_end` or `on_error` is only logged.
    """

    is_of_library: bool = False
    """Whether it belongs to the library, whose errors are raised as they are."""

    def on_start(self, run: TrainingRun) -> None:
        """The training begins, or continues if `run.iteration` is above 0."""

    def on_rollout(self, run: TrainingRun) -> None:
        """A rollout was sampled, and the next one has not begun."""

    def on_metrics(self, run: TrainingRun, metrics: Mapping[str, float]) -> Mapping[str, float] | None:
        """An iteration has ended; return metrics of your own, which are added to its line of `metrics.jsonl`.

        They also reach loggers and `on_iteration`. Names must be new, and values numbers.
        """

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """An iteration has ended; `metrics` is its line of `metrics.jsonl`."""

    def on_evaluation(self, run: TrainingRun, evaluation: dict[str, Any]) -> None:
        """An evaluation has ended; `evaluation` is its line of `evaluations.jsonl`, with the steps of that agent.

        The evaluation after the training comes last, with `run.has_ended`; its results are in `result.json` instead.
        """

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """A checkpoint is on the disk, in the folder `path`."""

    def on_finish(self, run: TrainingRun) -> None:
        """All iterations are done, or a stop was requested; the last checkpoint is still to come."""

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """Something has failed, and will end the training, but not within an update: the agent is whole."""

    def on_end(self, run: TrainingRun) -> None:
        """The training has ended, for any reason; called once if `on_start` was called."""


class OnIteration(Callback):
    """A function of each iteration's metrics.

    Args:
        function: the function.
        may_fail: whether its exceptions are only logged; otherwise they end the training unchanged.
    """

    is_of_library = True

    def __init__(self, function: Callable[[Metrics], object], *, may_fail: bool = False) -> None:
        self._function = function
        self._outage = ThrottledWarning(f"the logger {shown_name(function)}") if may_fail else None

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:  # noqa: D102 - as in the base
        if self._outage is None:
            self._function(metrics)
            return
        # Services and other libraries may raise any error.
        with self._outage.tolerating(Exception, "training goes on with the files in the run directory"):
            self._function(metrics)


class StopAtReturn(Callback):
    """Ends the training at a mean return.

    Args:
        target: the mean return to reach: the mean of an evaluation during training if there are any, else of the latest
            100 episodes, once 100 episodes have ended.
    """

    EPISODES = 100

    def __init__(self, target: float) -> None:
        self._target = target

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:  # noqa: D102 - as in the base
        if not run.config.get("evaluate_every") and metrics["episodes"] >= self.EPISODES:
            self._look_at(run, metrics["episode_return_mean"])

    def on_evaluation(self, run: TrainingRun, evaluation: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        self._look_at(run, evaluation["evaluation_return_mean"])

    def _look_at(self, run: TrainingRun, mean: float) -> None:
        if mean >= self._target:
            run.stop(f"the mean return, {shown_number(mean)}, has reached the target of {self._target:g}")


class Callbacks:
    """Calls every callback; an error names the callback that failed.

    Args:
        callbacks: the callbacks, in the order in which they are called.
        run: passed to every callback.
    """

    def __init__(self, callbacks: Sequence[Callback], run: TrainingRun) -> None:
        self.all, self.run = list(callbacks), run
        self._started: list[Callback] = []
        self._has_failed = False
        """Whether a callback has failed: the training is saved and ends."""

    def start(self) -> None:
        """The training begins, or continues."""
        for callback in self.all:
            self._started.append(callback)
            with self._calling(callback, "on_start"):
                callback.on_start(self.run)

    def measured(self, metrics: Metrics) -> Metrics:
        """The metrics of an iteration, and those that callbacks return.

        Raises:
            CallbackError: if a callback fails, or returns other values than numbers, or a name that is taken.
        """
        for callback in () if self._has_failed else self.all:
            with self._calling(callback, "on_metrics"):
                metrics = metrics | _metrics_in(callback.on_metrics(self.run, MappingProxyType(metrics)), metrics)
        return metrics

    def tell(self, hook: str, *arguments: Any) -> None:
        """Call this method of every callback."""
        default = getattr(Callback, hook)
        for callback in () if self._has_failed else self.all:
            method = getattr(callback, hook)
            if getattr(method, "__func__", None) is not default:  # most callbacks have few of the methods
                with self._calling(callback, hook):
                    method(self.run, *map(copy, arguments))  # which it may change

    def failed(self, error: BaseException) -> None:
        """Something has failed, and the agent is whole. The last callback, which saves it, is called first."""
        for callback in reversed(self._started):
            self._tell_in_any_case(callback, "on_error", error)

    def end(self) -> None:
        """Call `on_end` of all callbacks that were started."""
        while self._started:
            self._tell_in_any_case(self._started.pop(0), "on_end")

    def _tell_in_any_case(self, callback: Callback, hook: str, *arguments: Any) -> None:
        """Call a method. An error in it is only logged, because there is a result, or another error, already."""
        try:
            getattr(callback, hook)(self.run, *arguments)
        except failures():
            logger.warning(
                "the callback %s failed in %s, after iteration %d",
                shown_name(callback), hook, self.run.iteration, exc_info=True,
            )  # fmt: skip

    @contextmanager
    def _calling(self, callback: Callback, hook: str) -> Iterator[None]:
        """A context in which an error becomes a `CallbackError` that names the callback."""
        try:
            yield
        except failures() as error:
            if callback.is_of_library:
                raise
            self._has_failed = True
            if isinstance(error, SystemExit):  # passes as it is, once the training is saved
                raise
            raise CallbackError(
                f"the callback {shown_name(callback)} failed in {hook}, after iteration {self.run.iteration}: "
                f"{shown_error(error)}"
            ) from error


def _metrics_in(found: Mapping[str, float] | None, before: Mapping[str, float]) -> Metrics:
    """The metrics that a callback returns, as Python's numbers.

    Raises:
        ValueError: for a name that is no text, or that the metrics `before` have.
        TypeError: for a value that is no number, and if it is no dict.
    """
    if not isinstance(found, Mapping | None):
        raise TypeError(f"it must return a dict of numbers by name, or None, and returned {shown(found)}")
    metrics: Metrics = {}
    for name, value in (found or {}).items():
        if not isinstance(name, str) or name in before:
            raise ValueError(f"metrics need names of their own, and {shown(name)} is not")
        try:
            metrics[name] = value if isinstance(value, (int, float)) else float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the metric {shown(name)} must be a number, got {shown(value)}") from error
    return metrics


_METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""The names of a callback's methods that are called."""


def require_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks in an argument, one or several.

    Raises:
        ConfigurationError: if one of them is not a callback.
    """
    found = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for callback in found:
        if not isinstance(callback, Callback):
            raise ConfigurationError(
                f"callbacks must be objects of classes derived from hybridppo.Callback, got {shown(callback)}: a "
                "function of the metrics is for on_iteration=... or loggers=[...]"
            )
        names = {name.lstrip("_") for name in dir(type(callback))} - set(_METHODS)
        if unknown := sorted(name for name in names if name.startswith("on_")):
            logger.warning(
                "no training calls %s of %s: the methods of a callback are %s",
                ", ".join(unknown), shown_name(callback), ", ".join(_METHODS),
            )  # fmt: skip
    return found
