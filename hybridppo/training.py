"""Training: from an environment to a trained agent.

    result = hybridppo.train("CartPole-v1", total_steps=100_000)
    action = result.agent.act(observation)

`train` puts the parts together, and `run_to_the_end` drives them; `resume` (`resuming.py`) ends there too.
One long file, so that the way from `train` to the loop is not scattered; a third of it is signatures.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.loss import LossFunction
from hybridppo.agents.ppo.memory import explaining_memory
from hybridppo.agents.registry import agent_class
from hybridppo.distribution.alone import Alone
from hybridppo.distribution.teams import team_of
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.evaluating import evaluate_agent
from hybridppo.interfaces import Metrics
from hybridppo.interruption import Interruption, Stopped
from hybridppo.loading import go_on
from hybridppo.networks.making import Networks
from hybridppo.networks.precision import float32_products
from hybridppo.networks.threads import limit_threads
from hybridppo.options import GROUPS, RunOptions, fields_of, made, takes_options
from hybridppo.placements.auto.auto import Auto
from hybridppo.placements.auto.named import PlacementChoice, resolve_placement
from hybridppo.placements.base import Placement
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.evaluation import Evaluation
from hybridppo.runners.profiling import Profiler
from hybridppo.runners.runner import Runner
from hybridppo.seeds import fresh_seed, seed_of
from hybridppo.settings import Settings, name_of_source


@dataclass(frozen=True)
class TrainResult:
    """What a training run gives back."""

    agent: PPO
    """The trained agent, on its learning device."""
    metrics: Metrics
    """The last iteration's metrics; a run directory's `metrics.jsonl` holds those of all."""
    run_dir: Path | None
    """Where everything was written, or None."""
    seed: int
    """The seed used, also where none was given."""
    evaluation: Evaluation | None
    """The evaluation after training, where one was asked for."""
    interrupted: bool
    """Whether Ctrl-C or another signal ended the training, or the evaluation after it, early; `resume` goes on."""
    saved: bool
    """Whether the last checkpoint is on the disk. False where the disk would not take it, which was warned of."""


@dataclass(frozen=True)
class Reporting:
    """Who is told of a training while it goes on."""

    progress: bool = True
    """Whether to show a progress bar."""
    on_iteration: Callable[[Metrics], object] = lambda metrics: None
    loggers: Sequence[Callable[[Metrics], object]] = ()


@dataclass(frozen=True)
class Job:
    """A training that is about to begin, or to go on from a checkpoint."""

    env: EnvSource
    settings: Settings
    environments: Environments
    agent: PPO
    placement: Placement
    interruption: Interruption
    directory: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    profile: bool = False
    reporting: Reporting = field(default_factory=Reporting)
    team: Alone = field(default_factory=Alone)


@takes_options(fields_of(*GROUPS))
def train(
    env: EnvSource,
    *,
    placement: PlacementChoice = "auto",
    config: PPOConfig | None = None,
    agent: "type[PPO] | PPO | None" = None,
    loss: LossFunction | None = None,
    networks: Networks | None = None,
    run_dir: str | Path | None = None,
    profile: bool = False,
    progress: bool = True,
    on_iteration: Callable[[Metrics], object] = lambda metrics: None,
    loggers: Sequence[Callable[[Metrics], object]] = (),
    **options: Any,
) -> TrainResult:
    """Train an agent.

    Args:
        env: an environment's id, or a function that makes an environment (or a vector of `num_envs`).
        placement: where to sample and where to learn: a name of the command line's, or a placement. `auto` measures,
            for at most 5 seconds and 5 % of the run, and takes the fastest that gives what the seed says.
        config: the agent's settings; its type chooses the agent.
        agent: a subclass to train instead of the library's agent, or an agent that there is already.
        loss: a loss of one's own, see `hybridppo.agents.ppo.loss`. Autograd then computes the gradient.
        networks: a function that makes networks of one's own, see `hybridppo.networks.making`.
        run_dir: a folder to make and write to; None writes nothing.
        profile: whether to write a trace of iterations 3 to 7 into the run directory, for chrome://tracing or
            https://ui.perfetto.dev.
        progress: whether to show a progress bar.
        on_iteration: called with each iteration's metrics; an error in it ends the training.
        loggers: called likewise, as `wandb.log` can be; an error in one is warned of, and training goes on with the
            files in the run directory.
        **options: replaced by the options of `GROUPS`.

    Raises:
        HybridPPOError: whatever is wrong with the arguments or the environment, in one clear message.
    """
    options = {**options, "seed": fresh_seed() if options.get("seed") is None else options["seed"]}
    run, environment_options = made(RunOptions, options), made(EnvironmentOptions, options)
    assert run.seed is not None
    if profile and run_dir is None:
        raise ConfigurationError("profile=True writes its trace into the run directory: name one, as run_dir")
    config = _config(config, agent, loss, networks)
    team = team_of(run, environment_options.worker_timeout)
    team.check(config, environment_options, run)
    meant = team.placement(resolve_placement(placement))
    with contextlib.ExitStack() as stack:
        stack.enter_context(team)
        run = team.settled(run)
        assert run.seed is not None  # given above, where there was none
        interruption = stack.enter_context(Interruption(saves=run_dir is not None))
        making = time.perf_counter()
        environments = team.environments(env, config.num_envs, environment_options)
        seconds_to_make = time.perf_counter() - making
        stack.callback(environments.close)
        table = None
        with _explaining_memory(config, environments):
            trained = _agent(agent, environments, config, seed_of(run.seed, "agent"), loss, networks)
            if isinstance(meant, Auto):
                choice = meant.choose(
                    env,
                    environments,
                    config,
                    total_steps=run.total_steps,
                    num_workers=run.num_workers,
                    options=environment_options,
                    agent=trained,
                    seconds_to_make=seconds_to_make,
                )
                resolved, run, table = choice.placement, replace(run, num_workers=choice.num_workers), choice.table
                trained.config = replace(config, torch_threads=choice.torch_threads)
            else:
                resolved, trained.config = meant, replace(config, torch_threads=config.torch_threads or 1)
        settings = Settings(
            env_id=name_of_source(env),
            env_is_registered=isinstance(env, str),
            config=trained.config,
            environment=environment_options,
            run=run,
            placement=resolved.settings(),
            observation_space=environments.observation_space,
            action_space=environments.action_space,
            own={what: name_of_source(value) for what, value in trained.own.items()},
        )
        writes = run_dir is not None and team.rank == 0
        directory = RunDirectory.create(run_dir, settings.to_json()) if run_dir is not None and writes else None
        reporting = Reporting(progress, on_iteration, loggers)
        profile = profile and writes
        job = Job(
            env, settings, environments, trained, resolved, interruption, directory, None, profile, reporting, team
        )
        try:
            if directory is not None and table is not None:
                directory.write_placements(table)
            return run_to_the_end(job)
        except BaseException:
            if directory is not None:
                directory.discard()  # what could not even begin leaves no folder in the way of the next attempt
            raise


def run_to_the_end(job: Job) -> TrainResult:
    """Train to the end that the settings name, from the start or from a checkpoint; evaluate; write the result."""
    team = job.team
    job = team.begin(job)
    settings, agent, placement, directory = job.settings, job.agent, job.placement, job.directory
    config, run = agent.config, settings.run
    memory = _explaining_memory(config, job.environments)
    products = float32_products(config.precision, placement.sampling_device, placement.learning_device)
    with limit_threads(config.torch_threads or 1), memory, products:
        placement.prepare(agent)
        sampler = team.sampler(
            job.env,
            job.environments,
            agent,
            placement,
            num_steps=config.num_steps,
            num_episodes=config.episodes_per_rollout,
            num_workers=run.num_workers,
            options=settings.environment,
            env_seed=seed_of(settings.seed, "environments"),
            noise=np.random.default_rng(seed_of(settings.seed, "noise")),
        )
        runner = team.runner(
            agent,
            sampler,
            placement,
            total_steps=run.total_steps,
            total_episodes=run.total_episodes,
            run_directory=directory,
            checkpoint_seconds=run.checkpoint_seconds,
            keep_checkpoints=run.keep_checkpoints,
            progress=job.reporting.progress,
            on_iteration=job.reporting.on_iteration,
            loggers=job.reporting.loggers,
            interruption=job.interruption,
        )
        trace = directory.path / "trace.json" if directory is not None and job.profile else None
        profiler = Profiler(runner, job.environments, trace) if trace is not None else None
        try:
            if job.checkpoint is not None and directory is not None:
                go_on(runner, job.checkpoint, settings.seed, directory)
            try:
                metrics = runner.run()
                team.end()
            finally:
                if profiler is not None:
                    profiler.close()
            evaluation, interrupted = None, runner.interrupted
            if run.evaluation_episodes > 0 and not interrupted:
                try:
                    evaluation = _evaluation_after(job)
                except Stopped:
                    interrupted = True
            if directory is not None and not interrupted:
                directory.write_result(_result(settings, runner, evaluation, placement))
        finally:
            sampler.close()
            if directory is not None:
                directory.close()
    run_dir = directory.path if directory is not None and team.rank == 0 else None
    return TrainResult(agent, metrics, run_dir, settings.seed, evaluation, interrupted, runner.saved)


def _evaluation_after(job: Job) -> Evaluation:
    settings = job.settings
    return evaluate_agent(
        job.agent,
        job.env,
        episodes=settings.run.evaluation_episodes,
        seed=seed_of(settings.seed, "evaluation"),
        autoreset_mode=settings.environment.autoreset_mode,
        on_env_error=settings.environment.on_env_error,
        placement=job.placement,
        progress=job.reporting.progress,
        should_stop=lambda: job.interruption.requested,
    )


def _result(settings: Settings, runner: Runner, evaluation: Evaluation | None, placement: Placement) -> dict[str, Any]:
    result = {
        "env_id": settings.env_id,
        "seed": settings.seed,
        "env_steps": runner.sampler.env_steps,
        "seconds": runner.seconds,
        "placement": placement.settings(),
        "episode_return_mean": runner.sampler.statistics.return_mean,
    }
    if evaluation is not None:
        result |= {
            "evaluation_return_mean": evaluation.return_mean,
            "evaluation_return_std": evaluation.return_std,
            "evaluation_episodes": len(evaluation.returns),
        }
    return result


def _config(config: PPOConfig | None, agent: object, loss: object, networks: object) -> PPOConfig:
    """The configuration of what is to be trained."""
    if isinstance(agent, PPO):
        if config not in (None, agent.config):
            raise ConfigurationError("an agent that there is already has a config of its own: leave config=... out")
        if loss is not None or networks is not None:
            raise ConfigurationError("an agent that there is already has a loss and networks: leave them out")
        return agent.config
    if agent is not None and not (isinstance(agent, type) and issubclass(agent, PPO)):
        raise ConfigurationError(f"agent must be a subclass of PPO or a PPO, got {name_of_source(agent)}")
    config = config if config is not None else PPOConfig()
    agent_class(config)  # refuses what is no configuration
    return config


def _agent(
    agent: "type[PPO] | PPO | None",
    environments: Environments,
    config: PPOConfig,
    seed: int,
    loss: LossFunction | None,
    networks: Networks | None,
) -> PPO:
    spaces = environments.observation_space, environments.action_space
    if isinstance(agent, PPO):
        if (agent.observation_space, agent.action_space) != spaces:
            raise ConfigurationError(
                f"the agent was made for {agent.observation_space} and {agent.action_space}, and the environment has "
                f"{spaces[0]} and {spaces[1]}"
            )
        return agent
    kind = agent if agent is not None else agent_class(config)
    return kind(*spaces, config, seed=seed, loss=loss, networks=networks)


def _explaining_memory(config: PPOConfig, environments: Environments) -> AbstractContextManager[None]:
    return explaining_memory(config, environments.observation_space, environments.action_space)
