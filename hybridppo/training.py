"""Training: from an environment to a trained agent.

    result = hybridppo.train("CartPole-v1", total_steps=100_000)
    action = result.agent.act(observation)

`train` makes the parts of a training from its arguments, `resume` those of a run that has been stopped, and
`run_to_the_end` of `running.py` runs them.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
from torch import nn

from hybridppo.agents import PPOConfig
from hybridppo.agents.policies import PoliciesConfig, PolicyOf, by_id, policies_of, spaces_of_policy
from hybridppo.agents.ppo.loss import LossFunction
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.agents.registry import (
    OF_PPO,
    AnyAgent,
    AnyConfig,
    agent_class,
    critics_see,
    default_config,
    explaining_memory,
    make_agent,
    replaced,
)
from hybridppo.agents.schedules import ADAPTIVE, ScheduleFunction, Schedules, parsed, share_left
from hybridppo.auto.auto import PlacementChoice, resolve_placement
from hybridppo.compiled.modules import require_numba
from hybridppo.config_files import arguments_from
from hybridppo.distributed.choosing import run_directory_of, telling_others
from hybridppo.distributions.own import MakeDistribution
from hybridppo.environments.base import Environments
from hybridppo.environments.checks import doubts_about, require_spaces_of
from hybridppo.environments.options import (
    AutoresetName,
    EnvironmentOptions,
    EnvSource,
    OnEnvError,
    Vectorization,
    for_critics,
    is_held_by_json,
)
from hybridppo.environments.wrappers import has_mask
from hybridppo.errors import CheckpointError, ConfigurationError, RunDirectoryError, TrainingInterrupted, shown
from hybridppo.evaluation import compiled_environments, compiled_if_possible
from hybridppo.interfaces import Metrics
from hybridppo.loading import SavedAgent, given_policies, new_agent, put_networks, rewind_to, start_agent_from
from hybridppo.networks.making import Networks
from hybridppo.placements.placement import Placement, placement_from_settings
from hybridppo.reporting.callbacks import Callback
from hybridppo.reporting.loggers import Loggers, callbacks_given
from hybridppo.rollouts.advantages import AdvantageFunction
from hybridppo.run_directory.checkpoints import Checkpoint, folders
from hybridppo.run_directory.directory import RunDirectory, require_free
from hybridppo.running import Preparation, TrainResult, prepared, run_to_the_end
from hybridppo.settings import (
    Distributed,
    RunOptions,
    SelfPlay,
    Settings,
    made,
    name_of_source,
    origin,
    require_own,
    suggests_arguments,
    tell_what_runs,
)
from hybridppo.spaces.of_agents import each_space
from hybridppo.system.seeds import fresh_seed, seed_of
from hybridppo.system.threads import kernels_taken
from hybridppo.system.validation import require_bools

logger = logging.getLogger(__name__)

OnInterrupt = Literal["raise", "return"]


@partial(suggests_arguments, within=telling_others, from_file=arguments_from)
def train(
    env: EnvSource,
    *,
    total_steps: int,
    placement: PlacementChoice = "auto",
    config: AnyConfig | Mapping[str, PPOConfig | PPO | str | Path] | str | Path | None = None,
    agent: type[AnyAgent] | AnyAgent | None = None,
    loss: LossFunction | None = None,
    networks: Networks | None = None,
    advantages: AdvantageFunction | None = None,
    action_distribution: MakeDistribution | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    schedules: Schedules | str | None = None,
    settings: Mapping[str, Any] | None = None,
    policy_of: PolicyOf | None = None,
    run_dir: str | Path | None = None,
    compiled: bool = False,
    profile: bool = False,
    progress: bool = True,
    verbose: bool = False,
    debug: bool = False,
    on_iteration: Callable[[Metrics], object] | None = None,
    loggers: Loggers = (),
    callbacks: Sequence[Callback] | Callback = (),
    on_interrupt: OnInterrupt = "raise",
    total_episodes: int | None = None,
    seed: int | None = None,
    num_workers: int | None = None,
    evaluation_episodes: int = 0,
    evaluate_every: int = 0,
    episodes_per_evaluation: int = 10,
    evaluate_async: bool | None = None,
    target_return: float | None = None,
    track: str = "",
    track_project: str | None = None,
    track_entity: str | None = None,
    track_name: str | None = None,
    track_tags: str = "",
    start_from: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_every: int | None = None,
    keep_checkpoints: int | None = 3,
    distributed: str | Distributed = "local",
    address: str | None = None,
    self_play: SelfPlay | dict[str, Any] | None = None,
    vectorization: Vectorization = "auto",
    env_threads: int = 1,
    autoreset_mode: AutoresetName | None = None,
    on_env_error: OnEnvError = "raise",
    worker_timeout: float = 300.0,
    env_kwargs: dict[str, Any] | None = None,
    imports: str = "",
    action_masks: bool = False,
    frame_stack: int = 1,
    max_items: int = 0,
    clip_rewards: bool | None = None,
    episodic_life: bool = False,
    reward_weights: tuple[float, ...] = (),
    info_metrics: tuple[str, ...] = (),
    step_infos: tuple[str, ...] = (),
) -> TrainResult:
    """Train an agent; or, if `config` is a mapping, an agent for each of several policies.

    Args:
        env: an environment's id, or a function that makes an environment (or a vector of `num_envs`, or one of several
            agents, which then share the policy).
        total_steps: Environment steps, of all environments together, after which to stop. With several agents that
            share a policy, it counts each agent's steps.
        placement: where to sample and where to learn: a name as on the command line, or a placement. `auto` measures
            for at most 5 seconds and 5 % of the run, and uses the fastest that does not change the result of a seed.
        config: the agent's settings; their type chooses the agent: `PPOConfig`, `DDPGConfig` or `TD3Config`. A mapping
            from names to `PPOConfig` trains a policy of each name in a multi-agent environment; a mapping with
            one name is the same as its configuration. With an agent, a run directory or an agent's file in place of a
            configuration, the policy acts and does not learn. A path is a file of options, .yaml, .json or .toml, with
            the names of these arguments and of the fields: those that are given win over the file's, which may also
            name the environment.
        agent: a subclass to train instead of the library's agent, or an existing agent.
        loss: a loss of your own, see `hybridppo.agents.ppo.loss`. Autograd then computes the gradient.
        networks: a function that makes networks of your own, see `hybridppo.networks.making`.
        advantages: another estimate of advantages, a function with the arguments of
            `hybridppo.rollouts.advantages.gae`.
        action_distribution: a distribution of actions of your own, a subclass of `hybridppo.ActionDistribution`, or a
            function of the action space that makes one.
        modules: further networks for a loss of your own, by name. The agent has copies of them, `agent.modules_of`,
            which are trained at the actor's learning rate, saved and moved with it.
        schedules: schedules of numbers in the configuration, by field: a function that takes the share of the training
            that is done, 0 to 1, and returns the value; or a name, as in `PPOConfig.schedules`. See
            `hybridppo.agents.schedules`.
        settings: hyperparameters of your own by name, which a loss, a subclass or a callback reads (`agent.settings`);
            JSON must be able to hold them. They are in `config.json` and loggers, and `plot` tells runs apart by them.
        policy_of: a function from an agent's name to its policy's name, if there are several policies; None removes the
            number from the agent's name: `tagger_3` has the policy `tagger`.
        run_dir: a folder to make and write to; None writes nothing.
        compiled: whether Numba compiles the environments, if they have a compiled form, and the updates, if they
            are of multilayer perceptrons on a CPU: `vectorization="compiled"` and `compiled_updates=True` in one.
        profile: whether to write a trace of iterations 3 to 7 into the run directory, for chrome://tracing or
            https://ui.perfetto.dev.
        progress: whether to show a progress bar.
        verbose: whether to show a table of the metrics every few seconds, and at the end.
        debug: whether to train so that a debugger can follow: in one process, with gradients by autograd alone, and an
            error that shows the line of the loss whose gradient is not a number. It is slower, and changes the result
            only by rounding.
        on_iteration: called with each iteration's metrics; an error in it ends the training.
        loggers: a function of each iteration's metrics, a `hybridppo.Logger`, or several; an error in one is only
            logged.
        callbacks: called at the start, after iterations, evaluations and checkpoints, and at the end
            (`hybridppo.Callback`). They may end the training. An error in one ends it, with a checkpoint.
        on_interrupt: what to do after Ctrl-C or another signal has ended the training and it is saved: `raise`
            `TrainingInterrupted`, a `KeyboardInterrupt` that has the result, or `return` the result.
        total_episodes: Episodes of all environments together, after which to stop if that comes first.
        seed: Seed of everything random; without it, one is taken from the operating system and saved.
        num_workers: Processes that step the environments; 0 steps them in this process. Default: chosen by `auto`;
            otherwise 1 with overlap, else 0.
        evaluation_episodes: Deterministic episodes to run after training; 0 for none.
        evaluate_every: Environment steps, of all environments together, between evaluations during training; 0 for
            never. Evaluations have their own environments and do not change the training. They then decide which
            checkpoint is the best.
        episodes_per_evaluation: Deterministic episodes in each evaluation during training; every evaluation has the
            same seeds.
        evaluate_async: Whether evaluations during training run in another process while the training continues, and are
            reported when the next one is due. None: only if sampling and learning overlap.
        target_return: Mean return at which to stop: the mean of an evaluation during training if there are any, else of
            the latest 100 episodes, once 100 episodes have ended.
        track: Loggers to write to, separated by commas: tensorboard, csv, wandb, trackio, mlflow.
        track_project: The project in wandb and trackio, and the experiment in mlflow. None: what their environment
            variables say, else hybridppo.
        track_entity: The user or team in wandb. None: your own.
        track_name: The run's name in loggers. None: the name of the run directory.
        track_tags: Tags of the run in wandb and mlflow, separated by commas.
        start_from: A run directory, or a file written by agent.save, with networks to start from. Everything else
            starts anew.
        checkpoint_seconds: The most seconds between two checkpoints, unless `checkpoint_every` says when they are
            written.
        checkpoint_every: Environment steps, of all environments together, between two checkpoints. None: by
            `checkpoint_seconds`.
        keep_checkpoints: How many of the newest checkpoints to keep, besides the best one by mean return. None: all.
        distributed: How the training is divided into processes: a policy such as MultiLearner(2), or its text: local,
            multi:LEARNERS:SHARDS, gpu:LEARNERS:SHARDS; over Ray coarse:SAMPLERS, fine:WORKERS, environments:WORKERS,
            central:LEARNERS:MAX_LAG. The numbers after the first may be left out.
        address: Address of a running Ray cluster, auto or HOST:PORT, for policies that run on Ray. Without an address,
            the variable RAY_ADDRESS is used; if it is not set, Ray is started on this machine.
        self_play: Self-play: a hybridppo.SelfPlay, or its fields (snapshot_every, pool, latest, opponents). The learner
            plays one random side in each episode, and its snapshots play the others. On the command line, a JSON
            object.
        vectorization: How environments are stepped: auto uses the environment's vectorised form if it has one, else
            steps copies one after the other; sync always steps copies; compiled uses the form that Numba compiles.
        env_threads: Threads that step compiled environments; their number does not change the result.
        autoreset_mode: The autoreset mode of a vector environment that does not declare one.
        on_env_error: If an environment fails, returns invalid values, or its worker process dies: raise an error; or
            restart it, drop its unfinished episode, and count that in the metric env_restarts.
        worker_timeout: Seconds without a step after which a worker process counts as hung.
        env_kwargs: Keyword arguments for gymnasium.make, EnvPool, or the function that makes the environment. On the
            command line, a JSON object. In Python, values may be any objects. To resume a run whose arguments JSON
            cannot hold, pass env=..., a function that makes the environment with these arguments.
        imports: Modules that register environments, to import first, with commas between them. An id such as
            module:Env-v0 imports its module anyway.
        action_masks: Choose only actions that the environment allows, by info["action_mask"] of every reset and step.
        frame_stack: Number of the last observations of an episode that the agent sees, if they are a Box (vectors or
            images). Each observation is stored once.
        max_items: If observations have a Sequence or a Graph: the largest number of items, of nodes and of edges. More
            are an error.
        clip_rewards: Learn from rewards clipped to +-1; returns and evaluations are not clipped. None clips for Atari
            only.
        episodic_life: In Atari games, end an episode with the loss of a life while training; evaluations play whole
            games.
        reward_weights: For environments whose reward is several numbers: the weight of each in their sum, which is the
            reward. The metrics info/reward_0 and on have each number's mean over steps.
        info_metrics: Entries of infos to add to the metrics: `info/NAME`, the mean over the rollout's steps that have
            the entry, and `episode_info/NAME`, the mean of the last entry of each episode that ended. A pattern such as
            Episode_Reward/* stands for all entries that match it.
        step_infos: Entries of infos, one number for each step, that become columns of rollouts for a loss or an agent
            of your own: `rollout.infos["cost"]`, and `columns["cost"]` of `LossInputs`.

    Returns:
        The trained agent or agents, and the results of the training.

    Raises:
        HybridPPOError: if an argument or the environment is wrong, in one message.
        TrainingInterrupted: if a signal ended the training, unless `on_interrupt` is `return`.
    """
    assert not isinstance(config, str | Path)  # it was read before
    given = locals()  # the arguments, among which are those of both groups of options
    require_bools(compiled=compiled, profile=profile)
    guests = _guests(given, track)
    if profile and run_dir is None:
        raise ConfigurationError("profile=True writes its trace into the run directory: name one, as run_dir")
    if run_dir is not None:
        require_free(run_dir)  # before `auto` measures
    run = made(RunOptions, given | {"seed": fresh_seed() if seed is None else seed})
    environment = made(EnvironmentOptions, given)
    named, functions = split_schedules(schedules)
    parts = {**{name: given[name] for name in OF_PPO}, "schedules": functions}
    policies = tuple(config) if isinstance(config, Mapping) else ()
    config, played = given_policies(config) if isinstance(config, Mapping) else (config, {})
    asked = config_to_train(config, agent, parts, named, tuple(played), settings)
    policy_of = by_id(policy_of)
    if policy_of is not None and not policies and not isinstance(asked, PoliciesConfig):
        raise ConfigurationError(
            'policy_of gives agents policies by name, and one configuration has no name: pass config={"name": '
            "PPOConfig(...), ...}, or leave policy_of out"
        )
    keeps_finals = getattr(agent, "keeps_final_observations", False)
    environment = for_critics(environment, critics_see(asked, policy_of), keeps_finals)
    has_own_networks = networks is not None or isinstance(agent, AnyAgent)
    if compiled:
        has_own_parts = has_own_networks or loss is not None
        asked, environment = compiled_options(env, asked, environment, has_own_parts=has_own_parts)
    elif isinstance(asked, PoliciesConfig):
        environment = compiled_if_possible(env, environment)
    where, saves = resolve_placement(placement), run_dir is not None
    with prepared(env, asked, environment, run, where, policy_of=policy_of, saves=saves, debug=debug) as preparation:
        environments = preparation.environments
        _warn_of_doubts(preparation, asked, has_own_networks=has_own_networks)
        if policies and preparation.run.self_play is None:
            policies_of(environments.agents, policies, policy_of)
        asked = with_agents(asked, environments.agents, policy_of)
        with explaining_memory():
            trained = agent_to_train(asked, agent, parts, environments, seed_of(preparation.seed, "agent"))
            if preparation.run.start_from is not None:  # before seconds are spent on trials
                start_agent_from(trained, preparation.run.start_from)
            choice = preparation.choose(trained, total_steps)
        trained.config = replaced(trained.config, torch_threads=choice.torch_threads)
        if played:
            put_networks(trained, played)
        of_run = Settings(
            env_id=name_of_source(env),
            config=trained.config,
            environment=preparation.options,
            run=replace(preparation.run, num_workers=run.num_workers if debug else choice.num_workers),
            placement=choice.placement.settings(),
            observation_space=environments.observation_space,
            action_space=environments.action_space,
            own=_own_parts(trained, env, env_kwargs, has_agents=isinstance(agent, AnyAgent) or bool(played)),
            policy=policies[0] if len(policies) == 1 else "policy",
        )
        with _new_directory(run_dir if preparation.strategy.rank == 0 else None, of_run, choice.table) as directory:
            plan = preparation.plan(of_run, trained, choice, directory=directory, profile=profile, **guests)
            result = run_to_the_end(plan, preparation.strategy)
    return _finished(result, on_interrupt)


@partial(suggests_arguments, within=telling_others)
def resume(
    run_dir: str | Path,
    *,
    env: EnvSource | None = None,
    placement: PlacementChoice | None = None,
    agent: type[AnyAgent] | None = None,
    loss: LossFunction | None = None,
    networks: Networks | None = None,
    advantages: AdvantageFunction | None = None,
    action_distribution: MakeDistribution | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    schedules: Schedules | str | None = None,
    progress: bool = True,
    verbose: bool = False,
    debug: bool = False,
    on_iteration: Callable[[Metrics], object] | None = None,
    loggers: Loggers = (),
    callbacks: Sequence[Callback] | Callback = (),
    on_interrupt: OnInterrupt = "raise",
    total_steps: int | None = None,
    total_episodes: int | None = None,
    num_workers: int | None = None,
    evaluation_episodes: int | None = None,
    evaluate_every: int | None = None,
    episodes_per_evaluation: int | None = None,
    evaluate_async: bool | None = None,
    target_return: float | None = None,
    track: str | None = None,
    checkpoint_seconds: float | None = None,
    checkpoint_every: int | None = None,
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
        action_distribution: the run's own distribution of actions, if there was one.
        modules: modules of the same shapes as the run's own, if there were any.
        schedules: the run's schedules that are functions, if there were any; those with names are saved.
        progress: whether to show a progress bar.
        verbose: whether to show a table of the metrics every few seconds, and at the end.
        debug: as for `train`.
        on_iteration: called with each iteration's metrics; an error in it ends the training.
        loggers: functions of each iteration's metrics; an error in one is logged.
        callbacks: as for `train`; those of the earlier training are not saved.
        on_interrupt: as for `train`.
        total_steps: Environment steps, of all environments together, after which to stop. With several agents that
            share a policy, it counts each agent's steps.
        total_episodes: Episodes of all environments together, after which to stop if that comes first.
        num_workers: Processes that step the environments; 0 steps them in this process. Default: chosen by `auto`;
            otherwise 1 with overlap, else 0.
        evaluation_episodes: Deterministic episodes to run after training; 0 for none.
        evaluate_every: Environment steps, of all environments together, between evaluations during training; 0 for
            never. Evaluations have their own environments and do not change the training. They then decide which
            checkpoint is the best.
        episodes_per_evaluation: Deterministic episodes in each evaluation during training; every evaluation has the
            same seeds.
        evaluate_async: Whether evaluations during training run in another process while the training continues, and are
            reported when the next one is due. None: only if sampling and learning overlap.
        target_return: Mean return at which to stop: the mean of an evaluation during training if there are any, else of
            the latest 100 episodes, once 100 episodes have ended.
        track: Loggers to write to, separated by commas: tensorboard, csv, wandb, trackio, mlflow.
        checkpoint_seconds: The most seconds between two checkpoints, unless `checkpoint_every` says when they are
            written.
        checkpoint_every: Environment steps, of all environments together, between two checkpoints. None: by
            `checkpoint_seconds`.
        keep_checkpoints: How many of the newest checkpoints to keep, besides the best one by mean return. None: all.
        distributed: How the training is divided into processes: a policy such as MultiLearner(2), or its text: local,
            multi:LEARNERS:SHARDS, gpu:LEARNERS:SHARDS; over Ray coarse:SAMPLERS, fine:WORKERS, environments:WORKERS,
            central:LEARNERS:MAX_LAG. The numbers after the first may be left out.
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
    with contextlib.closing(run_directory_of(run_dir, distributed)) as directory:
        before = Settings.read(directory)
        settings = before.changed(given)
        tell_what_runs(directory.given, settings.env_id, settings.environment, settings.run)
        guests = _guests(given, settings.run.track)
        parts = {**{name: given[name] for name in ("agent", *OF_PPO)}, "schedules": _functions(schedules, settings)}
        require_own(settings.own, **parts)
        source = settings.source(env)
        where = _own_placement(settings) if placement is None else resolve_placement(placement)
        checkpoint = None if directory.has_saved_nothing else directory.load_checkpoint(to_go_on=True)
        kept, saved = directory.config, directory.path / "checkpoints"
        newest = folders(saved)[-1:]
        try:
            with prepared(
                source, settings.config, settings.environment, settings.run, where, debug=debug
            ) as preparation:
                asked = replace(preparation.run, num_workers=settings.run.num_workers)  # debug=True is not saved
                settings = replace(settings, environment=preparation.options, run=asked)
                require_spaces_of(settings, preparation.environments, error=CheckpointError)
                settings.config.require_agents(preparation.environments.agents, CheckpointError)
                if checkpoint is None:
                    made = new_agent(settings, seed=seed_of(settings.seed, "agent"), **parts)
                else:
                    made = SavedAgent.of_run(settings, checkpoint).made(**parts)
                done = 0 if checkpoint is None else checkpoint.env_steps
                choice = preparation.choose(made, max(1, settings.run.total_steps - done))
                if preparation.strategy.rank == 0:  # the other learners get the checkpoint from it
                    _keep_options(directory, before, settings, done)
                    _go_back(directory, before, settings, made, checkpoint)
                # The number of workers is a part of the choice of `auto`, as its placement is.
                settings = replace(settings, run=replace(settings.run, num_workers=choice.num_workers))
                plan = preparation.plan(settings, made, choice, directory=directory, checkpoint=checkpoint, **guests)
                return _finished(run_to_the_end(plan, preparation.strategy), on_interrupt)
        except ConfigurationError:
            if folders(saved)[-1:] == newest:  # else the run has trained with the new options
                directory.update_config(kept)
            raise


def _keep_options(directory: RunDirectory, before: Settings, settings: Settings, done: int) -> None:
    """Save changed options for the next resume, and warn if NumPy rounds otherwise than when the run began.

    The placement stays the run's own, and so does its goal if the new one is behind the steps that are `done`: there is
    nothing to train, and the next resume trains on.
    """
    goal = settings.run.total_steps if settings.run.total_steps > done else before.run.total_steps
    kept = replace(settings, run=replace(settings.run, total_steps=goal))
    directory.update_config({**kept.to_json(), **{name: directory.config[name] for name in ("versions", "origin")}})
    was, now = directory.config["versions"].get("kernels"), kernels_taken()
    if was and now and was != now:
        logger.warning(
            "the run was begun with NumPy's kernels for %s, and goes on with those for %s, which round otherwise: it "
            "learns as well, but is not bit-for-bit reproducible",
            *(was, now),
        )


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
                *(goal, done),
            )
        return
    if "agents" in settings.own:
        raise RunDirectoryError(
            f"{directory.given} ended before its first checkpoint, and no file has the agents that it was given: begin "
            "a new run with them"
        )
    if settings.run.start_from is not None:
        start_agent_from(agent, settings.run.start_from)
    directory.rewind(0, 0)
    logger.warning("%s ended before its first checkpoint was saved: it begins anew", directory.given)


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


def _own_placement(settings: Settings) -> Placement:
    try:
        placement = placement_from_settings(settings.placement)
        placement.reason = "as the run began"
        return placement
    except (KeyError, TypeError) as error:
        raise RunDirectoryError(f"config.json is damaged: placement: {type(error).__name__}: {error}") from error


def _guests(given: Mapping[str, Any], track: str) -> dict[str, Any]:
    """The fields of a plan that follow from arguments of both `train` and `resume`, after a check of these."""
    switches = {name: given[name] for name in ("progress", "verbose", "debug")}
    require_bools(**switches)
    if given["on_interrupt"] not in get_args(OnInterrupt):
        raise ConfigurationError(f"on_interrupt must be raise or return, got {shown(given['on_interrupt'])}")
    own = {name: given[name] for name in ("on_iteration", "loggers", "callbacks")}
    return {**switches, "callbacks": callbacks_given(given["run_dir"], track, **own)}


def _finished(result: TrainResult, on_interrupt: OnInterrupt) -> TrainResult:
    """The result, if the training was not interrupted, or `on_interrupt` asks for it.

    Raises:
        TrainingInterrupted: otherwise.
    """
    if result.interrupted and on_interrupt == "raise":
        raise TrainingInterrupted(result)
    return result


def _warn_of_doubts(preparation: Preparation, config: AnyConfig, *, has_own_networks: bool) -> None:
    environments, run = preparation.environments, preparation.run
    spaces = each_space(environments.observation_space)
    has_choices = not all(isinstance(action, gym.spaces.Box) for action in each_space(environments.action_space))
    if not preparation.options.action_masks and has_choices and any(map(has_mask, spaces)):
        logger.warning(
            "observations have an action_mask, and action_masks is False: agents may choose masked actions, and "
            "see it as numbers; action_masks=True (--action-masks) obeys it"
        )
    if not run.evaluate_every and (
        run.episodes_per_evaluation != RunOptions.episodes_per_evaluation or run.evaluate_async
    ):
        logger.warning(
            "episodes_per_evaluation and evaluate_async have no effect without evaluate_every (--evaluate-every "
            "STEPS); evaluation_episodes evaluates once, after the training"
        )
    for name, steps, what in (
        ("learning_starts", getattr(config, "learning_starts", 0), "nothing is learned"),
        ("evaluate_every", run.evaluate_every, "the training is never evaluated"),
    ):
        if steps > run.total_steps:
            logger.warning("%s=%d is above total_steps=%d, so %s: lower it", name, steps, run.total_steps, what)
    for doubt in doubts_about(environments, has_own_networks=has_own_networks):
        logger.warning("%s: %s", *doubt)


def _own_parts(agent: AnyAgent, env: EnvSource, env_kwargs: object, *, has_agents: bool) -> dict[str, str]:
    """The names of the user's own parts, for `Settings.own`."""
    own = {what: name_of_source(value) for what, value in agent.own.items()}
    if not isinstance(env, str):
        own["env"] = name_of_source(env)
    if has_agents:
        own["agents"] = "that there were already"
    if not is_held_by_json(env_kwargs):
        own["env_kwargs"] = shown(env_kwargs, 1000)
    return own


@contextlib.contextmanager
def _new_directory(
    run_dir: str | Path | None, settings: Settings, table: dict[str, Any]
) -> Iterator[RunDirectory | None]:
    """A context with a new run directory, and the table of trials of its placement if there is one; None for none."""
    if run_dir is None:
        yield None
        return
    with contextlib.closing(RunDirectory.create(run_dir, {**settings.to_json(), "origin": origin()})) as directory:
        try:
            if table:
                directory.write("placements.json", table)
            yield directory
        except BaseException:
            directory.discard()  # a training that could not begin leaves no folder
            raise


def config_to_train(
    config: AnyConfig | Mapping[str, PPOConfig] | None,
    agent: object,
    parts: Mapping[str, object],
    schedules: Mapping[str, str],
    played: Sequence[str],
    settings: Mapping[str, Any] | None = None,
) -> AnyConfig:
    """The configuration of the agent to train; a mapping has several policies.

    Args:
        config: as for `train`, with a configuration also for the policies that are played.
        agent: as for `train`.
        parts: the agent's other arguments by name; None for the library's.
        schedules: further schedules with names, by field.
        played: the policies that act and do not learn.
        settings: as for `train`.

    Raises:
        ConfigurationError: if the arguments contradict one another, or one is invalid.
    """
    given = [what for what, value in parts.items() if value is not None]
    if "modules" in given and "loss" not in given and agent is None:
        raise ConfigurationError(
            "modules are trained by a loss of one's own: pass loss=... (for PPO), or agent=..., a subclass that uses "
            "them; or leave them out"
        )
    if isinstance(config, Mapping):
        policies = PoliciesConfig(config)
        for what in given if agent is None else ["agent"]:
            what = "schedules that are functions" if what == "schedules" else what
            raise ConfigurationError(f"{what} does not work with several policies (config is a mapping): leave it out")
        found = replace(policies, played=tuple(played)) if len(config) > 1 else next(iter(config.values()))
        return with_further(found, schedules, settings)
    if isinstance(agent, AnyAgent):
        has = {
            "config": config not in (None, agent.config),
            "schedules": bool(schedules),
            "settings": settings is not None,
            **dict.fromkeys(given, True),
        }
        for what in filter(has.get, has):
            raise ConfigurationError(
                f"an agent that there is already has its {what}: leave {what}=... out; or save the agent, and train "
                f"another one from its networks, by start_from=FILE and {what}=..."
            )
        return agent.config
    if config is None:
        config = default_config(agent)
    wanted = agent_class(config)  # refuses what is no configuration
    if agent is not None and not (isinstance(agent, type) and issubclass(agent, wanted)):
        name = wanted.__name__
        raise ConfigurationError(
            f"agent must be a subclass of {name} or a {name}, got {name_of_source(agent)}: config=DDPGConfig() "
            "or TD3Config() chooses another of the library's agents"
        )
    own: list[str] = [] if isinstance(config, PoliciesConfig) else config.own_fields()
    if own and (agent is None or {*own} - {*default_config(agent).own_fields()}):
        mine, name = type(config).__name__, wanted.__name__
        raise ConfigurationError(
            f"{mine} has fields of its own, {', '.join(own)}, which only an agent of your own reads: write "
            f"config_type = {mine} in a subclass of {name}, and pass agent=..."
        )
    return with_further(config, schedules, settings)


def split_schedules(schedules: Schedules | str | None) -> tuple[dict[str, str], dict[str, ScheduleFunction] | None]:
    """Schedules by field: those with names, and those that are functions, or None.

    Raises:
        ConfigurationError: if they are neither a mapping nor text as in `PPOConfig.schedules`.
    """
    try:
        given = parsed(schedules if schedules is not None else "")
    except (ValueError, TypeError):
        raise ConfigurationError(
            'schedules must give fields a name or a function, each once, as {"learning_rate": "cosine"}, or '
            f'"learning_rate=cosine", got {shown(schedules)}'
        ) from None
    functions = {field: each for field, each in given.items() if callable(each)}
    return {field: each for field, each in given.items() if field not in functions}, functions or None


def with_further(
    config: AnyConfig, schedules: Mapping[str, str], settings: Mapping[str, Any] | None = None
) -> AnyConfig:
    """The configuration with further schedules and settings; of several policies, each one that learns gets them.

    Raises:
        ConfigurationError: if there is no such schedule, the field cannot have one, or JSON cannot hold a setting.
    """

    def changed(each: Any) -> Any:
        own = each.settings if settings is None else replace(each, settings=settings).settings
        return replace(each, schedules={**parsed(each.schedules), **schedules}, settings={**each.settings, **own})

    if not schedules and settings is None:
        return config
    learn = {name: changed(each) for name, each in config.policies.items() if name not in config.played}
    return config.with_policies({**config.policies, **learn})


def compiled_options(
    env: EnvSource, config: AnyConfig, options: EnvironmentOptions, *, has_own_parts: bool = False
) -> tuple[AnyConfig, EnvironmentOptions]:
    """The settings of an agent and of environments, with everything compiled that has a compiled form.

    Args:
        env: the environment to train in.
        config: the agent's settings. With several policies, the updates of all are compiled, or of none.
        options: how environments are made. An explicit `vectorization` stays as it is.
        has_own_parts: whether the loss, the networks or the agent are not made from `config` by the library.

    Raises:
        ConfigurationError: if Numba is not installed, or neither environments nor updates can be compiled.
    """
    require_numba("compiled=True")
    options, no_environments = compiled_environments(env, options)
    each: Any = config.policies.values()
    has_updates = all(isinstance(one, PPOConfig) and one.fast_updates and one.recurrent is None for one in each)
    no_updates = "PPO's are, without a loss, networks or an agent of one's own, recurrent=... or fast_updates=False"
    why_not = {"environments": no_environments, "updates": no_updates if has_own_parts or not has_updates else None}
    if all(why_not.values()):
        raise ConfigurationError(
            f"compiled=True: nothing can be compiled, so leave it out: {no_environments}; of updates, {no_updates}"
        )
    for what, why in why_not.items():
        if why:
            logger.info("compiled=True: %s are not compiled: %s", what, why)
    return config if why_not["updates"] else replaced(config, compiled_updates=True), options


def with_agents(config: AnyConfig, agents: Sequence[str], policy_of: PolicyOf | None) -> AnyConfig:
    """The configuration with the agents of the environments by policy, if there are several policies.

    Raises:
        ConfigurationError: if the policies are not those of the agents.
    """
    if not isinstance(config, PoliciesConfig):
        return config
    if not config.agents:
        return config.with_agents(agents, policy_of)
    config.require_agents(agents, ConfigurationError)  # of an existing agent
    if policy_of is not None and config.with_agents([*config.agents], policy_of).agents != config.agents:
        raise ConfigurationError(
            "an agent that there is already has its policies, and policy_of gives agents others: leave it out"
        )
    return config


def agent_to_train(
    config: AnyConfig,
    agent: type[AnyAgent] | AnyAgent | None,
    parts: Mapping[str, Any],
    environments: Environments,
    seed: int,
) -> AnyAgent:
    """The agent to train: the existing one, or a new one.

    Raises:
        ConfigurationError: if the existing one was made for other spaces, or agents of one policy have different ones.
    """
    observations, actions = environments.observation_space, environments.action_space
    if not isinstance(config, PoliciesConfig):
        of_policy = dict.fromkeys(environments.agents, "policy")
        observations, actions = spaces_of_policy(observations, actions, "policy", of_policy)
    if isinstance(agent, AnyAgent):
        require_spaces_of(agent, environments, error=ConfigurationError)
        return agent
    kind_of_agent = agent if agent is not None else agent_class(config)
    return make_agent(kind_of_agent, observations, actions, config, seed=seed, **parts)
