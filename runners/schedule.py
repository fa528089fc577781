"""When the next rollout is sampled: when the learner asks for it, or ahead, while the agent learns from the last."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from hybridppo.interfaces import Agent, SamplingActor
from hybridppo.placements.placement import Placement
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.sampler import Sampler


class Schedule:
    """Gets a runner its rollouts, as the placement says.

    With `max_lag` 0, sampling and learning take turns. With 1, the next rollout begins before the agent learns from
    this one, so the parameters of a rollout are one update old (of the first one, 0). Above 1, workers continue by
    themselves with the newest parameters, up to `max_lag` rollouts ahead; what they sample depends on timing.

    Args:
        agent: the agent, whose actor samples.
        sampler: the sampler.
        placement: the placement.
    """

    def __init__(self, agent: Agent, sampler: Sampler, placement: Placement) -> None:
        self._agent, self._sampler, self._placement = agent, sampler, placement
        self._max_lag = placement.max_lag
        self._overlapped = 0.0

    def copying(self) -> float:
        """The seconds of copies so far that are not part of sampling; ahead, copies of single steps are part of it."""
        counters = self._placement.counters
        return counters.seconds_between_rollouts if self._max_lag else counters.seconds_copying

    def seconds_overlapped(self) -> float | None:
        """The seconds that the sampler spent on the last rollout while the agent learned; None if they take turns."""
        return self._overlapped if self._max_lag else None

    def go_on(self) -> None:
        """Continue a paused rollout that comes after the present one."""
        self._overlapped = 0.0
        if self._max_lag and self._sampler.is_paused:
            self._begin()

    def next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """The next rollout, or the rest of it if it was broken off.

        Args:
            is_last: called when the rollout is there, before the next one begins.

        Returns:
            The rollout, and the number of restarts of environments before the next one begins.

        Raises:
            Stopped: if a stop was requested; the next call continues the rollout.
        """
        sampler = self._sampler
        if not self._max_lag:
            with self._acting() as actor:
                rollout = sampler.collect(actor)
            is_last()
            return rollout, sampler.counts.env_restarts
        start, copying = time.perf_counter(), self.copying()
        if self._max_lag > 1 or sampler.is_paused or not sampler.is_under_way:
            self._begin()
        rollout, restarts = sampler.sample_wait(), sampler.counts.env_restarts
        waited = time.perf_counter() - start - (self.copying() - copying)
        self._overlapped = max(0.0, sampler.seconds_filling - waited)
        if not is_last():
            self._begin()
        return rollout, restarts

    def _acting(self) -> AbstractContextManager[SamplingActor]:
        # The parameters that began a rollout also finish it, unless workers go on by themselves.
        resumes = self._sampler.is_under_way and self._max_lag < 2
        return self._placement.resuming(self._agent) if resumes else self._placement.sampling(self._agent)

    def _begin(self) -> None:
        with self._acting() as actor:
            self._sampler.sample_async(actor)
