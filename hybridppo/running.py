"""Runs a training: its processes and environments, its loop with all callbacks, its evaluation and its result.

`prepared` starts the processes and makes the environments of a training, and `run_to_the_end` runs its `Plan`.
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hybridppo.agents.policies import PolicyOf
from hybridppo.agents.ppo.batch import require_free_names
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.registry import AnyAgent, AnyConfig, agents_by_policy, explaining_memory, replaced
from hybridppo.auto.auto import Auto, Choice
from hybridppo.auto.trials import Training
from hybridppo.compiled.modules import require_numba
from hybridppo.distributed.choosing import strategy_of
from hybridppo.distributed.strategy import Strategy
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource, for_agents
from hybridppo.errors import ConfigurationError
from hybridppo.evaluation import evaluate_agent, like_training
from hybridppo.interfaces import Metrics
from hybridppo.loading import fitting
from hybridppo.networks.modes import float32_products
from hybridppo.placements.placement import Placement, SingleDevice, shown_placement
from hybridppo.reporting.callbacks import Callback, Callbacks, RunEnvironments, StopAtReturn, TrainingRun
from hybridppo.reporting.progress import ProgressOfTraining
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.checkpointing import Checkpointing
from hybridppo.runners.episodes import Evaluation
from hybridppo.runners.evaluation_callback import (
    EvaluationDuringTraining,
    Evaluator,
    evaluation_line,
    returns_by_policy,
    returns_of,
)
from hybridppo.runners.profiling import Profiler
from hybridppo.runners.runner import Runner
from hybridppo.self_play import OpponentPools, with_self_play
from hybridppo.settings import Plan, RunOptions, Settings
from hybridppo.system.messages import say, shown_return
from hybridppo.system.seeds import seed_of
from hybridppo.system.signals import Interruption, Stopped
from hybridppo.system.threads import limit_threads

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """The result of a training."""

    agent: AnyAgent
    """The trained agent, on its learning device."""
    metrics: Metrics
    """The last iteration's metrics, empty before the first has ended. A run directory has those of all iterations."""
    run_dir: Path | None
    """Where everything was written, or None."""
    seed: int
    """The seed used, also if none was given."""
    evaluation: Evaluation | None
    """The evaluation after training, if one was asked for."""
    interrupted: bool
    """Whether Ctrl-C or another signal ended the training, or the evaluation after it, early; `resume` continues it."""
    saved: bool
    """Whether the last checkpoint is on the disk. False without a run directory, or if it could not be written, which
    was logged."""
    stopped_by: str | None = None
    """The reason, if a callback or `target_return` ended the training before its goal."""

    policy: str = "policy"
    """The name of the policy, if there is only one: its key, if `config` is a mapping."""
    placement: Placement = field(default_factory=SingleDevice)
    """Where it sampled and learned: `placement.name`, and `placement.reason`, such as the measurement of `auto`."""

    @property
    def agents(self) -> dict[str, AnyAgent]:
        """The trained agents, by the names of their policies."""
        return agents_by_policy(self.agent, self.policy)

    def __repr__(self) -> str:
        lines = [f"training: {self._trained()}"]
        if self.stopped_by is not None:
            lines.append(f"stopped before its goal: {self.stopped_by}")
        if self.evaluation is not None:
            lines.append(f"evaluation: {returns_of(self.agent, self.evaluation)}, deterministic actions")
        lines.append("nothing was saved: run_dir=None" if self.run_dir is None else f"run directory: {self.run_dir}")
        return "\n".join(lines)

    def _trained(self) -> str:
        """Returns, steps, seconds and speed, in one line."""
        metrics, note = self.metrics, "(latest episodes, sampled actions)"
        if not metrics:  # resumed at its goal, or interrupted in the first iteration
            return "nothing was left to do" if self.saved else "no iteration was made"
        of_each = {f"{policy}: ": f"{policy}/episode_return_mean" for policy in self.agents}
        found = {of: metrics[name] for of, name in of_each.items() if name in metrics}
        found = found or {"": metrics["episode_return_mean"]}
        returns = [of + shown_return(mean) + f" {note}" * math.isfinite(mean) for of, mean in found.items()]
        steps, seconds = metrics["env_steps"], metrics["seconds"]
        return f"{', '.join(returns)}, {steps:,} steps in {seconds:.1f} s, {steps / seconds:,.0f} steps/s"


