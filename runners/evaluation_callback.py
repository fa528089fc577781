"""Evaluation during training: a callback that evaluates the agent every so many environment steps.

It evaluates at the end of the first iteration that reaches a multiple of `every` steps, always in the same episodes, so
that only the agent differs between two evaluations. The evaluated agent is saved as a checkpoint with its result, so
that the best agent is on the disk.

In this process, the training waits for the result. In another process, the training continues, and the result is
reported when the next evaluation is due or at the end, not as soon as it arrives: a callback may end the training,
which must not depend on timing.
"""

import contextlib
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from hybridppo.environments.making import is_tensor_env
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.packages import to_send
from hybridppo.errors import CheckpointError, ConfigurationError, EnvError
from hybridppo.interfaces import Agent, Metrics, SamplingActor, has_policies
from hybridppo.networks.actors import twin_of
from hybridppo.networks.numpy_actors import ArrayActor
from hybridppo.placements.placement import snapshot
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.run_directory import checkpoints
from hybridppo.run_directory.directory import EVALUATIONS
from hybridppo.runners.checkpointing import Checkpointing, Moment
from hybridppo.runners.episodes import Episodes, Evaluation
from hybridppo.runners.processes import LocalProcesses
from hybridppo.runners.runner import Runner
from hybridppo.system.messages import say, shown_return, shown_returns
from hybridppo.system.signals import Interruption, Stopped
from hybridppo.system.validation import whole

logger = logging.getLogger(__name__)


class Evaluator:
    """Runs the episodes of an evaluation, in this process or in another one, which does not load torch.

    Args:
        runner: the training.
        source: makes the training's environments; evaluations make new ones from it.
        options: how environments are made.
        in_another_process: whether to use one; None if sampling and learning overlap, and NumPy can act.
        episodes: episodes of an evaluation.
        seed: seed of every evaluation.
        interruption: stops an evaluation.

    Raises:
        ConfigurationError: for environments that cannot be made again, or for another process if NumPy cannot act.
        EnvError: if the other process fails, dies or hangs; raised when an evaluation begins or its result is needed.
    """

    def __init__(
        self,
        runner: Runner,
        source: EnvSource,
        options: EnvironmentOptions,
        *,
        in_another_process: bool | None,
        episodes: int,
        seed: int,
        interruption: Interruption,
    ) -> None:
        if is_tensor_env(source):
            raise ConfigurationError(
                f"evaluate_every needs environments of its own, and {type(source).__name__} is what the training "
                "steps: pass a function that makes one"
            )
        agent, placement = runner.agent, runner.placement
        options = replace(options, episodic_life=False)  # clipped rewards are for learning only
        spaces = SimpleNamespace(observation_space=agent.observation_space, action_space=agent.action_space)
        self._episodes = Episodes(source, options, spaces, agent.distribution, episodes, seed, agent.memory)
        self._interruption = interruption
        self._actor: SamplingActor | None = None
        """The actor that is evaluated, or will be in this process; None if there is none."""
        self._pool: LocalProcesses | None = None
        device = placement.sampling_device
        twin = twin_of(agent.actor) if device.type == "cpu" else None
        if in_another_process and twin is None:
            has = "networks that NumPy has not (one's own, or with layer_norm or impala convolutions)"
            why = f"it has {has}" if device.type == "cpu" else f"it samples on {device}"
            raise ConfigurationError(
                f"evaluate_async needs a policy that acts in NumPy, on the CPU: {why}. Leave it out"
            )
        if twin is None or not (placement.max_lag > 0 if in_another_process is None else in_another_process):
            self._environments = self._episodes.make()
            return
        episodes_to_send = replace(self._episodes, source="")
        setup = {"episodes": episodes_to_send, "source": to_send(source), "options": options, "form": twin}
        share, otherwise = slice(0, self._episodes.num_envs), ", or evaluate in this process, with evaluate_async=False"
        self._pool = LocalProcesses("hybridppo.runners.episodes", "evaluator", [share], setup, otherwise=otherwise)
        self._stop = self._pool.arrays["stop"]
        try:
            self._pool.start(0, seed)  # it imports its modules while the training begins
        except BaseException:
            self.close()
            raise
        interruption.tell(self._request_stop)

    @property
    def is_concurrent(self) -> bool:
        """Whether the training continues during an evaluation."""
        return self._pool is not None

    def begin(self, actor: SamplingActor) -> None:
        """Begin an evaluation of an actor that does not change.

        Raises:
            Stopped: if a stop was requested while the other process was starting.
        """
        if self._pool is not None:
            self._pool.wait_until_ready([0])
            assert isinstance(actor, ArrayActor)  # the form of such a network on the CPU
            self._pool.ask(0, "evaluate", list(actor.parameters))
        self._actor = actor

    def result(self) -> Evaluation:
        """Wait for the result of the evaluation that was begun, once.

        Raises:
            Stopped: if a stop was requested before the end.
        """
        actor, self._actor = self._actor, None
        if actor is None:  # it was stopped before it began
            raise Stopped
        if self._pool is None:
            return self._episodes.run(actor, self._environments, lambda: self._interruption.requested)
        ((_, answer),) = self._pool.answers([0])
        if isinstance(answer, EnvError):
            raise answer
        if answer[0] is None:
            raise Stopped
        return cast(Evaluation, answer[0])

    def _request_stop(self) -> None:
        self._stop[0] = 1

    def close(self) -> None:
        """Close the environments, or end the process; a second call does nothing."""
        if self._pool is None:
            self._environments.close()
        else:
            self._request_stop()
            self._pool.close()


