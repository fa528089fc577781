"""How a runner gets its next rollout: sampled on request, or begun while the agent learned from the last."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from hybridppo.interfaces import Agent, SamplingActor
from hybridppo.placements.placement import Placement
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.sampler import BaseSampler


class ByTurns:
    """Samples, then learns.

    Args:
        agent: the agent, whose actor samples.
        sampler: the sampler.
        placement: the placement.
    """

    def __init__(self, agent: Agent, sampler: BaseSampler, placement: Placement) -> None:
        self._agent, self._sampler, self._placement = agent, sampler, placement

    def copying(self) -> float:
        """The seconds of copies so far that are not part of sampling: all of them."""
        return self._placement.counters.seconds_copying

    def seconds_overlapped(self) -> float | None:
        """The seconds that the sampler spent on the last rollout while the agent learned; None if it cannot."""
        return None

    def go_on(self) -> None:
        """Continue a paused rollout that comes after the present one. Here, there is none."""

    def next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """The next rollout, or the rest of it if it was broken off.

        Args:
            is_last: called when the rollout is there, before the next one begins.

        Returns:
            The rollout, and the number of restarts of environments before the next one begins.

        Raises:
            Stopped: if a stop was requested; the next call continues the rollout.
        """
        with self._acting() as actor:
            rollout = self._sampler.collect(actor)
        is_last()
        return rollout, self._sampler.counts.env_restarts

    def _acting(self) -> AbstractContextManager[SamplingActor]:
        # The parameters that began a rollout also finish it.
        acting = self._placement.resuming if self._sampler.is_under_way else self._placement.sampling
        return acting(self._agent)


class Ahead(ByTurns):
    """Samples one rollout ahead: the next one begins before the agent learns from this one.

    The parameters of a rollout are at most one update old: the policy lag is 1, and 0 for the first rollout.
    """

    _seconds_overlapped = 0.0

    def copying(self) -> float:
        """As in the base; copies of single steps are part of the sampler's own time."""
        return self._placement.counters.seconds_between_rollouts

    def seconds_overlapped(self) -> float | None:  # noqa: D102 - as in the base
        return self._seconds_overlapped

    def go_on(self) -> None:  # noqa: D102 - as in the base
        self._seconds_overlapped = 0.0
        if self._sampler.is_paused:
            self._sample_async()

    def next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """As in the base; the rollout was begun by the last call."""
        sampler, start, copying = self._sampler, time.perf_counter(), self.copying()
        if sampler.is_paused or not sampler.is_under_way:
            self._sample_async()
        rollout, restarts = sampler.sample_wait(), sampler.counts.env_restarts
        waited = time.perf_counter() - start - (self.copying() - copying)
        self._seconds_overlapped = max(0.0, sampler.seconds_filling - waited)
        if not is_last():
            self._sample_async()
        return rollout, restarts

    def _sample_async(self) -> None:
        with self._acting() as actor:
            self._sampler.sample_async(actor)


class FarAhead(Ahead):
    """Samples up to `max_lag` rollouts ahead: workers continue by themselves, with the newest parameters.

    Their rollouts depend on timing, so they are not reproducible.
    """

    def next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """As in the base; parts of rollouts that begin from now on use the parameters of the last update."""
        self._sample_async()
        return super().next(is_last)

    def _acting(self) -> AbstractContextManager[SamplingActor]:
        return self._placement.sampling(self._agent)


def turns_of(agent: Agent, sampler: BaseSampler, placement: Placement) -> ByTurns:
    """How a runner gets its rollouts under a placement."""
    kind = (ByTurns, Ahead)[placement.max_lag] if placement.max_lag < 2 else FarAhead
    return kind(agent, sampler, placement)
