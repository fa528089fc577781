"""When an evaluation is due, how its result is reported, and how it continues after a stop.

The agent is evaluated at the end of the first iteration that reaches a multiple of `every` environment steps, always in
the same episodes, so that only the agent differs between two evaluations. The evaluated agent is saved as a checkpoint
with its result, so that the best agent is on the disk.

Between two iterations, a result is available at once. Beside the training, it is reported when the next evaluation is
due or at the end, not as soon as it arrives: a callback may end the training, which must not depend on timing.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from hybridppo.errors import CheckpointError
from hybridppo.interfaces import Agent, Metrics, has_policies
from hybridppo.placements.placement import Placement, snapshot
from hybridppo.run_directory import checkpoints
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.evaluation import Evaluation
from hybridppo.runners.evaluators.beside import Beside
from hybridppo.runners.evaluators.in_between import InBetween
from hybridppo.runners.sampler import BaseSampler
from hybridppo.system.signals import Stopped
from hybridppo.system.validation import real, whole

logger = logging.getLogger(__name__)


class Trained(Protocol):
    """The part of a runner that evaluations use."""

    agent: Agent
    placement: Placement
    sampler: BaseSampler
    iteration: int
    seconds: float
    steps_learned: int
    """Environment steps that were learned from."""

    @property
    def number(self) -> int:
        """Number of a checkpoint written now."""

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested."""

    @property
    def stopped_by(self) -> str | None:
        """Why a callback has ended the training, which is still evaluated; else None."""
        ...

    def save(self) -> None:
        """Write a checkpoint."""


@dataclass(frozen=True)
class Moment:
    """The moment of a training that was evaluated."""

    iteration: int
    env_steps: int
    seconds: float
    number: int
    """Number of the checkpoint."""

    @classmethod
    def read(cls, state: dict[str, Any]) -> "Moment":
        """A moment from a checkpoint's state."""
        counts = {name: whole(state, name) for name in ("iteration", "env_steps", "number")}
        return cls(**counts, seconds=real(state["seconds"], "seconds"))


class EvaluationDuringTraining:
    """Evaluates the agent every so many steps.

    Args:
        evaluator: runs the episodes.
        every: environment steps between evaluations, of all environments together.
        run_directory: for results; None writes none.
        tell: called with each result, a line of `evaluations.jsonl`.
    """

    def __init__(
        self,
        evaluator: Beside | InBetween,
        *,
        every: int,
        run_directory: RunDirectory | None,
        tell: Callable[[dict[str, Any]], object],
    ) -> None:
        self._evaluator, self._every, self._directory, self._tell = evaluator, every, run_directory, tell
        self._env_steps = 0
        """Environment steps at the last evaluation that was begun."""
        self._told = 0
        """The iteration of the last reported evaluation."""
        self._pending: Moment | None = None
        """The moment that is being evaluated, or was when the training was stopped."""
        self._results: list[tuple[Moment | None, Evaluation]] = []
        """The moment whose result is not reported yet; None for the present agent."""

    @property
    def awaited(self) -> int | None:
        """The number of the checkpoint whose result is missing."""
        return self._pending.number if self._pending is not None else None

    def _is_due(self, runner: Trained) -> bool:
        return runner.steps_learned // self._every > self._env_steps // self._every

    def look(self, runner: Trained) -> Metrics:
        """Called at the end of an iteration: evaluate if due; return additional metrics."""
        if not self._is_due(runner):
            return {}
        try:
            self._await()
            if not self._evaluator.is_beside:
                self._evaluator.begin(snapshot(runner.agent, runner.placement.sampling_device))
                self._results.append((None, self._evaluator.result()))
        except Stopped:
            return {}  # the evaluation is still due when the training is resumed
        return _summary(self._results, runner)

    def settle(self, runner: Trained) -> None:
        """Called when the metrics are written: report the result, and begin the next evaluation beside the training."""
        results, self._results = self._results, []
        goes_on = not runner.is_stopping or runner.stopped_by is not None
        begins = self._evaluator.is_beside and self._is_due(runner) and self.awaited is None and goes_on
        if not (results or begins):
            return
        runner.sampler.pause()  # the number of a checkpoint needs a paused sampler
        here = Moment(runner.iteration, runner.steps_learned, runner.seconds, runner.number)
        told = [(here if moment is None else moment, evaluation) for moment, evaluation in results]
        if begins:
            self._pending = here
        num_earlier = sum(moment is not None for moment, _ in results)  # they come first
        if begins or num_earlier < len(results):
            self._env_steps = here.env_steps
        lines = [_line(moment, evaluation, runner.agent) for moment, evaluation in told]
        for moment, _ in told:
            self._told = moment.iteration
        if self._directory is not None:
            for line in lines:
                self._directory.log_evaluation(line)
            self._judge(told[:num_earlier])  # before `save` removes checkpoints that are old and not the best
            runner.save()
            self._judge(told[num_earlier:])
        if begins:
            self._evaluator.begin(snapshot(runner.agent, runner.placement.sampling_device))
        for line in lines:
            self._tell(line)

    def _judge(self, told: Sequence[tuple[Moment, Evaluation]]) -> None:
        assert self._directory is not None
        for moment, evaluation in told:
            self._directory.judge(moment.number, _statistics(evaluation))

    def go_on(self, runner: Trained) -> Metrics:
        """Called at the start of a resumed training: begin an unfinished evaluation again, and do one that is due.

        Returns:
            Additional metrics of the last iteration, if a stop had broken its evaluation off.
        """
        if self._pending is not None and self._directory is not None:
            try:
                tensors = checkpoints.load(self._directory.checkpoint(self._pending.number)).tensors
            except CheckpointError as error:
                logger.warning("%s; it is not evaluated", error)
                self._pending = None
            else:
                self._evaluator.begin(snapshot(runner.agent, runner.placement.sampling_device, tensors))
                if not self._evaluator.is_beside:
                    with contextlib.suppress(Stopped):
                        self._await()
        metrics = self.look(runner)
        self.settle(runner)
        return metrics

    def finish(self, runner: Trained) -> Metrics:
        """Called at the end of the training: wait for an unfinished evaluation.

        Raises:
            Stopped: if a stop was requested before its end; it begins again when the training is resumed.
        """
        self._await()
        if self._is_due(runner):  # only a stop has kept it from being made
            raise Stopped
        metrics = _summary(self._results, runner)
        self.settle(runner)
        return metrics

    def _await(self) -> None:
        """The result of the evaluation that was begun; None if there is none."""
        if self._pending is not None:
            self._results.append((self._pending, self._evaluator.result()))
            self._pending = None

    def close(self) -> None:
        """Close the evaluator; a second call does nothing."""
        self._evaluator.close()

    def state(self) -> dict[str, Any]:
        """The state for `load_state`, as JSON."""
        pending = None if self._pending is None else asdict(self._pending)
        return {"env_steps": self._env_steps, "told": self._told, "pending": pending}

    def load_state(self, state: dict[str, Any] | None, iteration: int) -> None:
        """Restore a saved state; None for a training that was not evaluated before `iteration`."""
        if state is None:
            self._told = iteration
            return
        self._env_steps, self._told = whole(state, "env_steps"), whole(state, "told")
        self._pending = None if state["pending"] is None else Moment.read(state["pending"])