@dataclass(frozen=True)
class Preparation:
    """The processes, environments and options with which a training is prepared and runs."""

    env: EnvSource
    strategy: Strategy
    options: EnvironmentOptions
    """The options of the environments in every process."""
    run: RunOptions
    """The options of the run in every learner."""
    environments: Environments
    """All environments, or some of them if the others are in other processes."""
    seconds_to_make: float
    """How long it took to make `environments`."""
    placement: Placement | Auto
    interruption: Interruption

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        assert self.run.seed is not None  # `train` and `Settings.read` see to that
        return self.run.seed

    def plan(self, settings: Settings, agent: AnyAgent, choice: Choice, **more: Any) -> Plan:
        """The plan of a training, whose placement is logged or shown; `more` are its further fields."""
        placement, shows = choice.placement, self.strategy.rank == 0 and more["progress"]
        line = f"placement {shown_placement(placement.settings())}, {placement.reason}"
        if isinstance(self.placement, Auto):
            line = f"placement auto: {placement.reason}"
            logger.info("%s", line)
            shows = shows and not logger.isEnabledFor(logging.INFO)  # a program that logs has shown it
        if shows:
            say(line)
        return Plan(self.env, settings, self.environments, agent, placement, self.interruption, **more)

    def choose(self, agent: AnyAgent, total_steps: int) -> Choice:
        """The placement that was asked for, or the one that `auto` chooses for so many steps."""
        if isinstance(self.placement, Placement):
            return Choice(self.placement, self.run.num_workers, agent.config.torch_threads or 1, table={})
        training = Training(self.env, agent.config, with_self_play(self.options, self.run, agent.config), agent)
        more = {"num_workers": self.run.num_workers, "seconds_to_make": self.seconds_to_make}
        return self.strategy.choose(self.placement, training, self.environments, total_steps=total_steps, **more)


@contextmanager
def prepared(
    env: EnvSource,
    config: AnyConfig,
    options: EnvironmentOptions,
    run: RunOptions,
    placement: Placement | Auto,
    *,
    policy_of: PolicyOf | None = None,
    saves: bool = True,
    debug: bool = False,
) -> Iterator[Preparation]:
    """Start the other processes, and make the environments; end and close them afterwards.

    Args:
        env: makes the environments.
        config: the agent's settings.
        options: the options of the environments.
        run: the options of the run, with how it is distributed.
        placement: the placement that the user asked for.
        policy_of: as for `train`.
        saves: whether a training that a signal interrupts is saved.
        debug: whether everything is to be in this process.

    Raises:
        ConfigurationError: if `distributed` does not support these settings, or the program is in a mode of torch
            that changes gradients.
    """
    if torch.is_inference_mode_enabled():
        raise ConfigurationError("torch.inference_mode() is on, in which nothing has a gradient: train outside of it")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ConfigurationError(
            "torch.autocast is on, which would round losses: train outside of it; precision='bf16' of the "
            "configuration uses it for the networks alone"
        )
    require_free_names(options.step_infos)
    for each in config.policies.values():
        if isinstance(each, PPOConfig) and each.compiled_updates and each.fast_updates:
            require_numba("compiled_updates=True")
        if not isinstance(each, PPOConfig):
            kind, remedy = "agents with a replay buffer", "train PPO (PPOConfig, --agent ppo), or leave it out"
            options.refuse(kind, "step_infos", remedy=remedy)
    if debug:
        if run.distributed != "local":
            raise ConfigurationError(f"debug=True does not work with distributed={run.distributed}: leave one out")
        logger.info(
            "debug=True: no worker processes, no trials of placement auto, gradients by autograd alone (as with "
            "fast_updates=False), with the line of the loss if one is not a number"
        )
        run, placement = replace(run, num_workers=0), SingleDevice("cpu") if isinstance(placement, Auto) else placement
    strategy = strategy_of(run, options.worker_timeout)
    strategy.check(config, options, run)
    options, placement = strategy.dividing(env, options), strategy.placement(placement)
    with ExitStack() as stack:
        stack.enter_context(strategy)
        run = strategy.settled(run)
        interruption = stack.enter_context(Interruption(saves=saves))
        begun = time.perf_counter()
        game = with_self_play(options, run, config, policy_of)
        environments = strategy.environments(env, config.num_envs, game, run.num_workers)
        stack.callback(environments.close)
        options = for_agents(options, environments.agents)
        seconds = time.perf_counter() - begun
        yield Preparation(env, strategy, options, run, environments, seconds, placement, interruption)


