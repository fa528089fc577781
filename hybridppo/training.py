"""The public face: train, resume, evaluate, load.

result = hybridppo.train("CartPole-v1", total_steps=100_000)
action = result.agent.act(observation)
"""

import contextlib
import logging
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from hybridppo._version import __version__
from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.memory import explaining_memory
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import WORKER_TIMEOUT, AutoresetName, EnvSource, OnEnvError, Vectorization
from hybridppo.errors import CheckpointError, ConfigurationError, HybridPPOError, RunDirectoryError, shown
from hybridppo.interfaces import Metrics
from hybridppo.interruption import Interruption, Stopped
from hybridppo.networks.precision import float32_products
from hybridppo.networks.threads import limit_threads
from hybridppo.placements.auto.auto import Auto
from hybridppo.placements.base import Placement
from hybridppo.placements.by_name import make_placement, placement_from_settings
from hybridppo.placements.single_device import SingleDevice
from hybridppo.reporting.progress import ProgressBar
from hybridppo.run_directory import directory as run_directories
from hybridppo.run_directory.checkpoints import FORMAT_VERSION, Checkpoint
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.runners.assembly import make_runner, make_sampler
from hybridppo.runners.evaluation import Evaluation
from hybridppo.runners.evaluation import evaluate as run_episodes
from hybridppo.runners.profiling import Profiler
from hybridppo.runners.runner import Runner
from hybridppo.settings import LARGEST_SEED, is_seconds, settings_of
from hybridppo.spaces.distributions import distribution_for
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import space_from_json, space_to_json
from hybridppo.validation import whole

logger = logging.getLogger(__name__)

PlacementChoice = str | Placement | Auto


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