def line_of(runner: Trained, evaluation: Evaluation) -> dict[str, Any]:
    """The line that callbacks get for an evaluation of the present agent."""
    return _line(
        Moment(runner.iteration, runner.steps_learned, runner.seconds, runner.number), evaluation, runner.agent
    )


def _statistics(evaluation: Evaluation) -> dict[str, Any]:
    """The score of a checkpoint, and further statistics."""
    return {
        "return_mean": evaluation.return_mean,
        "return_std": evaluation.return_std,
        "length_mean": float(np.mean(evaluation.lengths)),
        "episodes": len(evaluation.returns),
    }


def _line(moment: Moment, evaluation: Evaluation, agent: Agent) -> dict[str, Any]:
    """A line of `evaluations.jsonl`."""
    statistics = _statistics(evaluation)
    return {
        "iteration": moment.iteration,
        "env_steps": moment.env_steps,
        "seconds": moment.seconds,
        "checkpoint": moment.number,
        **{f"evaluation_{name}": statistics[name] for name in ("return_mean", "return_std", "length_mean")},
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
        **returns_by_policy(agent, evaluation),
        **_infos(evaluation),
    }


def _infos(evaluation: Evaluation) -> Metrics:
    """The means of `info_metrics`, by the names of an evaluation's metrics."""
    return {f"evaluation_{name}": value for name, value in evaluation.infos.items()}


def _summary(results: list[tuple[Moment | None, Evaluation]], runner: Trained) -> Metrics:
    """The additional metrics of an iteration."""
    if not results:
        return {}
    moment, evaluation = results[-1]
    return {
        "evaluation_return_mean": evaluation.return_mean,
        "evaluation_return_std": evaluation.return_std,
        "evaluation_env_steps": runner.steps_learned if moment is None else moment.env_steps,
        **returns_by_policy(runner.agent, evaluation),
        **_infos(evaluation),
    }


def returns_by_policy(agent: Agent, evaluation: Evaluation) -> Metrics:
    """The mean return of each of several policies, by name; empty for one policy."""
    if not has_policies(agent):
        return {}
    return {
        f"{policy}/evaluation_return_mean": evaluation.of_agents(agent.names_of(policy)).return_mean
        for policy in agent.agents
    }