@contextmanager
def _by_autograd_alone(agent: AnyAgent) -> Iterator[None]:
    """A context in which autograd computes gradients, and names the line of the loss if one is not a number."""
    config = agent.config
    agent.config = replaced(config, fast_updates=False, cuda_graphs=False)
    try:
        with torch.autograd.set_detect_anomaly(True):
            yield
    finally:
        agent.config = config


def run_to_the_end(plan: Plan, strategy: Strategy) -> TrainResult:
    """Train to the goal in the settings, from the start or from a checkpoint; evaluate; write the result."""
    plan = strategy.begin(plan)
    settings, agent, placement, directory = plan.settings, plan.agent, plan.placement, plan.directory
    config = agent.config
    products = float32_products(config.precision, placement.sampling_device, placement.learning_device)
    with limit_threads(config.torch_threads or 1), explaining_memory(), products, contextlib.ExitStack() as stack:
        stack.enter_context(np.errstate(under="ignore"))  # a program may let it raise: probabilities may become zero
        if plan.debug:
            stack.enter_context(_by_autograd_alone(agent))
        placement.prepare(agent)
        sampler = strategy.sampler(
            plan,
            num_envs=config.num_envs,
            num_steps=config.num_steps,
            num_episodes=config.episodes_per_rollout,
            num_workers=0 if plan.debug else settings.run.num_workers,
            options=with_self_play(settings.environment, settings.run, config),
            env_seed=seed_of(settings.seed, "environments"),
            noise=np.random.default_rng(seed_of(settings.seed, "noise")),
        )
        stack.callback(sampler.close)
        origin_of_run = {} if directory is None else directory.config.get("origin", {})  # the first learner's
        run_path = None if directory is None else directory.path
        run = TrainingRun(agent, {**settings.to_json(), "origin": origin_of_run}, run_path)
        goal = {"total_steps": settings.run.total_steps, "total_episodes": settings.run.total_episodes}
        callbacks = Callbacks((), run)
        runner = strategy.runner(agent, sampler, placement, **goal, callbacks=callbacks, interruption=plan.interruption)
        run.environments = RunEnvironments(runner.steer)
        stack.callback(run.environments.close)
        options = settings.run
        seconds, every, keep = options.checkpoint_seconds, options.checkpoint_every, options.keep_checkpoints
        checkpointing = Checkpointing(runner, directory, seconds=seconds, every=every, keep=keep)
        stack.callback(checkpointing.close)
        runner.callbacks.all += _callbacks(plan, strategy, runner, checkpointing, stack)
        if plan.checkpoint is not None and directory is not None:
            with fitting("this run"):
                problem = checkpointing.load(plan.checkpoint, settings.seed)
            if strategy.rank == 0:
                _tell_of_resuming(runner, directory, problem)
        if directory is not None and strategy.rank == 0 and runner.share_done < 1.0:
            directory.remove_result()  # of a run that trains on
        stack.callback(runner.callbacks.end)
        metrics = runner.run()
        stopped_by = runner.stopped_by  # not by the evaluation that follows
        strategy.end(agent)
        run.has_ended = True
        with runner.rescuing():
            evaluation, interrupted = _evaluation_after(plan, runner, checkpointing)
        if directory is not None and strategy.rank == 0 and not interrupted and checkpointing.is_saved:
            directory.write("result.json", _result(settings, runner, evaluation, placement))
    run_dir = directory.given if directory is not None and strategy.rank == 0 else None
    saved, policy = checkpointing.is_saved, settings.policy
    given = agent, metrics, run_dir, settings.seed, evaluation
    return TrainResult(*given, interrupted, saved, stopped_by, policy, placement)


