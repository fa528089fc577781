"""Resumes a run from its newest checkpoint."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from hybridppo.agents.policies import PoliciesConfig
from hybridppo.agents.ppo.loss import LossFunction
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.agents.schedules import ADAPTIVE, ScheduleFunction, Schedules, parsed, share_left
from hybridppo.auto.auto import PlacementChoice, resolve_placement
from hybridppo.distributed.choosing import run_directory_of
from hybridppo.distributed_policies import Distributed
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.options import EnvSource, OnEnvError
from hybridppo.errors import CheckpointError, ConfigurationError, RunDirectoryError
from hybridppo.interfaces import Metrics
from hybridppo.loading import SavedAgent, new_agent, rewind_to, start_agent_from
from hybridppo.networks.making import Networks
from hybridppo.placements.by_name import placement_from_settings
from hybridppo.placements.placement import Placement
from hybridppo.reporting.callbacks import Callback
from hybridppo.reporting.loggers import Loggers, callbacks_given
from hybridppo.rollouts.advantages import AdvantageFunction
from hybridppo.run_directory.checkpoints import Checkpoint, folders
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Plan, Settings, require_own, suggests_arguments
from hybridppo.system.seeds import seed_of
from hybridppo.system.threads import kernels_taken
from hybridppo.system.validation import require_bools
from hybridppo.training import (
    OnInterrupt,
    Preparation,
    TrainResult,
    finished,
    prepared,
    require_on_interrupt,
    run_to_the_end,
    split_schedules,
)

logger = logging.getLogger(__name__)


@suggests_arguments
def resume(
    run_dir: str | Path,
    *,
    env: EnvSource | None = None,
    placement: PlacementChoice | None = None,
    agent: type[AnyAgent] | None = None,
    loss: LossFunction | None = None,
    networks: Networks | None = None,
    advantages: AdvantageFunction | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    schedules: Schedules | str | None = None,
    progress: bool = True,
    on_iteration: Callable[[Metrics], object] | None = None,
    loggers: Loggers = (),
    callbacks: Sequence[Callback] | Callback = (),
    on_interrupt: OnInterrupt = "raise",
    total_steps: int | None = None,
    total_episodes: int | None = None,
    num_workers: int | None = None,
    evaluation_episodes: int | None = None,
    evaluate_every: int | None = None,
    evaluate_episodes: int | None = None,
    evaluate_async: bool | None = None,
    target_return: float | None = None,
    track: str | None = None,
    checkpoint_seconds: float | None = None,
    keep_checkpoints: int | None = None,
    distributed: str | Distributed | None = None,
    address: str | None = None,
    env_threads: int | None = None,
    on_env_error: OnEnvError | None = None,
    worker_timeout: float | None = None,
) -> TrainResult:
    """Resume a run from its newest checkpoint.

    Networks, optimizer, schedules, counters, random generators and the rollout under way are restored exactly, and so
    are environments whose state can be saved or replayed (docs/environments.md, Resumed exactly): the run ends as if it
    had never stopped. Other environments start new episodes, and the reason is logged.

    Args:
        run_dir: the run directory.
        env: the function that makes the environment, if the run was started with one.
        placement: a placement in place of the run's own. `auto` measures again; None keeps the placement, also one that
            `auto` has chosen.
        agent: the subclass that the run was started with, if there was one.
        loss: the run's own loss, if there was one.
        networks: the function that makes the run's own networks, if there was one.
        advantages: the run's own estimate of advantages, if there was one.
        modules: modules of the same shapes as the run's own, if there were any.
        schedules: the run's schedules that are functions, if there were any; those with names are saved.
        progress: whether to show a progress bar.
        on_iteration: called with each iteration's metrics; an error in it ends the training.
        loggers: functions of each iteration's metrics; an error in one is logged.
        callbacks: as for `train`; those of the earlier training are not saved.
        on_interrupt: as for `train`.
        total_steps: Environment steps, of all environments together, after which to stop. With several agents that
            share a policy, it counts each agent's steps.
        total_episodes: Episodes of all environments together, after which to stop if that comes first.
        num_workers: Processes that step the environments; 0 steps them in this process. None lets placement auto choose
            the number; without auto, it is 1 if sampling and learning overlap, else 0.
        evaluation_episodes: Deterministic episodes to run after training; 0 for none.
        evaluate_every: Environment steps, of all environments together, between evaluations during training; 0 for
            never. Evaluations have their own environments and do not change the training. They then decide which
            checkpoint is the best.
        evaluate_episodes: Deterministic episodes in each evaluation during training; every evaluation has the same
            seeds.
        evaluate_async: Whether evaluations during training run in another process while the training continues, and are
            reported when the next one is due. None: only if sampling and learning overlap.
        target_return: Mean return at which to stop: the mean of an evaluation during training if there are any, else of
            the latest 100 episodes, once 100 episodes have ended.
        track: Loggers to write to, separated by commas: tensorboard, wandb, trackio, mlflow.
        checkpoint_seconds: The most seconds between two checkpoints.
        keep_checkpoints: How many of the newest checkpoints to keep, besides the best one by mean return.
        distributed: How the training is divided into processes: a policy such as MultiLearner(2), or its text: local,
            multi:LEARNERS:SHARDS, gpu:LEARNERS:SHARDS, central:LEARNERS:MAX_LAG; over Ray coarse:SAMPLERS,
            fine:WORKERS, environments:WORKERS. The numbers after the first may be left out.
        address: Address of a running Ray cluster, auto or HOST:PORT, for policies that run on Ray. Without an address,
            the variable RAY_ADDRESS is used; if it is not set, Ray is started on this machine.
        env_threads: Threads that step compiled environments; their number does not change the result.
        on_env_error: If an environment fails, returns invalid values, or its worker process dies: raise an error; or
            restart it, drop its unfinished episode, and count that in the metric env_restarts.
        worker_timeout: Seconds without a step after which a worker process counts as hung.

    The arguments from `total_steps` on are options of the run. None keeps the run's own; others are saved for the next
    resume, except a `total_steps` that the run has already made: then nothing is trained.

    Returns:
        The same as `train`.

    Raises:
        CheckpointError: if no checkpoint is whole, or the environment is not the run's. (A run that was killed before
            its first checkpoint begins anew, and logs that.)
        TrainingInterrupted: if a signal ended the training, unless `on_interrupt` is `return`.
    """
    given = locals()  # the arguments, among which are the options that a run may change
    require_bools(progress=progress)
    require_on_interrupt(on_interrupt)
    with contextlib.closing(run_directory_of(run_dir, distributed)) as directory:
        before = Settings.read(directory)
        settings = before.changed(given)
        own_callbacks = callbacks_given(
            run_dir, settings.run.track, on_iteration=on_iteration, loggers=loggers, callbacks=callbacks
        )
        parts: dict[str, Any] = {
            "agent": agent,
            "loss": loss,
            "networks": networks,
            "advantages": advantages,
            "modules": modules,
            "schedules": _functions(schedules, settings),
        }
        require_own(settings.own, **parts)
        source = settings.source(env)
        where = _own_placement(settings) if placement is None else resolve_placement(placement)
        checkpoint = None if directory.is_untouched else directory.load_checkpoint(to_go_on=True)
        kept, saved = directory.config, directory.path / "checkpoints"
        newest = folders(saved)[-1:]
        try:
            with prepared(source, settings.config, settings.environment, settings.run, where) as preparation:
                plan = _resumed(preparation, directory, before, settings, checkpoint, parts)
                plan = replace(plan, progress=progress, callbacks=own_callbacks)
                return finished(run_to_the_end(plan, preparation.strategy), on_interrupt)
        except ConfigurationError:
            if folders(saved)[-1:] == newest:  # else the run has trained with the new options
                directory.update_config(kept)
            raise


def _resumed(
    preparation: Preparation,
    directory: RunDirectory,
    before: Settings,
    settings: Settings,
    checkpoint: Checkpoint | None,
    parts: dict[str, Any],
) -> Plan:
    """The plan of a resumed training; the run directory is reset to its checkpoint.

    Args:
        preparation: the processes and environments.
        directory: the run directory.
        before: the settings of the run.
        settings: the settings of the resumed training.
        checkpoint: the checkpoint to continue from; None to begin anew.
        parts: the agent's class, and its own parts, by name.
    """
    settings = replace(settings, environment=preparation.options, run=preparation.run)
    require_spaces_of(settings, preparation.environments, error=CheckpointError)
    if isinstance(settings.config, PoliciesConfig):
        settings.config.require_agents(preparation.environments.agents, CheckpointError)
    if checkpoint is None:
        agent = new_agent(settings, seed=seed_of(settings.seed, "agent"), **parts)
    else:
        agent = SavedAgent.of_run(settings, checkpoint).made(**parts)
    done = 0 if checkpoint is None else checkpoint.state["sampler"]["env_steps"]
    choice = preparation.choose(agent, max(1, settings.run.total_steps - done))
    _warn_of_kernels(directory.config["versions"].get("kernels"))
    # Changed options are saved for the next resume; the placement stays the run's own, and so does its goal if the new
    # one is behind it: there is nothing to train, and the next resume trains on.
    goal = settings.run.total_steps if settings.run.total_steps > done else before.run.total_steps
    kept = replace(settings, run=replace(settings.run, total_steps=goal))
    directory.update_config({**kept.to_json(), **{name: directory.config[name] for name in ("versions", "origin")}})
    if preparation.strategy.rank == 0:  # the other learners get the checkpoint from it
        _go_back(directory, before, settings, agent, checkpoint)
    # The number of workers is a part of the choice of `auto`, as its placement is.
    settings = replace(settings, run=replace(settings.run, num_workers=choice.num_workers))
    env, environments, interruption = preparation.env, preparation.environments, preparation.interruption
    return Plan(env, settings, environments, agent, choice.placement, interruption, directory, checkpoint)


def _go_back(
    directory: RunDirectory, before: Settings, settings: Settings, agent: AnyAgent, checkpoint: Checkpoint | None
) -> None:
    """Remove what the run has written after its checkpoint; without a checkpoint, begin anew."""
    if checkpoint is not None:
        done, goal = rewind_to(directory, checkpoint), settings.run.total_steps
        _warn_of_schedules(before, settings, done)
        if goal <= done and before.run.total_steps != goal:  # a finished run is no surprise otherwise
            logger.warning(
                "total_steps=%d counts from the beginning of the run, which has made %d steps: nothing to train",
                goal,
                done,
            )
        return
    if settings.has_given_agents:
        raise RunDirectoryError(
            f"{directory.given} ended before its first checkpoint, and no file has the agents that it was given: begin "
            "a new run with them"
        )
    if settings.run.start_from is not None:
        start_agent_from(agent, settings.run.start_from)
    directory.rewind(0, 0)
    logger.warning("%s ended before its first checkpoint, and nothing came of it: it begins anew", directory.given)


def _functions(schedules: Schedules | str | None, settings: Settings) -> dict[str, ScheduleFunction] | None:
    """The schedules that are functions.

    Raises:
        CheckpointError: if named schedules differ from those of the run.
    """
    named, functions = split_schedules(schedules)
    for config in _learning(settings.config):
        own = parsed(config.schedules)
        if other := {field: name for field, name in named.items() if own.get(field) != name}:
            begun = own or "of no field"
            raise CheckpointError(f"the run was begun with the schedules {begun}, got {other}: leave it out")
    return functions


def _learning(config: AnyConfig) -> list[Any]:
    """The configuration of each policy that learns."""
    if not isinstance(config, PoliciesConfig):
        return [config]
    return [each for name, each in config.policies.items() if name not in config.played]


def _warn_of_schedules(before: Settings, now: Settings, env_steps: int) -> None:
    """Warn if another goal changes schedules, which end at the goal."""
    was, goal = before.run.total_steps, now.run.total_steps
    named = {field: name for config in _learning(now.config) for field, name in config.named_schedules.items()}
    for field, name in named.items() if was != goal and env_steps < goal else ():
        if name != ADAPTIVE and share_left(name, 1.0) < 1.0:
            shares = [100 * share_left(name, min(1.0, env_steps / steps)) for steps in (was, goal)]
            logger.warning(
                "the schedule of %s was stretched to the new total_steps, %s instead of %s: it jumps from %.0f %% to "
                "%.0f %% of its start",
                *(field, f"{goal:,}", f"{was:,}", *shares),
            )


def _warn_of_kernels(was: object) -> None:
    """Warn if NumPy rounds otherwise than when the run began."""
    now = kernels_taken()
    if was and now and was != now:
        logger.warning(
            "the run was begun with NumPy's kernels for %s, and goes on with those for %s, which round otherwise: it "
            "goes on as well, and not to the same bits",
            *(was, now),
        )


def _own_placement(settings: Settings) -> Placement:
    try:
        return placement_from_settings(settings.placement)
    except (KeyError, TypeError) as error:
        raise RunDirectoryError(f"config.json is damaged: placement: {type(error).__name__}: {error}") from error