class EvaluationDuringTraining(Callback):
    """Evaluates the agent every so many steps.

    Args:
        checkpointing: saves the evaluated agents; its directory has the results.
        evaluator: runs the episodes.
        every: environment steps between evaluations, of all environments together.
        shows: whether to show results on stderr.
    """

    is_of_library = True

    def __init__(self, checkpointing: Checkpointing, evaluator: Evaluator, *, every: int, shows: bool) -> None:
        self._checkpointing, self._runner = checkpointing, checkpointing.runner
        self._directory = checkpointing.directory
        self._evaluator, self._every, self._shows = evaluator, every, shows
        self._env_steps = 0
        """Environment steps at the last evaluation that was begun."""
        self._reported = 0
        """The iteration of the last reported evaluation."""
        self._pending: Moment | None = None
        """The moment that is being evaluated, or was when the training was stopped."""
        checkpointing.evaluation = self

    def on_start(self, run: TrainingRun) -> None:
        """In a resumed training, begin an unfinished evaluation again, and do one that is due."""
        if self._pending is not None and self._directory is not None:
            try:
                tensors = checkpoints.load(self._directory.checkpoint(self._pending["checkpoint"])).tensors
            except CheckpointError as error:
                logger.warning("%s; it is not evaluated", error)
                self._pending = None
            else:
                with contextlib.suppress(Stopped):
                    self._begin(tensors)
        self.on_iteration(run, {})

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """If due, report the last evaluation's result, and evaluate the present agent; a stop leaves that for later."""
        if not self._is_due():
            return
        with contextlib.suppress(Stopped):
            self._await()
            if not self._runner.is_stopping or self._runner.stopped_by is not None:
                self._pending = self._checkpointing.moment()
                self._env_steps = self._pending["env_steps"]
                if self._evaluator.is_concurrent:
                    self._keep_pending()
                    self._checkpointing.save()
                self._begin()

    def on_finish(self, run: TrainingRun) -> None:
        """Wait for an unfinished evaluation; after a stop, it is made when the training is resumed."""
        if not self._runner.interrupted:
            with contextlib.suppress(Stopped):
                self._await()
            self._runner.interrupted = self._pending is not None or self._is_due()

    def _is_due(self) -> bool:
        return self._runner.steps_learned // self._every > self._env_steps // self._every

    def _begin(self, tensors: dict[str, Any] | None = None) -> None:
        """Begin to evaluate the present agent, or the one with the tensors of a checkpoint; in this process, also end.

        Raises:
            Stopped: if a stop was requested.
        """
        self._evaluator.begin(snapshot(self._runner.agent, self._runner.placement.sampling_device, tensors))
        if not self._evaluator.is_concurrent:
            self._await()

    def _await(self) -> None:
        """Wait for the result of the evaluation that was begun, if there is one, and report it."""
        if self._pending is not None:
            result = self._evaluator.result()
            moment, self._pending = self._pending, None
            self._report(moment, result)

    def _keep_pending(self) -> None:
        """Keep the checkpoint that is being evaluated."""
        if self._directory is not None:
            self._directory.awaited = None if self._pending is None else self._pending["checkpoint"]

    def _report(self, moment: Moment, evaluation: Evaluation) -> None:
        """Report a result to files and callbacks, and save the evaluated agent if that was not done before."""
        line = evaluation_line(self._runner.agent, moment, evaluation)
        figures = {name: value for name, value in line.items() if "evaluation_" in name}
        self._reported = moment["iteration"]
        self._checkpointing.add_metrics({**figures, "evaluation_env_steps": moment["env_steps"]})
        if self._directory is not None:
            self._directory.log(line, EVALUATIONS)
            if not self._evaluator.is_concurrent:
                self._checkpointing.save()
            self._directory.judge(moment["checkpoint"], evaluation.return_mean)
            self._keep_pending()
        if self._shows:
            each = by_policy(self._runner.agent, evaluation).items()
            means = [f"{policy}: {shown_return(own.return_mean)}" for policy, own in each]
            episodes = len(evaluation.returns) // max(1, len({*evaluation.agents}))
            found = shown_returns(evaluation.return_mean, evaluation.return_std, episodes)
            say(f"evaluation after {line['env_steps']:,} steps: {', '.join(means) or found}")
        self._runner.callbacks.tell("on_evaluation", line)

    def state(self) -> dict[str, Any]:
        """The state for `load_state`, as JSON."""
        return {"env_steps": self._env_steps, "reported": self._reported, "pending": self._pending}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._env_steps, self._reported = whole(state, "env_steps"), whole(state, "reported")
        self._pending = state["pending"]
        self._keep_pending()