def _callbacks(
    plan: Plan, strategy: Strategy, runner: Runner, checkpointing: Checkpointing, stack: contextlib.ExitStack
) -> list[Callback]:
    """The callbacks, in their order. All learners count games of self-play; the first one calls the others."""
    settings, run, directory = plan.settings, plan.settings.run, plan.directory
    found: list[Callback] = []
    if run.self_play is not None:
        folder = None if directory is None else directory.path / "snapshots"
        found.append(OpponentPools(run.self_play, runner, folder))
    if strategy.rank > 0:
        return found
    if run.evaluate_every:
        seed, beside = seed_of(settings.seed, "evaluation during training"), run.evaluate_async
        how: dict[str, Any] = {"episodes": run.episodes_per_evaluation, "seed": seed, "interruption": plan.interruption}
        evaluator = Evaluator(runner, plan.env, settings.environment, in_another_process=beside, **how)
        stack.callback(evaluator.close)
        every, shows = run.evaluate_every, plan.progress
        found.append(EvaluationDuringTraining(checkpointing, evaluator, every=every, shows=shows))
    if run.target_return is not None:
        found.append(StopAtReturn(run.target_return))
    found += plan.callbacks
    if plan.profile and directory is not None:
        found.append(Profiler(runner, plan.environments, directory.path / "trace.json"))
    if plan.progress or plan.verbose:
        found.append(ProgressOfTraining(bar=plan.progress, verbose=plan.verbose))
    return found if directory is None else [*found, checkpointing]


def _tell_of_resuming(runner: Runner, directory: RunDirectory, problem: str | None) -> None:
    """Log that a run goes on, and why its environments could not be restored."""
    if runner.share_done >= 1.0:
        steps, episodes = runner.steps_learned, runner.episodes_learned
        logger.info(
            "%s is finished, after %s steps in %s episodes; a larger total_steps (--total-steps) trains on",
            *(directory.given, f"{steps:,}", f"{episodes:,}"),
        )
    but = f" except the environments, which start new episodes: {problem}" if problem is not None else ""
    logger.info("resuming %s: everything is restored%s", directory.given, but)


def _evaluation_after(plan: Plan, runner: Runner, checkpointing: Checkpointing) -> tuple[Evaluation | None, bool]:
    """The evaluation after training, if it was asked for; and whether a signal ended it or the training."""
    settings = plan.settings
    if runner.interrupted or settings.run.evaluation_episodes == 0:
        return None, runner.interrupted
    try:
        evaluation = evaluate_agent(
            plan.agent,
            plan.env,
            episodes=settings.run.evaluation_episodes,
            seed=seed_of(settings.seed, "evaluation"),
            placement=plan.placement,
            progress=plan.progress,
            should_stop=lambda: plan.interruption.requested,
            **like_training(settings.environment),
        )
    except Stopped:
        return None, True
    moment = checkpointing.moment()
    runner.callbacks.tell("on_evaluation", evaluation_line(plan.agent, moment, evaluation))
    return evaluation, False


def _result(settings: Settings, runner: Runner, evaluation: Evaluation | None, placement: Placement) -> dict[str, Any]:
    result = {
        "env_id": settings.env_id,
        "seed": settings.seed,
        "env_steps": runner.sampler.counts.env_steps,
        "seconds": runner.seconds,
        "placement": placement.settings(),
        "episode_return_mean": runner.sampler.counts.statistics.return_mean,
    }
    by_policy = runner.sampler.counts.by_policy.items()
    result |= {f"{name}/episode_return_mean": policy.statistics.return_mean for name, policy in by_policy}
    if evaluation is not None:
        result |= {
            "evaluation_return_mean": evaluation.return_mean,
            "evaluation_return_std": evaluation.return_std,
            "evaluation_episodes": len(evaluation.returns),
            **returns_by_policy(runner.agent, evaluation),
        }
    return result
