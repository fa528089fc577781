"""How a runner gets its next rollout: sampled when it asks, or begun while the agent learned from the last."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from hybridppo.interfaces import Agent, SamplingActor
from hybridppo.placements.base import Placement
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.base import BaseSampler


class ByTurns:
    """Sample, then learn.

    Args:
        agent: samples with its actor.
        sampler: brings rollouts.
        placement: says where the actor is.
    """

    def __init__(self, agent: Agent, sampler: BaseSampler, placement: Placement) -> None:
        self._agent, self._sampler, self._placement = agent, sampler, placement

    def copying(self) -> float:
        """Seconds of copying that are no part of sampling, so far: all of it."""
        return self._placement.counters.seconds_copying

    def seconds_overlapped(self) -> float | None:
        """What the sampler spent on the last rollout while the agent learned; None if it cannot."""
        return None

    def go_on(self) -> None:
        """Go on with what was paused of the rollout after the one that there is: there is none."""

    def next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """The next rollout, or the rest of it if it was broken off.

        Args:
            is_last: asked once the rollout is there.

        Returns:
            The rollout, and how often environments had been restarted when it ended, before another one begins.

        Raises:
            Stopped: if a stop was requested; the next call goes on from there.
        """
        with self._acting() as actor:
            return self._sampler.collect(actor), self._sampler.env_restarts

    def _acting(self) -> AbstractContextManager[SamplingActor]:
        # A rollout that was broken off is ended by the parameters that began it.
        acting = self._placement.resuming if self._sampler.is_under_way else self._placement.sampling
        return acting(self._agent)


class Ahead(ByTurns):
    """Always one rollout ahead: the next is begun before the agent learns from this one.

    The rollout that the `k`-th update learns from was sampled by parameters of at most one update before: the policy
    lag is 1, and 0 for the first.
    """

    _seconds_overlapped = 0.0

    def copying(self) -> float:
        """As in the base. Copies within a rollout are part of the sampler's own time."""
        return self._placement.counters.seconds_between_rollouts

    def seconds_overlapped(self) -> float | None:  # noqa: D102 - as in the base
        return self._seconds_overlapped

    def go_on(self) -> None:  # noqa: D102 - as in the base
        self._seconds_overlapped = 0.0
        if self._sampler.is_paused:
            self._sample_async()

    def next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """As in the base: begun by the last call, and waited for now."""
        sampler, start, copying = self._sampler, time.perf_counter(), self.copying()
        if sampler.is_paused or not sampler.is_under_way:
            self._sample_async()
        rollout, restarts = sampler.sample_wait(), sampler.env_restarts
        waited = time.perf_counter() - start - (self.copying() - copying)
        self._seconds_overlapped = max(0.0, sampler.seconds_filling - waited)
        if not is_last():
            self._sample_async()
        return rollout, restarts

    def _sample_async(self) -> None:
        with self._acting() as actor:
            self._sampler.sample_async(actor)


class FarAhead(Ahead):
    """Up to `max_lag` rollouts ahead: workers go on by themselves, by the newest parameters that there are.

    What they sample is not the same again: it depends on how long each step takes.
    """

    def next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """As in the base. What begins from now on is acted by the parameters of the last update."""
        self._sample_async()
        return super().next(is_last)

    def _acting(self) -> AbstractContextManager[SamplingActor]:
        return self._placement.sampling(self._agent)


def turns_of(agent: Agent, sampler: BaseSampler, placement: Placement) -> ByTurns:
    """How a runner gets its rollouts under a placement."""
    kind = (ByTurns, Ahead)[placement.max_lag] if placement.max_lag < 2 else FarAhead
    return kind(agent, sampler, placement)
