"""The loop: sample, learn, log, save, until all steps are done."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor

from hybridppo.environments.steering import Steering, refused
from hybridppo.errors import DistributedError, EnvError, LearnerLostError, add_advice, command
from hybridppo.interfaces import Agent, Metrics
from hybridppo.placements.placement import Placement
from hybridppo.reporting.callbacks import Callbacks, TrainingRun
from hybridppo.reporting.progress import ProgressBar
from hybridppo.rollouts.rollout import Rollout
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.files import finite, with_nan
from hybridppo.runners.evaluators.during import EvaluationDuringTraining
from hybridppo.runners.process_group import SingleProcess
from hybridppo.runners.processes import WorkerLostError
from hybridppo.runners.sampler import BaseSampler
from hybridppo.runners.turns import turns_of
from hybridppo.system.messages import shown_return
from hybridppo.system.signals import Interruption, Stopped, stoppable
from hybridppo.system.validation import part_of, real, whole


class Runner:
    """Drives sampler and agent by turns, or the sampler one rollout ahead, as the placement says.

    An iteration lasts from the end of the one before to its own. Its metrics account for all of it: `seconds_sampling`,
    `seconds_learning`, `seconds_copying`, and `seconds_other`, which the loop spent since the iteration before on
    logging, checkpoints, the progress bar and callbacks. `seconds` is their sum over all iterations. If the sampler is
    ahead, `seconds_sampling` is the time in which the loop waits for it and starts it, and `seconds_overlapped` the
    further time of sampling while the agent learned, which includes copies of single steps.

    A stop breaks off a rollout between two steps, and the rollout is continued later; it breaks off an update between
    two minibatches, and the update is repeated later. A checkpoint holds the unfinished rollout.

    Args:
        agent: the agent, prepared by the placement.
        sampler: the sampler of rollouts.
        placement: the placement.
        total_steps: environment steps after which to stop; the last iteration is completed.
        total_episodes: episodes after which to stop, if that comes first; None for no limit.
        run_directory: for metrics and checkpoints; None writes nothing.
        checkpoint_seconds: most seconds between checkpoints; there is also one at the start and one at the end.
        keep_checkpoints: number of newest checkpoints to keep, besides the best.
        progress: whether to show a progress bar.
        callbacks: called after each iteration, when its metrics are on disk, and after each checkpoint.
        evaluation: evaluates the agent from time to time; None for never.
        interruption: requests a stop.
        clock: the clock for checkpoints, in seconds.
        group: the other processes that train together with this one; None for no other.
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
        callbacks: Callbacks | None = None,
        evaluation: EvaluationDuringTraining | None = None,
        interruption: Interruption | None = None,
        clock: Callable[[], float] = time.perf_counter,
        group: SingleProcess | None = None,
    ) -> None:
        self.agent, self.sampler, self.placement = agent, sampler, placement
        self._turns = turns_of(agent, sampler, placement)
        self.total_steps, self.total_episodes = total_steps, total_episodes
        self.iteration = 0
        self.seconds = 0.0
        self.metrics: Metrics = {}
        self._ended_at: float | None = None
        self.interrupted = False
        self.saved = False
        """Whether the last checkpoint is on the disk."""
        self._group = group if group is not None else SingleProcess()
        self._group.offer(collected=self._collected, steered=self._steered)
        self._is_rescued = not self._group.is_first
        """Whether an error was already handled (`rescuing`); those of other processes go to the first."""
        self.run_directory = run_directory
        self._checkpoint_seconds = checkpoint_seconds
        self._clock = clock
        self._keep_checkpoints = keep_checkpoints
        self._progress = progress
        self._callbacks = callbacks if callbacks is not None else Callbacks((), TrainingRun(agent, {}))
        self._evaluation = evaluation
        self._interruption = interruption if interruption is not None else Interruption()
        self._interruption.tell(sampler.request_stop)
        self._evaluated: dict[str, Any] | None = None
        """The evaluations of a resumed training, which is not evaluated any more."""
        self.measures: list[Callable[[], Metrics]] = []
        """Functions that add metrics at the end of an iteration."""
        self.between_rollouts: list[Callable[[], object]] = []
        """Functions that are called when a rollout has ended, before the next one begins."""
        self.steps_learned = self._episodes_learned = 0
        """Environment steps and episodes that were sampled and learned from."""
        self._number, self._numbered = -1, (-1, -1, False)
        self._begins_anew = False
        """Whether the next rollout begins new episodes, because the environments could not be restored."""
        self._rollout: Any = None

    def run(self) -> Metrics:
        """Train until `total_steps` or a stop; return the metrics of the last iteration."""
        with stoppable(self.agent, self._interruption), self.rescuing(between_updates=False):
            with self._first_only():
                pass  # callbacks get the start
            metrics = self._run()
        self._group.leave()  # the others have ended or are about to, and everything is saved
        return metrics

    def _run(self) -> Metrics:
        if self.iteration == 0:
            self.save()  # from here on, there is always a checkpoint to resume from
        saved_at = self._clock()
        bar = ProgressBar(
            enabled=self._progress, has_lines=True, total=self.total_steps, initial=self.sampler.env_steps,
            unit="step", unit_scale=True, dynamic_ncols=True,
        )  # fmt: skip
        self._ended_at = time.perf_counter()
        with bar:
            with self._first_only():
                if self._evaluation is not None:
                    with self.rescuing():
                        self._add(self._evaluation.go_on(self))
            while self.share_done < 1.0 and not self.is_stopping:
                try:
                    self.metrics = self.iterate()
                except Stopped:
                    break
                with self._first_only(), self.rescuing():
                    self._account()
                if self._clock() - saved_at > self._checkpoint_seconds:
                    self.save()
                    saved_at = self._clock()
                bar.move_to(min(self.sampler.env_steps, self.total_steps), _summary(self.metrics))
            self.interrupted = self.share_done < 1.0 and self.stopped_by is None
            with self._first_only():
                if self._evaluation is not None and not self.interrupted:
                    try:
                        with self.rescuing():
                            self._add(self._evaluation.finish(self))
                    except Stopped:
                        self.interrupted = True
            self.save()
        return self.metrics

    @contextmanager
    def rescuing(self, *, between_updates: bool = True) -> Iterator[None]:
        """A context in which an error costs at most the unfinished rollout: a checkpoint is written first.

        Args:
            between_updates: whether the context contains no update. An agent whose update failed is not saved, because
                it is half updated or not finite.
        """
        try:
            yield
        except (Exception, SystemExit) as error:  # a callback may end the program
            directory = None if self._is_rescued else self.run_directory
            # Between updates, a rollout that is sampled ahead may have failed, whoever waited for it.
            cause = self.sampler.broken_by if between_updates else error
            if directory is not None and (cause is None or self._leaves_agent_whole(cause)):
                self.save()
                self._is_rescued = True
                if self.saved:
                    resume = command("hybridppo", "resume", directory.given)
                    add_advice(error, f"the training up to here is saved: go on with `{resume}`")
            raise

    def _leaves_agent_whole(self, error: BaseException) -> bool:
        """Whether an error came from outside an update.

        After an error of environments, the sampler is given up, because their state cannot be saved. After the loss of
        a worker, the last checkpoint stays the newest, and a resume from it gives the same bits. The error of another
        process between two updates is handled like an error of environments.
        """
        is_of_environments = isinstance(error, EnvError) and not isinstance(error, WorkerLostError)
        is_of_another = isinstance(error, DistributedError) and not isinstance(error, LearnerLostError)
        if not (is_of_environments or (is_of_another and self._rollout is None)):
            return False
        self._group.leave()
        self.sampler.give_up(str(error))
        return True

    def _first_only(self) -> AbstractContextManager[None]:
        """A context for work that only the first process does while the others wait."""
        return self._group.first_only(self._callbacks.run)

    def _add(self, found: Metrics) -> None:
        """Add the figures of an evaluation to the last iteration's metrics, also in their file."""
        self.metrics |= found
        if found and self.run_directory is not None:
            self.run_directory.log_again(self.iteration, self.metrics)

    def _account(self) -> None:
        """Evaluate if due, write an iteration's metrics, and call callbacks."""
        run = self._callbacks.run
        run.iteration, run.env_steps = self.iteration, self.steps_learned
        try:
            if self._evaluation is not None:
                self.metrics |= self._evaluation.look(self)
            self.metrics = self._callbacks.measured(self.metrics)
        finally:  # log the iteration even if its evaluation fails
            if self.run_directory is not None:
                self.run_directory.log(self.metrics)
        if self._evaluation is not None:
            self._evaluation.settle(self)
        self._callbacks.iteration(self.metrics)

    @property
    def is_stopping(self) -> bool:
        """Whether a signal or a callback has requested a stop."""
        return self._interruption.requested or self.stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """Why a callback has ended the training; None if none has."""
        return self._callbacks.run.stopped_by

    @property
    def share_done(self) -> float:
        """The share of the training that is sampled and learned from: 0 at its start, at least 1 at its end."""
        return self._share(self.steps_learned, self._episodes_learned)

    @property
    def share_sampled(self) -> float:
        """The share of the training that is sampled."""
        return self._share(self.sampler.env_steps, self.sampler.statistics.episodes)

    def _share(self, env_steps: int, episodes: int) -> float:
        of_steps = env_steps / self.total_steps
        return of_steps if self.total_episodes is None else max(of_steps, episodes / self.total_episodes)

    def iterate(self) -> Metrics:
        """One rollout and one update; return the metrics.

        Raises:
            Stopped: if a stop was requested; the next call continues the iteration.
        """
        agent, placement, turns = self.agent, self.placement, self._turns
        start, copying_start = time.perf_counter(), turns.copying()
        agent.anneal(self.share_done)
        turns.go_on()
        if self._rollout is None:
            self._rollout, _ = turns.next(self._is_last)
            if self._begins_anew:
                agent.drop_episodes()
                self._begins_anew = False
        rollout = self._rollout
        sampled, copying_sampled = time.perf_counter(), turns.copying()
        with placement.learning(agent):
            lag = agent.version - rollout.version
            learned = agent.update(placement.to_learner(rollout))
        end, copying_end = time.perf_counter(), turns.copying()
        seconds = {
            "seconds_sampling": sampled - start - (copying_sampled - copying_start),
            "seconds_learning": end - sampled - (copying_end - copying_sampled),
            "seconds_copying": copying_end - copying_start,
        }
        metrics = self._completed(learned, lag, start, end, seconds)
        overlapped = turns.seconds_overlapped()
        return metrics if overlapped is None else {**metrics, "seconds_overlapped": overlapped}

    def _is_last(self) -> bool:
        """Do what is due between two rollouts; whether the rollout that has ended is the last."""
        for function in self.between_rollouts:
            function()
        return self.share_sampled >= 1.0

    def _completed(self, learned: Metrics, lag: int, start: float, end: float, seconds: Metrics) -> Metrics:
        """Count an iteration; return its metrics. `seconds` are its parts, which add up to `end - start`."""
        statistics, counters = self.sampler.statistics, self.placement.counters
        before = start if self._ended_at is None else self._ended_at
        self._ended_at = end
        num_steps = self.sampler.env_steps - self.steps_learned
        self._rollout, self.steps_learned, self._episodes_learned = None, self.sampler.env_steps, statistics.episodes
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
            **self._by_policy(),
            **learned,
            "policy_lag": lag,
            **seconds,
            "seconds_other": start - before,
            **self.sampler.metrics(),
            "publishes": counters.publishes,
            "bytes_copied": counters.bytes_copied,
            **{name: value for measure in self.measures for name, value in measure().items()},
        }

    def _by_policy(self) -> Metrics:
        """The metrics of each of several policies, and their sums; empty for one policy."""
        found: Metrics = {}
        for name, policy in self.sampler.by_policy.items():
            found["agent_steps"] = found.get("agent_steps", 0) + policy.agent_steps
            found[f"{name}/agent_steps"] = policy.agent_steps
            found[f"{name}/episodes"] = policy.statistics.episodes
            found[f"{name}/episode_return_mean"] = policy.statistics.return_mean
            found[f"{name}/episode_length_mean"] = policy.statistics.length_mean
        return found

    def save(self) -> None:
        """Write a checkpoint, if there is a run directory. An unfinished rollout is paused and saved.

        All processes call it together, or the first within `_first_only`.
        """
        if self.run_directory is None or (self._group.has_left and self.sampler.failure is None):
            return
        with self._first_only():
            if self._group.is_first:
                self._write()

    def _collected(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the state of a checkpoint, of all processes."""
        self.sampler.pause()
        tensors, agent_state = self.agent.state()
        tensors = self._group.gathered(tensors)
        parts = {"sampler": self.sampler.state(), "placement": self.placement.state(), "runner": self.state()}
        for part, (of_part, _) in parts.items():
            tensors |= {f"{part}.{name}": tensor for name, tensor in of_part.items()}
        return tensors, {"agent": agent_state, **{part: of_part for part, (_, of_part) in parts.items()}}

    def _write(self) -> None:
        assert self.run_directory is not None  # `save` has seen to that
        tensors, state = self._group.call("collected")
        evaluated, awaited = self._evaluated, None
        if self._evaluation is not None:
            evaluated, awaited = self._evaluation.state(), self._evaluation.awaited
        if evaluated is not None:
            state["evaluation"] = evaluated
        folder = self.run_directory.checkpoint(self.number)
        is_new = not folder.exists()
        score = self.sampler.statistics.score
        self.saved = self.run_directory.save_checkpoint(
            self.number, tensors, state, self._keep_checkpoints, score=score, also=awaited
        )
        if self.saved and is_new:
            with self.rescuing():
                self._callbacks.checkpoint(folder)

    def steer(self, steering: Steering) -> list[Any]:
        """As `BaseSampler.steer`, in all processes; only the first calls it, within `_first_only`."""
        if self._group.has_left:
            raise refused("environments of other learners after the training", "steer them before its end")
        found: list[Any] = self._group.call("steered", *steering)
        return found

    def _steered(self, *steering: Any) -> list[Any]:
        if not self.is_stopping and self.share_done < 1.0:
            self._turns.go_on()  # a checkpoint or an evaluation may have paused the next rollout
        return self.sampler.steer(Steering(*steering))

    def _of_all(self, part: str, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a rollout, or of rows of a replay buffer, with the columns of all processes."""
        found = self._group.gathered({f"{part}.{name}": tensor for name, tensor in own.items()})
        return part_of(found, f"{part}.")

    @property
    def number(self) -> int:
        """The number of a checkpoint written now; the sampler must be paused.

        It grows with every sampled and learned step. Counts of steps alone are not enough: restarts can lose steps, and
        a rollout can be sampled while another is learned from.
        """
        if (done := self._done()) != self._numbered:
            self._numbered = done
            self._number = max(self.sampler.steps_sampled - (self._rollout is not None), self._number + 1)
        return self._number

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The loop's counters, and the rollout that it was learning from: tensors, and a JSON object."""
        state = {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "metrics": finite(self.metrics),
            "number": self.number,
            "steps_learned": self.steps_learned,
            "episodes_learned": self._episodes_learned,
            "version": self._rollout.version if self._rollout is not None else None,
        }
        return ({} if self._rollout is None else self._of_all("runner", self._rollout.tensors())), state

    def _done(self) -> tuple[int, int, bool]:
        """Identifies a state of the loop."""
        return self.iteration, self.sampler.steps_sampled, self._rollout is not None

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """Restore a checkpoint's tensors and state, after the agent was restored and the placement prepared.

        Returns:
            Why the environments could not be restored and start anew from `env_seed`; None if they were restored.
        """
        loop = state["runner"]
        self.iteration, self.seconds = whole(loop, "iteration"), real(loop["seconds"], "seconds")
        self.metrics = with_nan(loop["metrics"])
        sampler = state["sampler"]
        # Older checkpoints, which have no unfinished rollout, are from the end of an iteration.
        steps, episodes = sampler["env_steps"], sampler["statistics"]["episodes"]
        loop = {"number": steps, "steps_learned": steps, "episodes_learned": episodes, "version": None, **loop}
        self._number, self.steps_learned = whole(loop, "number"), whole(loop, "steps_learned")
        self._episodes_learned = whole(loop, "episodes_learned")
        if loop["version"] is not None:
            rollout = Rollout(**part_of(tensors, "runner."), version=whole(loop, "version"))
            self.sampler.check(rollout)
            self._rollout = self.sampler.own_parts(rollout)
        if "placement" in state:
            self.placement.load_state(part_of(tensors, "placement."), state["placement"])
        evaluated = state.get("evaluation")
        if self._evaluation is not None:
            self._evaluation.load_state(evaluated, self.iteration)
        elif evaluated is not None:
            self._evaluated = {**evaluated, "pending": None}
        problem = self.sampler.load_state(part_of(tensors, "sampler."), sampler, env_seed=env_seed)
        self._begins_anew = problem is not None
        self._numbered = self._done()  # a checkpoint written now would equal the loaded one
        return problem


def _summary(metrics: Metrics) -> str:
    """The text of the progress bar: return, speed, and the shares of sampling, learning and copying."""
    parts = [metrics[f"seconds_{part}"] for part in ("sampling", "learning", "copying")]
    shares = "/".join(f"{part / sum(parts):.0%}" for part in parts)
    speed = f"{metrics['steps_per_second']:,.0f} steps/s"
    return f"{shown_return(metrics['episode_return_mean'])}, {speed}, sample/learn/copy {shares}"