def train(
    env: EnvSource,
    *,
    total_steps: int,
    total_episodes: int | None = None,
    seed: int | None = None,
    placement: PlacementChoice = "auto",
    config: PPOConfig | None = None,
    run_dir: str | Path | None = None,
    evaluation_episodes: int = 0,
    num_workers: int | None = None,
    vectorization: Vectorization = "auto",
    autoreset_mode: AutoresetName | None = None,
    on_env_error: OnEnvError = "raise",
    worker_timeout: float = WORKER_TIMEOUT,
    action_masks: bool = False,
    checkpoint_seconds: float = 60.0,
    keep_checkpoints: int = 3,
    profile: bool = False,
    progress: bool = True,
    on_iteration: Callable[[Metrics], object] = lambda metrics: None,
    loggers: Sequence[Callable[[Metrics], object]] = (),
) -> TrainResult:
    """Train PPO.

    Args:
        env: an environment's id, or a function that makes an environment (or a vector of `num_envs`).
        total_steps: environment steps, of all environments together, after which to stop.
        total_episodes: episodes, likewise, after which to stop if that comes first; None for no such limit.
        seed: of everything random; None takes one from the operating system, and the result tells it.
        placement: where to sample and where to learn: a name of the command line's, or a placement. `auto` measures,
            for at most 5 seconds and 5 % of the run, and takes the fastest that gives what the seed says.
        config: PPO's settings.
        run_dir: a folder to make and write to; None writes nothing.
        evaluation_episodes: deterministic episodes to run after training; 0 for none.
        num_workers: processes that step the environments, each its share; 0 steps them in this one. None takes one
            where sampling and learning overlap, and else none, or as many as `auto` finds best. Workers pay where a
            step is slow.
        vectorization: how the copies of the environment are stepped, see `make_environments`.
        autoreset_mode: for vector environments that do not declare theirs.
        on_env_error: what to do where an environment fails, or returns what cannot be used, or its worker process
            dies: `raise`, or `restart`: make it anew, drop its unfinished episode, and count it as `env_restarts`.
        worker_timeout: seconds without a step after which a worker process counts as hung.
        action_masks: whether to choose only among the actions that the environment allows, in `info["action_mask"]`
            of every reset and step: `[n]`, not 0 for each of its `Discrete(n)` actions that is.
        checkpoint_seconds: how often to save, at least.
        keep_checkpoints: how many of the newest checkpoints to keep; the best of all by mean return is kept besides.
        profile: whether to write a trace of iterations 3 to 7 into the run directory, for chrome://tracing or
            https://ui.perfetto.dev.
        progress: whether to show a progress bar.
        on_iteration: called with each iteration's metrics; an error in it ends the training.
        loggers: called likewise, as `wandb.log` can be; an error in one is warned of, and training goes on with the
            files in the run directory.

    Raises:
        HybridPPOError: whatever is wrong with the arguments or the environment, in one clear message.
    """
    config = config if config is not None else PPOConfig()
    _require_whole(total_steps=total_steps, keep_checkpoints=keep_checkpoints)
    _require_whole(0, evaluation_episodes=evaluation_episodes)
    if total_episodes is not None:
        _require_whole(total_episodes=total_episodes)
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    _require_whole(0, below=LARGEST_SEED, seed=seed)
    if not is_seconds(checkpoint_seconds):
        raise ConfigurationError(f"checkpoint_seconds must be a number of at least 0, got {shown(checkpoint_seconds)}")
    if num_workers is not None:
        _require_whole(0, num_workers=num_workers)
    if profile and run_dir is None:
        raise ConfigurationError("profile=True writes its trace into the run directory: name one, as run_dir")
    meant = resolve_placement(placement)
    if not (is_seconds(worker_timeout) and worker_timeout > 0):
        raise ConfigurationError(f"worker_timeout must be positive, got {shown(worker_timeout)}")
    options: dict[str, Any] = {
        "vectorization": vectorization,
        "autoreset_mode": autoreset_mode,
        "on_env_error": on_env_error,
        "worker_timeout": worker_timeout,
        "action_masks": action_masks,
    }
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption(saves=run_dir is not None))
        making = time.perf_counter()
        environments = make_environments(env, config.num_envs, **options)
        seconds_to_make = time.perf_counter() - making
        stack.callback(environments.close)
        table = None
        if isinstance(meant, Auto):
            with _explaining_memory(config, environments.observation_space, environments.action_space):
                choice = meant.choose(
                    env,
                    environments,
                    config,
                    total_steps=total_steps,
                    num_workers=num_workers,
                    options=options,
                    seconds_to_make=seconds_to_make,
                )
            resolved, num_workers, table = choice.placement, choice.num_workers, choice.table
            config = replace(config, torch_threads=choice.torch_threads)
        else:
            resolved, config = meant, replace(config, torch_threads=config.torch_threads or 1)
        with _explaining_memory(config, environments.observation_space, environments.action_space):
            agent = PPO(environments.observation_space, environments.action_space, config, seed=_seed(seed, "agent"))
        settings = {
            "format_version": FORMAT_VERSION,
            "env_id": _name_of(env),
            "env_is_registered": isinstance(env, str),
            "seed": seed,
            "total_steps": total_steps,
            "total_episodes": total_episodes,
            "placement": resolved.settings(),
            "config": config.to_json(),
            "num_workers": num_workers,
            "vectorization": vectorization,
            "autoreset_mode": autoreset_mode,
            "on_env_error": on_env_error,
            "worker_timeout": worker_timeout,
            "action_masks": action_masks,
            "evaluation_episodes": evaluation_episodes,
            "checkpoint_seconds": checkpoint_seconds,
            "keep_checkpoints": keep_checkpoints,
            "observation_space": space_to_json(environments.observation_space),
            "action_space": space_to_json(environments.action_space),
            "versions": {
                "hybridppo": __version__,
                "torch": torch.__version__,
                "gymnasium": gym.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        directory = RunDirectory.create(run_dir, settings) if run_dir is not None else None
        try:
            if directory is not None and table is not None:
                directory.write_placements(table)
            return _run(
                env, settings, environments, agent, resolved, directory, None, progress, on_iteration, loggers,
                interruption, profile,
            )  # fmt: skip
        except BaseException:
            if directory is not None:
                directory.discard()  # what could not even begin leaves no folder in the way of the next attempt
            raise


def resume(
    run_dir: str | Path,
    *,
    total_steps: int | None = None,
    total_episodes: int | None = None,
    env: EnvSource | None = None,
    placement: PlacementChoice | None = None,
    num_workers: int | None = None,
    progress: bool = True,
    on_iteration: Callable[[Metrics], object] = lambda metrics: None,
    loggers: Sequence[Callable[[Metrics], object]] = (),
) -> TrainResult:
    """Go on with a run from its newest checkpoint.

    Networks, optimizer, schedules, counters, random generators and what was under way go on exactly, and so do the
    environments where their state can be saved (`hybridppo.environments.state`): the run ends as if it had never
    stopped. Where it cannot be, they start new episodes, which is told with the reason.

    Args:
        run_dir: of the run.
        total_steps: a new goal; None keeps the run's own.
        total_episodes: a new limit, likewise.
        env: the function that makes the environment, where the run was started with one.
        placement: another placement than the run's own. What `auto` chose for the run is its own; only asked for
            anew, here, does it measure again.
        num_workers: another number of processes than the run's own.
        progress: whether to show a progress bar.
        on_iteration: called with each iteration's metrics; an error in it ends the training.
        loggers: called likewise; errors are warned of.

    Raises:
        CheckpointError: where no checkpoint is whole, or the environment is not the one that was trained in. (A run
            that was killed before it could write one begins anew, and says so.)
    """
    directory = RunDirectory.open(run_dir)
    settings = settings_of(directory)
    config = PPOConfig(**settings["config"])
    env = _source(settings, env)
    if total_steps is not None:
        _require_whole(total_steps=total_steps)
        settings["total_steps"] = total_steps
    if total_episodes is not None:
        _require_whole(total_episodes=total_episodes)
        settings["total_episodes"] = total_episodes
    if num_workers is not None:
        _require_whole(0, num_workers=num_workers)
        settings["num_workers"] = num_workers
    meant = _placement_of(settings) if placement is None else resolve_placement(placement)
    checkpoint = None if directory.is_untouched else directory.load_checkpoint()
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        environments = _environments(settings, env, config.num_envs)
        stack.callback(environments.close)
        if isinstance(meant, Auto):
            resolved = _chosen_anew(meant, env, environments, config, settings, checkpoint)
        else:
            resolved = meant
        agent = _agent_of(settings, checkpoint)
        directory.update_config(settings)  # a new goal holds for whoever resumes next
        if checkpoint is None:
            directory.rewind(0, 0)
            logger.warning("%s ended before its first checkpoint, and nothing came of it: it begins anew", run_dir)
        else:
            with _fitting("this run"):
                loop, sampler = checkpoint.state["runner"], checkpoint.state["sampler"]
                iteration, number = whole(loop, "iteration"), whole({"number": sampler["env_steps"], **loop}, "number")
            directory.rewind(iteration, number)
        return _run(
            env, settings, environments, agent, resolved, directory, checkpoint, progress, on_iteration, loggers,
            interruption,
        )  # fmt: skip


def _run(
    env: EnvSource,
    settings: dict[str, Any],
    environments: Environments,
    agent: PPO,
    placement: Placement,
    directory: RunDirectory | None,
    checkpoint: Checkpoint | None,
    progress: bool,
    on_iteration: Callable[[Metrics], object],
    loggers: Sequence[Callable[[Metrics], object]],
    interruption: Interruption,
    profile: bool = False,
) -> TrainResult:
    """Train to the end of `settings`, from the start or from a checkpoint; evaluate; write the result."""
    config, seed = agent.config, settings["seed"]
    memory = _explaining_memory(config, agent.observation_space, agent.action_space)
    products = float32_products(config.precision, placement.sampling_device, placement.learning_device)
    with limit_threads(config.torch_threads or 1), memory, products:
        placement.prepare(agent)
        sampler = make_sampler(
            env,
            environments,
            agent,
            placement,
            num_steps=config.num_steps,
            num_episodes=config.episodes_per_rollout,
            num_workers=settings["num_workers"],
            options=_environment_options(settings),
            worker_timeout=settings["worker_timeout"],
            env_seed=_seed(seed, "environments"),
            noise=np.random.default_rng(_seed(seed, "noise")),
        )
        runner = make_runner(
            agent,
            sampler,
            placement,
            total_steps=settings["total_steps"],
            total_episodes=settings["total_episodes"],
            run_directory=directory,
            checkpoint_seconds=settings["checkpoint_seconds"],
            keep_checkpoints=settings["keep_checkpoints"],
            progress=progress,
            on_iteration=on_iteration,
            loggers=loggers,
            interruption=interruption,
        )
        profiler = Profiler(runner, environments, directory.path / "trace.json") if directory and profile else None
        try:
            if checkpoint is not None and directory is not None:
                _go_on(runner, checkpoint, seed, directory)
            try:
                metrics = runner.run()
            finally:
                if profiler is not None:
                    profiler.close()
            evaluation, interrupted = None, runner.interrupted
            if settings["evaluation_episodes"] > 0 and not interrupted:
                try:
                    evaluation = evaluate_agent(
                        agent,
                        env,
                        episodes=settings["evaluation_episodes"],
                        seed=_seed(seed, "evaluation"),
                        autoreset_mode=settings["autoreset_mode"],
                        on_env_error=settings["on_env_error"],
                        placement=placement,
                        progress=progress,
                        should_stop=lambda: interruption.requested,
                    )
                except Stopped:
                    interrupted = True
            if directory is not None and not interrupted:
                directory.write_result(_result(settings, runner, evaluation, placement))
        finally:
            sampler.close()
            if directory is not None:
                directory.close()
    run_dir = directory.path if directory is not None else None
    return TrainResult(agent, metrics, run_dir, seed, evaluation, interrupted, runner.saved)


def _go_on(runner: Runner, checkpoint: Checkpoint, seed: int, directory: RunDirectory) -> None:
    """Bring a fresh runner to where the checkpoint was written, and say what cannot be as it was."""
    with _fitting("this run"):
        env_seed = _seed(seed, f"environments resumed at iteration {checkpoint.state['runner']['iteration']}")
        reason = runner.load_state(checkpoint.tensors, checkpoint.state, env_seed=env_seed)
    but = f" but the environments, which start new episodes: {reason}" if reason is not None else ""
    logger.info("resuming %s: everything is as it was%s", directory.path, but)


def _result(
    settings: dict[str, Any], runner: Runner, evaluation: Evaluation | None, placement: Placement
) -> dict[str, Any]:
    result = {
        "env_id": settings["env_id"],
        "seed": settings["seed"],
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


def evaluate_agent(
    agent: PPO,
    env: EnvSource,
    *,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    autoreset_mode: AutoresetName | None = None,
    on_env_error: OnEnvError = "raise",
    placement: Placement | None = None,
    progress: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Run whole episodes with an agent, in environments made for it and closed again.

    Args:
        agent: what to evaluate.
        env: an environment's id, or a function that makes one.
        episodes: how many; up to 32 run side by side.
        seed: of the environments, and of random actions.
        deterministic: take the most probable actions.
        autoreset_mode: for vector environments that do not declare theirs.
        on_env_error: as for `train`; an episode that was broken off does not count.
        placement: one that the agent is prepared for; None samples where the agent is.
        progress: whether to show a progress bar.
        should_stop: asked before each step; where it says so, `Stopped` is raised.
    """
    _require_whole(episodes=episodes)
    if placement is None:
        placement = SingleDevice(agent.parameters.values.device)
        placement.prepare(agent)
    # A function may make a vector of the training's size only.
    num_envs = agent.config.num_envs if not isinstance(env, str) else min(episodes, 32)
    environments = make_environments(
        env,
        num_envs,
        autoreset_mode=autoreset_mode,
        on_env_error=on_env_error,
        action_masks=isinstance(agent.observation_space, MaskedObservation),
    )
    bar = ProgressBar(enabled=progress, total=episodes, unit="episode", desc="evaluation", leave=False)
    try:
        products = float32_products(agent.config.precision, placement.sampling_device)
        with bar, products, placement.evaluating(agent) as actor:
            return run_episodes(
                actor,
                agent.distribution,
                environments,
                episodes=episodes,
                # Environments take neighbouring seeds; those of neighbouring evaluations must not be the same.
                seed=_seed(seed, "evaluation"),
                deterministic=deterministic,
                on_episode=bar.advance,
                should_stop=should_stop,
            )
    finally:
        environments.close()


def evaluate(
    run_dir: str | Path,
    *,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    env: EnvSource | None = None,
    checkpoint: WhichCheckpoint = "latest",
    progress: bool = True,
) -> Evaluation:
    """Evaluate a checkpoint of a run, on the CPU; `checkpoint` as for `load`, the others as for `evaluate_agent`."""
    settings = settings_of(RunDirectory.open(run_dir))
    return evaluate_agent(
        load(run_dir, checkpoint),
        _source(settings, env),
        episodes=episodes,
        seed=seed,
        deterministic=deterministic,
        autoreset_mode=settings["autoreset_mode"],
        on_env_error=settings["on_env_error"],
        progress=progress,
    )


def load(run_dir: str | Path, checkpoint: WhichCheckpoint = "latest") -> PPO:
    """The agent of a run's checkpoint, on the CPU, wherever it was trained.

    Args:
        run_dir: of the run.
        checkpoint: the `latest`, or the `best`: of the checkpoints that were written, the one of the highest mean
            return over 100 episodes. Until 100 have ended, the latest is the best.

    Raises:
        CheckpointError: where no checkpoint is whole.
        RunDirectoryError: where `run_dir` is no run directory.
    """
    directory = RunDirectory.open(run_dir)
    return _agent_of(settings_of(directory), directory.load_checkpoint(checkpoint))


def resolve_placement(placement: PlacementChoice) -> Placement | Auto:
    """The placement meant by a name, or by itself; `Auto` has yet to choose."""
    if placement == "auto":
        return Auto()
    if isinstance(placement, str):
        return make_placement(placement)
    if not isinstance(placement, (Placement, Auto)):
        raise ConfigurationError(f"placement must be a name or a placement, got {shown(placement)}")
    return placement


def _placement_of(settings: dict[str, Any]) -> Placement:
    """A run's own placement."""
    try:
        return placement_from_settings(settings["placement"])
    except (KeyError, TypeError) as error:
        raise RunDirectoryError(f"config.json is damaged: placement: {type(error).__name__}: {error}") from error


def _chosen_anew(
    auto: Auto,
    env: EnvSource,
    environments: Environments,
    config: PPOConfig,
    settings: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> Placement:
    """The placement for what is left of a run; its worker processes and threads stay as they are."""
    env_steps = 0 if checkpoint is None else checkpoint.state["sampler"]["env_steps"]
    return auto.choose(
        env,
        environments,
        config,
        total_steps=max(1, settings["total_steps"] - env_steps),
        num_workers=settings["num_workers"],
        options=_environment_options(settings),
    ).placement


def default_run_dir(env: EnvSource, seed: int) -> Path:
    """A fresh folder under `runs/`."""
    return run_directories.fresh_path(_name_of(env), seed)


def _agent_of(settings: dict[str, Any], checkpoint: Checkpoint | None) -> PPO:
    """The agent of a run, as it was at a checkpoint; None for as it began."""
    observation_space = space_from_json(settings["observation_space"])
    action_space = space_from_json(settings["action_space"])
    config = PPOConfig(**settings["config"])
    with _explaining_memory(config, observation_space, action_space):
        agent = PPO(observation_space, action_space, config, seed=_seed(settings["seed"], "agent"))
    if checkpoint is None:
        return agent
    with _fitting("the network that config.json describes"):
        tensors = {n: t for n, t in checkpoint.tensors.items() if n.partition(".")[0] not in checkpoint.state}
        agent.load_state(tensors, checkpoint.state["agent"])
    return agent


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Within it, whatever torch and NumPy raise for what is not theirs is the checkpoint's fault."""
    try:
        yield
    except HybridPPOError:
        raise
    except Exception as error:
        raise CheckpointError(f"the checkpoint does not fit {what}: {type(error).__name__}: {error}") from error


def _explaining_memory(
    config: PPOConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> AbstractContextManager[None]:
    outputs = distribution_for(action_space).output_size
    return explaining_memory(config, ObservationEncoder(observation_space), outputs)


def _environment_options(settings: dict[str, Any]) -> dict[str, Any]:
    """How `make_environments` is to make the environments of a run."""
    names = ("vectorization", "autoreset_mode", "on_env_error", "worker_timeout", "action_masks")
    return {name: settings[name] for name in names}


def _environments(settings: dict[str, Any], env: EnvSource, num_envs: int) -> Environments:
    """The environments of a run, refused where their spaces are not those it was trained with."""
    environments = make_environments(env, num_envs, **_environment_options(settings))
    differences = [
        f"{name} was {settings[name]} and is {found}"
        for name in ("observation_space", "action_space")
        if (found := space_to_json(getattr(environments, name))) != settings[name]
    ]
    if differences:
        environments.close()
        raise CheckpointError(f"the environment is not the one that was trained in: {'; '.join(differences)}")
    return environments


def _source(settings: dict[str, Any], env: EnvSource | None) -> EnvSource:
    if settings["env_is_registered"]:
        if env is not None and env != settings["env_id"]:
            raise CheckpointError(f"the run was trained in {settings['env_id']!r}, not in {_name_of(env)!r}")
        return str(settings["env_id"])
    if env is None:
        raise RunDirectoryError(
            f"the run's environment was made by a function, {settings['env_id']!r}: pass it again in Python, as env=..."
        )
    return env


def _name_of(env: EnvSource) -> str:
    return env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__name__)


def _seed(seed: int, owner: str) -> int:
    """A seed of its own for each owner of random numbers: far apart also where seeds are neighbours."""
    return int(np.random.SeedSequence([seed, *owner.encode()]).generate_state(1)[0] >> 1)


def _require_whole(minimum: int = 1, *, below: int = 2**63, **values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigurationError(f"{name} must be a whole number of at least {minimum}, got {shown(value)}")
        if value >= below:
            raise ConfigurationError(f"{name} must be below {below}, got {shown(value)}")
