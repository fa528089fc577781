"""The loop with overlap: the sampler works on the next rollout while the agent learns from the last."""

import time

from hybridppo.interfaces import Metrics
from hybridppo.runners.runner import Runner


class OverlappingRunner(Runner):
    """Like `Runner`, but always one rollout ahead.

    The rollout that the `k`-th update learns from was sampled by parameters of at most one update before: the policy
    lag is 1, and 0 for the first. What is measured differs in one thing: `seconds_sampling` is the time spent waiting
    for the sampler and setting it to work, and `seconds_overlapped` what else it spent sampling, while the agent
    learned. What a sampler on a GPU copies step by step is part of its own time, and not of `seconds_copying`.
    """

    def iterate(self) -> Metrics:
        """One update, with the next rollout begun before it; what both measured."""
        agent, placement, counters, sampler = self.agent, self.placement, self.placement.counters, self.sampler
        start, copying_start = time.perf_counter(), counters.seconds_between_rollouts
        agent.anneal(self.share_done)
        overlapped = 0.0
        if sampler.is_paused:
            with placement.resuming(agent) as actor:
                sampler.go_on(actor)
        if self._rollout is None:
            if not sampler.is_under_way:
                self._start_sampling()
            self._rollout = sampler.finish()
            waited = time.perf_counter() - start - (counters.seconds_between_rollouts - copying_start)
            overlapped = max(0.0, sampler.seconds_filling - waited)
            if self.share_sampled < 1.0:
                self._start_sampling()
        rollout = self._rollout
        sampling = time.perf_counter() - start - (counters.seconds_between_rollouts - copying_start)
        with placement.learning(agent):
            lag = agent.version - rollout.version
            learned = agent.update(placement.to_learner(rollout))
        end, copying = time.perf_counter(), counters.seconds_between_rollouts - copying_start
        seconds = {
            "seconds_sampling": sampling,
            "seconds_learning": end - start - sampling - copying,
            "seconds_copying": copying,
        }
        return {**self._completed(learned, lag, start, end, seconds), "seconds_overlapped": overlapped}

    def _start_sampling(self) -> None:
        with self.placement.sampling(self.agent) as actor:
            self.sampler.start(actor)
