"""The loop: sample and learn, until all steps are done. Callbacks do the rest."""

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from hybridppo.agents.ddpg import DDPG
from hybridppo.environments.base import Steering, steering_refused
from hybridppo.errors import DistributedError, message_of
from hybridppo.interfaces import Agent, Metrics
from hybridppo.placements.placement import Placement
from hybridppo.reporting.callbacks import Callbacks, TrainingRun
from hybridppo.runners.process_group import ProcessGroup, SingleProcess
from hybridppo.runners.sampler import Sampler
from hybridppo.runners.training_data import OffPolicyData, OnPolicyData
from hybridppo.system.signals import Interruption, Stopped, entered, stoppable

logger = logging.getLogger(__name__)


class Runner:
    """Drives sampler and agent by turns, or the sampler one rollout ahead, as the placement says.

    An iteration lasts from the end of the one before to its own. Its metrics account for all of it: `seconds_sampling`,
    `seconds_learning`, `seconds_copying`, and `seconds_other`, which the loop spent since the iteration before on
    callbacks. `seconds` is their sum over all iterations. If the sampler is ahead, `seconds_sampling` is the time in
    which the loop waits for it and starts it, and `seconds_overlapped` the further time of sampling while the agent
    learned, which includes copies of single steps.

    A stop breaks off a rollout between two steps, and the rollout is continued later; it breaks off an update between
    two minibatches, and the update is repeated later.

    Args:
        agent: the agent, prepared by the placement.
        sampler: the sampler of rollouts.
        placement: the placement.
        total_steps: environment steps after which to stop; the last iteration is completed.
        total_episodes: episodes after which to stop, if that comes first; None for no limit.
        callbacks: called after rollouts and iterations, and at the end; an error in one is rescued (`rescuing`).
        interruption: requests a stop.
        group: the other processes that train together with this one; None for no other.
    """

    def __init__(
        self,
        agent: Agent,
        sampler: Sampler,
        placement: Placement,
        *,
        total_steps: int,
        total_episodes: int | None = None,
        callbacks: Callbacks | None = None,
        interruption: Interruption | None = None,
        group: SingleProcess | None = None,
    ) -> None:
        self.agent, self.sampler, self.placement = agent, sampler, placement
        self.total_steps, self.total_episodes = total_steps, total_episodes
        self.callbacks = callbacks if callbacks is not None else Callbacks((), TrainingRun(agent, {}))
        self.group = group if group is not None else SingleProcess()
        self.group.offer(steered=self._steered)
        if isinstance(agent, DDPG):
            self.data: OnPolicyData = OffPolicyData(agent, sampler, placement)
        else:
            self.data = OnPolicyData(agent, sampler, placement)
        self._interruption = interruption if interruption is not None else Interruption()
        self._interruption.tell(sampler.request_stop)
        self.iteration, self.seconds = 0, 0.0
        self.steps_learned = self.episodes_learned = 0
        """Environment steps and episodes that were sampled and learned from."""
        self.metrics: Metrics = {}
        self.interrupted = False
        self._ended_at: float | None = None
        self._is_rescued = not self.group.is_first
        """Whether an error was already handled; those of other processes go to the first."""

    def run(self) -> Metrics:
        """Train until `total_steps` or a stop; return the metrics of the last iteration."""
        try:
            with stoppable(self.agent, self._interruption), self.rescuing(between_updates=False):
                with self.first_only(), self.rescuing():
                    self._tell_progress()
                    self.callbacks.start()
                self._ended_at = time.perf_counter()
                while self.share_done < 1.0 and not self.is_stopping:
                    for handling in entered[-1:]:
                        handling.take_back()
                    try:
                        self.metrics = self.iterate()
                    except Stopped:
                        break
                    with self.first_only(), self.rescuing():
                        self._tell_progress()
                        self.metrics = self.callbacks.measured(self.metrics)
                        self.callbacks.tell("on_iteration", self.metrics)
                self.interrupted = self.share_done < 1.0 and self.stopped_by is None
                with self.first_only(), self.rescuing():
                    self.callbacks.tell("on_finish")
        except KeyboardInterrupt as interrupt:  # other code has replaced the handler of Ctrl-C
            if not self._is_rescued or self.group.size > 1:
                raise
            logger.warning("interrupted in the middle of a step; %s", "; ".join(getattr(interrupt, "__notes__", ())))
            self.interrupted = True
        self.group.leave()  # the others have ended or are about to, and everything is saved
        return self.metrics

    def _tell_progress(self) -> None:
        self.callbacks.run.iteration, self.callbacks.run.env_steps = self.iteration, self.steps_learned

    def first_only(self) -> AbstractContextManager[None]:
        """A context for work that only the first process does while the others wait."""
        group = self.group
        return group.first_only(self.callbacks.run) if isinstance(group, ProcessGroup) else nullcontext()

    @contextmanager
    def rescuing(self, *, between_updates: bool = True) -> Iterator[None]:
        """A context in which an error costs at most the unfinished rollout: callbacks may save the agent.

        Args:
            between_updates: whether the context contains no update, in which the other processes may be waiting. An
                agent that is half updated or not finite is not saved.
        """
        try:
            yield
        except BaseException as error:  # of any code of the user's
            if not (self._is_rescued or self._interruption.is_urgent) and self.data.is_whole_after(error):
                is_of_sampling = not (between_updates or self.data.is_learning) or isinstance(error, DistributedError)
                leaves_others = self.group.size > 1 and not between_updates  # which may wait for this process
                # A rollout that is sampled ahead may have failed, whoever waited for it.
                broken_by = error if is_of_sampling or leaves_others else self.sampler.broken_by
                if broken_by is not None:  # the environments' state cannot be saved
                    self._give_up(broken_by)
                self.callbacks.failed(error)
                self._is_rescued = True
            raise

    def _give_up(self, cause: BaseException) -> None:
        """Go on without the environments and the other processes, which are lost, and without their last rollout."""
        self.group.leave()
        self.sampler.give_up(message_of(cause))
        if self.group.size > 1 and self.data.is_due:
            self.drop_rollout()

    def drop_rollout(self) -> None:
        """Forget the rollout that was sampled and not learned from."""
        self.data.rollout, self.sampler.counts.env_steps = None, self.steps_learned

    @property
    def is_stopping(self) -> bool:
        """Whether a signal or a callback has requested a stop."""
        return self._interruption.requested or self.stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """Why a callback has ended the training; None if none has."""
        return self.callbacks.run.stopped_by

    @property
    def share_done(self) -> float:
        """The share of the training that is sampled and learned from: 0 at its start, at least 1 at its end."""
        return self._share(self.steps_learned, self.episodes_learned)

    @property
    def share_sampled(self) -> float:
        """The share of the training that is sampled."""
        return self._share(self.sampler.counts.env_steps, self.sampler.counts.statistics.episodes)

    def _share(self, env_steps: int, episodes: int) -> float:
        of_steps = env_steps / self.total_steps
        return of_steps if self.total_episodes is None else max(of_steps, episodes / self.total_episodes)

    def iterate(self) -> Metrics:
        """Sample and learn until an iteration is complete; return its metrics.

        Raises:
            Stopped: if a stop was requested; the next call continues the iteration.
        """
        data = self.data
        data.seconds_overlapped = 0.0
        seconds = dict.fromkeys(("seconds_sampling", "seconds_learning", "seconds_copying"), 0.0)
        start = now = time.perf_counter()
        copied = data.copying()

        def add(part: str) -> None:
            """Add the seconds since the last call to a part, and those of copies to theirs."""
            nonlocal now, copied
            before, copied_before = now, copied
            now, copied = time.perf_counter(), data.copying()
            seconds[part] += now - before - (copied - copied_before)
            seconds["seconds_copying"] += copied - copied_before

        self.agent.anneal(self.share_done)
        if self.share_sampled < 1.0:
            data.go_on()
        while data.is_due or not data.is_complete(
            self.sampler.counts.env_steps - self.steps_learned, self.share_sampled
        ):
            if not data.is_due:
                data.sample(self._is_last)
                add("seconds_sampling")
            data.learn()
            add("seconds_learning")
        lag, learned = data.lag, data.metrics()
        add("seconds_learning")
        metrics = self._completed(learned, lag, start, now, seconds)
        return {**metrics, "seconds_overlapped": data.seconds_overlapped} if self.placement.max_lag else metrics

    def _is_last(self) -> bool:
        """Called between two rollouts: whether the one that has ended is the last."""
        self.callbacks.tell("on_rollout")
        return self.share_sampled >= 1.0

    def _completed(self, learned: Metrics, lag: int, start: float, end: float, seconds: Metrics) -> Metrics:
        """Count an iteration; return its metrics. `seconds` are its parts, which add up to `end - start`."""
        sampler, counters = self.sampler, self.placement.counters
        before = start if self._ended_at is None else self._ended_at
        self._ended_at = end
        num_steps = sampler.counts.env_steps - self.steps_learned
        self.steps_learned, self.episodes_learned = sampler.counts.env_steps, sampler.counts.statistics.episodes
        self.iteration += 1
        self.seconds += end - before
        return {
            "iteration": self.iteration,
            "env_steps": sampler.counts.env_steps,
            "seconds": self.seconds,
            "steps_per_second": num_steps / (end - before),
            "episodes": sampler.counts.statistics.episodes,
            "episode_return_mean": sampler.counts.statistics.return_mean,
            "episode_length_mean": sampler.counts.statistics.length_mean,
            "env_restarts": sampler.counts.env_restarts,
            **self._by_policy(),
            **learned,
            "policy_lag": lag,
            **seconds,
            "seconds_other": start - before,
            **sampler.metrics,
            "publishes": counters.publishes,
            "bytes_copied": counters.bytes_copied,
            **sampler.infos.metrics(),
        }

    def _by_policy(self) -> Metrics:
        """The metrics of each of several policies, and their sums; empty for one policy."""
        found: Metrics = {}
        for name, policy in self.sampler.counts.by_policy.items():
            found["agent_steps"] = found.get("agent_steps", 0) + policy.agent_steps
            found[f"{name}/agent_steps"] = policy.agent_steps
            found[f"{name}/episodes"] = policy.statistics.episodes
            found[f"{name}/episode_return_mean"] = policy.statistics.return_mean
            found[f"{name}/episode_length_mean"] = policy.statistics.length_mean
        return found

    def steer(self, steering: Steering) -> list[Any]:
        """As `Sampler.steer`, in all processes; only the first calls it, within `first_only`."""
        if self.group.has_left:
            raise steering_refused("environments of other learners after the training", "steer them before its end")
        return self.group.call("steered", *steering)

    def _steered(self, *steering: Any) -> list[Any]:
        if not self.is_stopping and self.share_sampled < 1.0:
            self.data.go_on()  # a checkpoint or an evaluation may have paused the next rollout
        return self.sampler.steer(Steering(*steering))
