"""Checkpoints: what a training saves, when it is saved, and how it is restored. It also writes `metrics.jsonl`."""

import sys
import time
from typing import Any

from torch import Tensor

from hybridppo.errors import EnvError, add_advice, command
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.files import finite, with_nan
from hybridppo.runners.runner import Runner
from hybridppo.system.seeds import seed_of
from hybridppo.system.validation import real, whole

Moment = dict[str, Any]
"""The `iteration`, `env_steps` and `seconds` of a training, and the number of its `checkpoint`."""


class Checkpointing(Callback):
    """Writes checkpoints: at the start, from time to time, at the end, and after an error.

    All processes that train together have one; only that of the first is called as a callback.

    Args:
        runner: the training.
        directory: where to write; None writes nothing.
        seconds: most seconds between two checkpoints, if `every` is None.
        every: environment steps between two checkpoints.
        keep: number of newest checkpoints to keep, besides the best; None keeps all.
    """

    is_of_library = True

    def __init__(
        self,
        runner: Runner,
        directory: RunDirectory | None,
        *,
        seconds: float = 60.0,
        every: int | None = None,
        keep: int | None = 3,
    ) -> None:
        self.runner, self.directory, self._seconds, self._every = runner, directory, seconds, every
        self._keep = sys.maxsize if keep is None else keep
        self.is_saved = False
        """Whether the last checkpoint is on the disk."""
        self.evaluation: Any = None
        """The evaluations during the training, whose `state` checkpoints hold; None if there are none (any more)."""
        self._of_evaluation: dict[str, Any] = {"env_steps": 0, "reported": 0, "pending": None}
        self._saved_at, self._steps_at = time.monotonic(), 0
        """The time and the environment steps of the last checkpoint that was due."""
        self._logged = 0
        """The iteration of the last line of metrics."""
        self._number, self._numbered = -1, (-1, -1, False)
        self._saved = (-1, False)
        """The iteration of the last checkpoint, and whether it has a rollout that was not learned from."""
        runner.group.offer(collected=self._collected)
        runner.callbacks.run.save = self.save

    def close(self) -> None:
        """Part from the training, whose objects would otherwise hold one another."""
        self.runner.callbacks.run.save = bool
        self.runner.callbacks.all.clear()
        self.evaluation = None

    def on_start(self, run: TrainingRun) -> None:
        """From here on, there is always a checkpoint to resume from."""
        if run.iteration == 0:
            self.save()
        self._saved_at, self._steps_at, self._logged = time.monotonic(), run.env_steps, run.iteration

    def on_metrics(self, run: TrainingRun, metrics: Any) -> None:
        """Write the metrics of an iteration, to which all other callbacks have added theirs."""
        self._logged = run.iteration
        if self.directory is not None:
            self.directory.log(dict(metrics))

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """Save if the time has come, or the steps are made."""
        if self._every is None:
            is_due = time.monotonic() - self._saved_at > self._seconds
        else:
            is_due = run.env_steps // self._every > self._steps_at // self._every
        if is_due:
            self.save()
            self._saved_at, self._steps_at = time.monotonic(), run.env_steps

    def on_finish(self, run: TrainingRun) -> None:
        """Save the result."""
        self.save()

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """Save what was learned, and let the error say how to continue."""
        if self.directory is None:
            return
        if self._logged < self.runner.iteration:  # the error came before
            self.on_metrics(run, self.runner.metrics)
        is_new = self.save()
        fails_at_once = type(error) is EnvError and not run.iteration  # an environment that would fail again
        if self.is_saved and not fails_at_once:
            resume = command("hybridppo", "resume", self.directory.given)
            has_lost = is_new and self.runner.sampler.failure is not None
            but = ", with new episodes, so not to the bits of a run without the error" if has_lost else ""
            add_advice(error, f"the training up to here is saved: go on with `{resume}`{but}")

    def add_metrics(self, found: Metrics) -> None:
        """Add metrics to the last iteration, also in their file."""
        self.runner.metrics |= found
        if found and self.directory is not None:
            self.directory.log_again(self.runner.iteration, self.runner.metrics)

    def save(self) -> bool:
        """Write a checkpoint, if there is a run directory. An unfinished rollout is paused and saved.

        Returns:
            Whether it was written; False also if it was there already.
        """
        runner, directory = self.runner, self.directory
        if directory is None or (runner.group.has_left and runner.sampler.failure is None):
            return False
        now = runner.iteration, runner.data.is_due
        if self.is_saved and now == self._saved and runner.sampler.failure is not None:
            return False  # the last checkpoint also has the state of the environments, which are lost since
        self.is_saved, is_new = False, False
        work = f"writing a checkpoint to {directory.path / 'checkpoints'}"
        with directory.tolerating(work, "training goes on, and the checkpoints before it are kept"):
            directory.hold()
            runner.data.before_checkpoint(directory)
            tensors, state = runner.group.call("collected")
            state["evaluation"] = self._of_evaluation if self.evaluation is None else self.evaluation.state()
            score = runner.sampler.counts.statistics.score
            is_new = directory.save_checkpoint(self.number, tensors, state, self._keep, score=score)
            self.is_saved, self._saved = True, now
            runner.data.after_checkpoint(self._keep)
        if self.is_saved and is_new:
            runner.callbacks.tell("on_checkpoint", directory.checkpoint(self.number))
        return self.is_saved and is_new

    def _collected(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the state of a checkpoint, of all processes."""
        runner = self.runner
        runner.sampler.pause()
        tensors, agent_state = runner.agent.state()
        tensors = runner.group.gathered(tensors)
        parts = {"sampler": runner.sampler.state(), "placement": runner.placement.state(), "runner": self._loop_state()}
        for part, (of_part, _) in parts.items():
            tensors |= {f"{part}.{name}": tensor for name, tensor in of_part.items()}
        return tensors, {"agent": agent_state, **{part: of_part for part, (_, of_part) in parts.items()}}

    def _loop_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        runner = self.runner
        tensors, data = runner.data.state()
        counters = {
            "iteration": runner.iteration,
            "seconds": runner.seconds,
            "metrics": finite(runner.metrics),
            "number": self.number,
            "steps_learned": runner.steps_learned,
            "episodes_learned": runner.episodes_learned,
        }
        return tensors, counters | data

    @property
    def number(self) -> int:
        """The number of a checkpoint written now; the sampler must be paused.

        It grows with every sampled and learned step. Counts of steps alone are not enough: restarts can lose steps, and
        a rollout can be sampled while another is learned from.
        """
        if (done := self._done()) != self._numbered:
            self._numbered = done
            self._number = max(self.runner.sampler.steps_sampled - self.runner.data.is_due, self._number + 1)
        return self._number

    def moment(self) -> Moment:
        """The present moment."""
        runner = self.runner
        runner.sampler.pause()  # the number needs it
        counts = {"iteration": runner.iteration, "env_steps": runner.steps_learned, "seconds": runner.seconds}
        return {**counts, "checkpoint": self.number}

    def _done(self) -> tuple[int, int, bool]:
        """Identifies a state of the training."""
        return self.runner.iteration, self.runner.sampler.steps_sampled, self.runner.data.is_due

    def load(self, checkpoint: Checkpoint, seed: int) -> str | None:
        """Restore a checkpoint, after the agent was restored and the placement prepared.

        Args:
            checkpoint: the checkpoint.
            seed: the seed of the run, from which environments start new episodes if they cannot be restored.

        Returns:
            Why the environments could not be restored; None if they were.
        """
        runner, (tensors, loop) = self.runner, checkpoint.part("runner")
        runner.iteration, runner.seconds = whole(loop, "iteration"), real(loop["seconds"], "seconds")
        runner.metrics = with_nan(loop["metrics"])
        runner.steps_learned, runner.episodes_learned = whole(loop, "steps_learned"), whole(loop, "episodes_learned")
        self._number = whole(loop, "number")
        runner.data.load_state(tensors, loop, self.directory)
        runner.placement.load_state(*checkpoint.part("placement"))
        self._of_evaluation = {**checkpoint.state["evaluation"], "pending": None}
        if self.evaluation is not None:
            self.evaluation.load_state(checkpoint.state["evaluation"])
        env_seed = seed_of(seed, f"environments resumed at iteration {runner.iteration}")
        problem = runner.sampler.load_state(*checkpoint.part("sampler"), env_seed=env_seed)
        if problem is not None:
            runner.data.begin_anew()
        self._numbered = self._done()  # a checkpoint written now would equal the loaded one
        self.is_saved, self._saved = True, (runner.iteration, runner.data.is_due)
        return problem
