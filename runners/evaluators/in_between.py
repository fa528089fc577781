"""Evaluation between two iterations, in this process."""

import contextlib
from collections.abc import Callable

from hybridppo.interfaces import SamplingActor
from hybridppo.runners.evaluation import Episodes, Evaluation
from hybridppo.system.signals import Stopped


class InBetween:
    """Runs episodes while the training waits.

    Args:
        episodes: the episodes of an evaluation.
        should_stop: called before each step.
    """

    is_beside = False

    def __init__(self, episodes: Episodes, should_stop: Callable[[], bool]) -> None:
        self._episodes, self._should_stop = episodes, should_stop
        self._environments = episodes.make()
        self._result: Evaluation | None = None

    def begin(self, actor: SamplingActor) -> None:
        """Evaluate an actor, until a stop is requested."""
        with contextlib.suppress(Stopped):
            self._result = self._episodes.run(actor, self._environments, self._should_stop)

    def result(self) -> Evaluation:
        """The result of the evaluation that was begun, once.

        Raises:
            Stopped: if a stop was requested before the end.
        """
        result, self._result = self._result, None
        if result is None:
            raise Stopped
        return result

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()
