"""Evaluation between two iterations, in this process."""

from collections.abc import Callable

from hybridppo.interfaces import SamplingActor
from hybridppo.runners.evaluation import Episodes, Evaluation


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
        """Evaluate an actor.

        Raises:
            Stopped: if a stop was requested meanwhile.
        """
        self._result = self._episodes.run(actor, self._environments, self._should_stop)

    def result(self) -> Evaluation:
        """The result of the evaluation that was begun."""
        assert self._result is not None, "no evaluation was begun"
        return self._result

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()