def evaluation_line(agent: Agent, moment: Moment, evaluation: Evaluation) -> dict[str, Any]:
    """A line of `evaluations.jsonl`, which callbacks also get."""
    return {
        **moment,
        "evaluation_return_mean": evaluation.return_mean,
        "evaluation_return_std": evaluation.return_std,
        "evaluation_length_mean": float(np.mean(evaluation.lengths)),
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
        **returns_by_policy(agent, evaluation),
        **{f"evaluation_{name}": value for name, value in evaluation.infos.items()},
    }


def by_policy(agent: Agent, evaluation: Evaluation) -> dict[str, Evaluation]:
    """The evaluation of each of several policies, by name; empty for one policy."""
    names = agent.agents if has_policies(agent) else ()
    return {policy: evaluation.of_agents(agent.names_of(policy)) for policy in names}  # type: ignore[attr-defined]


def returns_by_policy(agent: Agent, evaluation: Evaluation) -> Metrics:
    """The mean return of each of several policies, by the metric's name."""
    each = by_policy(agent, evaluation).items()
    return {f"{policy}/evaluation_return_mean": own.return_mean for policy, own in each}


def returns_of(agent: Agent, evaluation: Evaluation, episodes: int | None = None) -> str:
    """The returns of an evaluation as text, of each policy if there are several. None counts episodes of agents."""
    found = by_policy(agent, evaluation) or {"": evaluation}
    return ", ".join(
        f"{policy}: " * bool(policy) + shown_returns(own.return_mean, own.return_std, episodes or len(own.returns))
        for policy, own in found.items()
    )
