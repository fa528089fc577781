"""When an evaluation is due, what comes of it, and how it goes on after a stop.

The agent is evaluated at the end of the first iteration that reaches a multiple of so many environment steps, always in
the same episodes: what differs between two evaluations is the agent. A checkpoint is written of what is evaluated, and
judged by the result, so that the best agent is on the disk as it was evaluated.

In between, a result is there at once. Beside the training, it is told when the next evaluation is due, or at the end,
and not as soon as it comes: when something is told may depend on no stopwatch, for a callback may end the training.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from hybridppo.errors import CheckpointError
from hybridppo.interfaces import Agent, Metrics, SamplingActor, has_policies
from hybridppo.placements.base import Placement
from hybridppo.placements.snapshot import snapshot
from hybridppo.run_directory import checkpoints
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.evaluation import Evaluation
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.system.interruption import Stopped
from hybridppo.system.validation import real, whole

logger = logging.getLogger(__name__)


class Evaluator(Protocol):
    """Runs episodes with an actor that nobody changes any more."""

    is_beside: bool
    """Whether it does so while the training goes on."""

    def begin(self, actor: SamplingActor) -> None:
        """Begin; in between, to the end.

        Raises:
            Stopped: where a stop was requested meanwhile.
        """
        ...

    def result(self) -> Evaluation:
        """What came of it, waited for where need be.

        Raises:
            Stopped: where a stop was requested before the end.
        """
        ...

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        ...


class Trained(Protocol):
    """The runner, as evaluations see it."""

    agent: Agent
    placement: Placement
    sampler: BaseSampler
    iteration: int
    seconds: float

    @property
    def steps_learned(self) -> int:
        """Environment steps that were learned from."""
        ...

    @property
    def number(self) -> int:
        """Of the checkpoint that would be written now."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested."""
        ...

    def save(self) -> None:
        """Write a checkpoint."""
        ...


@dataclass(frozen=True)
class Moment:
    """Of a training: what was evaluated."""

    iteration: int
    env_steps: int
    seconds: float
    number: int
    """Of the checkpoint."""

    @classmethod
    def read(cls, state: dict[str, Any]) -> "Moment":
        """Out of a checkpoint."""
        counts = {name: whole(state, name) for name in ("iteration", "env_steps", "number")}
        return cls(**counts, seconds=real(state["seconds"], "seconds"))


