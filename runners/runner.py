"""The loop: sample, learn, log, save, until enough steps are done."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from hybridppo.interfaces import Agent, Metrics
from hybridppo.interruption import Interruption
from hybridppo.outage import Outage
from hybridppo.placement import Placement
from hybridppo.progress import ProgressBar
from hybridppo.run_directory import RunDirectory, finite
from hybridppo.runners.sampler import BaseSampler
from hybridppo.saved_values import real, whole


class Runner:
    """Drives sampler and agent by turns, as the placement says.

    An iteration lasts from the end of the one before to its own. Its metrics account for all of it: `seconds_sampling`,
    `seconds_learning`, `seconds_copying`, and `seconds_other`, which the loop spent since the iteration before on
    logging, checkpoints, the progress bar and callbacks. `seconds` is their sum over all iterations.

    Args:
        agent: learns; prepared by the placement.
        sampler: brings rollouts.
        placement: says where each works.
        total_steps: environment steps after which to stop; an iteration once begun is ended.
        total_episodes: episodes after which to stop, if that comes first; None for no such limit.
        run_directory: where metrics and checkpoints go; None keeps nothing.
        checkpoint_seconds: a checkpoint at least this often, at the start and at the end.
        keep_checkpoints: how many of the newest stay, and with them the best.
        progress: whether to show a progress bar.
        on_iteration: called with the metrics of each iteration; its errors end the training.
        loggers: called likewise, after the metrics are on disk; their errors are warned of, and training goes on.
    """

    def __init__(
        self,
        agent: Agent,
        sampler: BaseSampler,
        placement: Placement,
        *,
        total_steps: int,
        total_episodes: int | None = None,
        run_directory: RunDirectory | None = None,
        checkpoint_seconds: float = 60.0,
        keep_checkpoints: int = 3,
        progress: bool = True,
        on_iteration: Callable[[Metrics], object] = lambda metrics: None,
        loggers: Sequence[Callable[[Metrics], object]] = (),
    ) -> None:
        self.agent, self.sampler, self.placement = agent, sampler, placement
        self.total_steps, self.total_episodes = total_steps, total_episodes
        self.iteration = 0
        self.seconds = 0.0
        self.metrics: Metrics = {}
        self._ended_at: float | None = None
        self.interrupted = False
        self.saved = True
        """Whether the last checkpoint that was due is on the disk."""
        self._run_directory = run_directory
        self._checkpoint_seconds = checkpoint_seconds
        self._keep_checkpoints = keep_checkpoints
        self._progress = progress
        self._on_iteration = on_iteration
        self._loggers = [(log, Outage(f"the logger {_name_of(log)}")) for log in loggers]

    def run(self) -> Metrics:
        """Train until `total_steps`, or the first Ctrl-C; the metrics of the last iteration."""
        if self.iteration == 0:
            self.save()  # from here on, whatever happens, there is something to go on from
        saved_at = time.perf_counter()
        bar = ProgressBar(
            enabled=self._progress, total=self.total_steps, initial=self.sampler.env_steps, unit="step",
            unit_scale=True, dynamic_ncols=True,
        )  # fmt: skip
        self._ended_at = time.perf_counter()
        with bar, Interruption() as interruption:
            while self.share_done < 1.0 and not interruption.requested:
                self.metrics = self.iterate()
                self._on_iteration(self.metrics)
                if self._run_directory is not None:
                    self._run_directory.log(self.metrics)
                    if time.perf_counter() - saved_at > self._checkpoint_seconds:
                        self.save()
                        saved_at = time.perf_counter()
                self._report(self.metrics)
                bar.move_to(min(self.sampler.env_steps, self.total_steps), _summary(self.metrics))
            self.interrupted = interruption.requested and self.share_done < 1.0
            self.save()
        return self.metrics

    @property
    def share_done(self) -> float:
        """How much of the training is done: 0 at its start, 1 and more at its end."""
        of_steps = self.sampler.env_steps / self.total_steps
        if self.total_episodes is None:
            return of_steps
        return max(of_steps, self.sampler.statistics.episodes / self.total_episodes)

    def _report(self, metrics: Metrics) -> None:
        for log, outage in self._loggers:
            try:
                log(dict(metrics))
            except Exception as error:  # whatever somebody else's service or library raises
                outage.failed(error, "training goes on with the files in the run directory")
            else:
                outage.works()

    def iterate(self) -> Metrics:
        """One rollout, one update; what both measured, with the time that each took."""
        agent, placement, counters = self.agent, self.placement, self.placement.counters
        start, steps_before, copying_start = time.perf_counter(), self.sampler.env_steps, counters.seconds_copying
        agent.anneal(self.share_done)
        with placement.sampling(agent) as actor:
            rollout = self.sampler.collect(actor)
        sampled, copying_sampled = time.perf_counter(), counters.seconds_copying
        with placement.learning(agent):
            lag = agent.version - rollout.version
            learned = agent.update(placement.to_learner(rollout))
        end, copying_end = time.perf_counter(), counters.seconds_copying
        seconds = {
            "seconds_sampling": sampled - start - (copying_sampled - copying_start),
            "seconds_learning": end - sampled - (copying_end - copying_sampled),
            "seconds_copying": copying_end - copying_start,
        }
        return self._completed(learned, lag, self.sampler.env_steps - steps_before, start, end, seconds)

    def _completed(
        self, learned: Metrics, lag: int, num_steps: int, start: float, end: float, seconds: Metrics
    ) -> Metrics:
        """Count an iteration; all its metrics. `seconds` are its parts, which add up to `end - start`."""
        statistics, counters = self.sampler.statistics, self.placement.counters
        before = start if self._ended_at is None else self._ended_at
        self._ended_at = end
        self.iteration += 1
        self.seconds += end - before
        return {
            "iteration": self.iteration,
            "env_steps": self.sampler.env_steps,
            "seconds": self.seconds,
            "steps_per_second": num_steps / (end - before),
            "episodes": statistics.episodes,
            "episode_return_mean": statistics.return_mean,
            "episode_length_mean": statistics.length_mean,
            "env_restarts": self.sampler.env_restarts,
            **learned,
            "policy_lag": lag,
            **seconds,
            "seconds_other": start - before,
            "publishes": counters.publishes,
            "bytes_copied": counters.bytes_copied,
        }

    def save(self) -> None:
        """Write a checkpoint, where there is a run directory."""
        if self._run_directory is not None:
            tensors, agent_state = self.agent.state()
            state = {"agent": agent_state, "sampler": self.sampler.state(), "runner": self.state()}
            self.saved = self._run_directory.save_checkpoint(
                self.sampler.env_steps, tensors, state, self._keep_checkpoints, score=self.sampler.statistics.score
            )

    def state(self) -> dict[str, Any]:
        """The loop's own counters, as JSON can hold them."""
        return {"iteration": self.iteration, "seconds": self.seconds, "metrics": finite(self.metrics)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from saved counters."""
        self.iteration, self.seconds = whole(state, "iteration"), real(state["seconds"], "seconds")
        self.metrics = dict(state["metrics"])


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _summary(metrics: Metrics) -> str:
    """What the progress bar says: return, and the shares of sampling, learning and copying."""
    parts = [metrics[f"seconds_{part}"] for part in ("sampling", "learning", "copying")]
    shares = "/".join(f"{part / sum(parts):.0%}" for part in parts)
    speed = f"{metrics['steps_per_second']:,.0f} steps/s"
    return f"return {metrics['episode_return_mean']:.1f}, {speed}, sample/learn/copy {shares}"
