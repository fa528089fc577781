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


def rollouts_of(kind: Any, train: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """The result of a training, and copies of what its agents learned from."""
    import torch

    rollouts, update = list[Any](), kind.update
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "update", lambda self, one: update(self, rollouts.append(one.map(torch.clone)) or one))
        return train(), rollouts


def assert_stopped_update_changes_nothing(agent: Any, given: Any, after: int) -> None:
    """The update is stopped when it asks for it, after it has gone on so many times."""
    from same_bits import assert_same, state_of

    from hybridppo.system.signals import Stopped

    (before, state), asked = (state_of(agent), agent.state()[1]), iter(range(10_000))
    agent.should_stop = lambda: next(asked) == after
    with pytest.raises(Stopped):
        agent.update(given)
    assert_same(state_of(agent), before)
    assert agent.state()[1] == state
    agent.should_stop = lambda: False


class Stops:
    """Raises a signal at the n-th event of a run: a step sampled, a step learned, or an iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from hybridppo.agents.agent import OptimizationLoop
        from hybridppo.distributions.categorical import Categorical
        from hybridppo.distributions.deterministic import DeterministicActions
        from hybridppo.distributions.gaussian import DiagonalGaussian
        from hybridppo.distributions.joint import JointDistribution
        from hybridppo.runners.runner import Runner
        from hybridppo.runners.workers import Workers

        self.left, self.events, self.signal = -1, 0, signal.SIGINT
        for owner, name in (
            (Categorical, "sample"),
            (DiagonalGaussian, "sample"),
            (JointDistribution, "sample"),
            (DeterministicActions, "sample"),
            (OptimizationLoop, "step"),
            (Workers, "begin_to_fill"),
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