class EvaluationDuringTraining:
    """Evaluates every so many steps.

    Args:
        evaluator: runs the episodes.
        every: environment steps, of all environments together.
        run_directory: where results go; None keeps none.
        tell: called with each result, a line of `evaluations.jsonl`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        every: int,
        run_directory: RunDirectory | None,
        tell: Callable[[dict[str, Any]], object],
    ) -> None:
        self._evaluator, self._every, self._directory, self._tell = evaluator, every, run_directory, tell
        self._env_steps = 0
        """At the last that was begun."""
        self._told = 0
        """The iteration of the last whose result was told."""
        self._pending: Moment | None = None
        """What is being evaluated, or was when the training was stopped."""
        self._results: list[tuple[Moment | None, Evaluation]] = []
        """What is yet to be told; None for the agent of now."""

    @property
    def awaited(self) -> int | None:
        """The number of the checkpoint that is yet to be judged."""
        return self._pending.number if self._pending is not None else None

    def _is_due(self, runner: Trained) -> bool:
        return runner.steps_learned // self._every > self._env_steps // self._every

    def look(self, runner: Trained) -> Metrics:
        """At the end of an iteration: evaluate where that is due; what there is to add to its metrics."""
        if not self._is_due(runner):
            return {}
        try:
            self._await()
            if not self._evaluator.is_beside:
                self._evaluator.begin(snapshot(runner.agent, runner.placement.sampling_device))
                self._results.append((None, self._evaluator.result()))
        except Stopped:
            return {}  # what is not done is due still, when the training is resumed
        return _summary(self._results, runner)

    def settle(self, runner: Trained) -> None:
        """When the metrics are written: write and tell what came of it, and begin the next beside the training."""
        results, self._results = self._results, []
        begins = self._evaluator.is_beside and self._is_due(runner) and self.awaited is None and not runner.is_stopping
        if not (results or begins):
            return
        runner.sampler.pause()  # a checkpoint's number is of a training at rest
        here = Moment(runner.iteration, runner.steps_learned, runner.seconds, runner.number)
        told = [(here if moment is None else moment, evaluation) for moment, evaluation in results]
        if begins:
            self._pending = here
        if begins or not self._evaluator.is_beside:
            self._env_steps = here.env_steps
        lines = [_line(moment, evaluation, runner.agent) for moment, evaluation in told]
        for moment, _ in told:
            self._told = moment.iteration
        if self._directory is not None:
            for line in lines:
                self._directory.log_evaluation(line)
            runner.save()
            for moment, evaluation in told:
                self._directory.judge(moment.number, _statistics(evaluation))
        if begins:
            self._evaluator.begin(snapshot(runner.agent, runner.placement.sampling_device))
        for line in lines:
            self._tell(line)

    def go_on(self, runner: Trained) -> None:
        """At the start of a training that was stopped: begin again what was under way, and do what is due."""
        if self._pending is not None and self._directory is not None:
            try:
                tensors = checkpoints.load(self._directory.checkpoint(self._pending.number)).tensors
            except CheckpointError as error:
                logger.warning("%s; it is not evaluated", error)
                self._pending = None
            else:
                self._evaluator.begin(snapshot(runner.agent, runner.placement.sampling_device, tensors))
                if not self._evaluator.is_beside:
                    self._await()
        self.look(runner)
        self.settle(runner)

    def finish(self, runner: Trained) -> Metrics:
        """At the end of the training: wait for what is under way.

        Raises:
            Stopped: where a stop was requested meanwhile; it begins again when the training is resumed.
        """
        self._await()
        metrics = _summary(self._results, runner)
        self.settle(runner)
        return metrics

    def _await(self) -> None:
        """The result of what was begun, where something was."""
        if self._pending is not None:
            self._results.append((self._pending, self._evaluator.result()))
            self._pending = None

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        self._evaluator.close()

    def state(self) -> dict[str, Any]:
        """What `load_state` takes, as JSON can hold it."""
        pending = None if self._pending is None else asdict(self._pending)
        return {"env_steps": self._env_steps, "told": self._told, "pending": pending}

    def load_state(self, state: dict[str, Any] | None, iteration: int) -> None:
        """Go on from a saved state; None for a training that was not evaluated before `iteration`."""
        if state is None:
            self._told = iteration
            return
        self._env_steps, self._told = whole(state, "env_steps"), whole(state, "told")
        self._pending = None if state["pending"] is None else Moment.read(state["pending"])


def line_of(runner: Trained, evaluation: Evaluation) -> dict[str, Any]:
    """What callbacks are told of an evaluation of the agent of now."""
    return _line(
        Moment(runner.iteration, runner.steps_learned, runner.seconds, runner.number), evaluation, runner.agent
    )


def _statistics(evaluation: Evaluation) -> dict[str, Any]:
    """What a checkpoint is judged by, and what is beside it."""
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
    }


def _summary(results: list[tuple[Moment | None, Evaluation]], runner: Trained) -> Metrics:
    """What is added to the metrics of an iteration."""
    if not results:
        return {}
    moment, evaluation = results[-1]
    return {
        "evaluation_return_mean": evaluation.return_mean,
        "evaluation_return_std": evaluation.return_std,
        "evaluation_env_steps": runner.steps_learned if moment is None else moment.env_steps,
        **returns_by_policy(runner.agent, evaluation),
    }


def returns_by_policy(agent: Agent, evaluation: Evaluation) -> Metrics:
    """The mean return of each of several policies, by name; nothing if there is one."""
    if not has_policies(agent):
        return {}
    return {
        f"{policy}/evaluation_return_mean": evaluation.of_agents(agent.names_of(policy)).return_mean
        for policy in agent.agents
    }
