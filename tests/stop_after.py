"""Trainings that end before their goal: by a callback, or by a signal at any event."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import hybridppo


class StopAfter(hybridppo.Callback):
    """Ends the training after this many iterations, so that it does what only long ones do."""

    def __init__(self, iterations: int = 1) -> None:
        self._iterations = iterations

    def on_iteration(self, run: Any, metrics: Any) -> None:
        if run.iteration == self._iterations:
            run.stop("seen enough")


def interrupt_at(iteration: int, number: int = signal.SIGTERM) -> Callable[[Any], None]:
    """For `on_iteration`: raises a signal after this iteration of the run."""

    def on_iteration(metrics: Any) -> None:
        if metrics["iteration"] == iteration:
            signal.raise_signal(number)

    return on_iteration


def interrupt_at_call(patch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    """Raise SIGTERM within the `number`-th call of a method from now on."""
    function, calls = getattr(owner, name), iter(range(1, 10_000))

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            signal.raise_signal(signal.SIGTERM)
        return function(*arguments, **options)

    patch.setattr(owner, name, counted)


class Stops:
    """Raises a signal at the n-th event of a run: a step sampled, a step learned, or an iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from hybridppo.agents.common.loop import Exchange
        from hybridppo.runners.runner import Runner
        from hybridppo.runners.workers.sampler import WorkerSampler
        from hybridppo.spaces.deterministic import DeterministicActions
        from hybridppo.spaces.distributions import Categorical, DiagonalGaussian, JointDistribution

        self.left, self.events, self.signal = -1, 0, signal.SIGINT
        for owner, name in (
            (Categorical, "sample"),
            (DiagonalGaussian, "sample"),
            (JointDistribution, "sample"),
            (DeterministicActions, "sample"),
            (Exchange, "descend"),
            (WorkerSampler, "_fill_async"),
            (Runner, "_completed"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            self.events += 1
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signal)  # which is handled in the main thread, whoever this is
            return result

        return counted

    def next_after(self, events: int, number: signal.Signals) -> None:
        """Raise this signal after so many further events; never if they are -1."""
        self.left, self.signal = events, number
