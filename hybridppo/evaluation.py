"""Evaluation: whole episodes with an agent, or with a checkpoint of a run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybridppo.agents.policies import PolicyOf, by_id, columns_of, critics_of, policies_of, spaces_of_policy
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.agents.registry import AnyAgent, critics_see
from hybridppo.compiled.modules import has_numba
from hybridppo.distributions.of_policies import DistributionOfPolicies
from hybridppo.distributions.of_space import distribution_for
from hybridppo.distributions.own import MakeDistribution
from hybridppo.environments.base import Environments
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.making import compiled_definition, make_environments
from hybridppo.environments.options import (
    AutoresetName,
    EnvironmentOptions,
    EnvSource,
    OnEnvError,
    Vectorization,
    for_critics,
)
from hybridppo.errors import ConfigurationError, EnvError, shown
from hybridppo.interfaces import agents_of
from hybridppo.loading import is_agent_file, load
from hybridppo.networks.making import Networks
from hybridppo.networks.modes import float32_products
from hybridppo.networks.numpy_actors import NumpyPoliciesActor
from hybridppo.placements.placement import Placement, SingleDevice
from hybridppo.reporting.progress import ProgressBar
from hybridppo.run_directory.checkpoints import read_agent_file
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint, path_of
from hybridppo.runners.episodes import MOST_SIDE_BY_SIDE, Evaluation, made_for
from hybridppo.runners.episodes import evaluate as run_episodes
from hybridppo.settings import Settings, made, tell_what_runs
from hybridppo.spaces.frames import num_frames_of
from hybridppo.spaces.items import max_items_of
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import each_space
from hybridppo.system.seeds import seed_of
from hybridppo.system.validation import require_bools, require_whole


def evaluate_agent(
    agent: AnyAgent,
    env: EnvSource,
    *,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    autoreset_mode: AutoresetName | None = None,
    on_env_error: OnEnvError = "raise",
    env_kwargs: dict[str, Any] | None = None,
    imports: str = "",
    vectorization: Vectorization = "auto",
    info_metrics: tuple[str, ...] = (),
    reward_weights: tuple[float, ...] = (),
    placement: Placement | None = None,
    progress: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Run whole episodes with an agent, in environments made for it and closed again.

    Args:
        agent: the agent to evaluate; the agents of several policies act together.
        env: an environment's id, a function that makes one, a vector or one of tensors, or a batched environment.
            Vectors and batched environments may have any number of environments.
        episodes: number of episodes; up to 32 run side by side. If there are several agents, each has its own return.
        seed: seed of the environments, and of random actions.
        deterministic: take deterministic actions.
        autoreset_mode: the mode of a vector environment that does not declare it.
        on_env_error: as for `train`; an episode that was broken off does not count.
        env_kwargs: arguments of the environment, as for `train`.
        imports: modules that register environments, as for `train`.
        vectorization: as for `train`.
        info_metrics: as for `train`; their means are in `Evaluation.infos`.
        reward_weights: as for `train`.
        placement: one that the agent is prepared for; None samples where the agent is.
        progress: whether to show a progress bar.
        should_stop: called before each step; if it returns True, `Stopped` is raised.

    Raises:
        ConfigurationError: if an argument is invalid.
        EnvError: if the environment has other spaces than the agent.
    """
    given = locals()  # the arguments, among which are options of environments
    require_bools(deterministic=deterministic, progress=progress)
    episodes, seed = require_whole("episodes", episodes), require_whole("seed", seed, 0, below=2**128)
    if not hasattr(agent, "config"):
        remedy = "use evaluate(RUN_DIR), or result.agent of a training"
        if hasattr(env, "config"):
            remedy = "the agent comes first, and then the environment"
        raise ConfigurationError(f"evaluate_agent takes an agent, got {shown(agent)}: {remedy}")
    if not isinstance(placement, Placement | None):
        raise ConfigurationError(
            f"placement must be one that the agent is prepared for, or None, got {shown(placement)}"
        )
    if not callable(should_stop):
        raise ConfigurationError(f"should_stop must be a function without arguments, got {shown(should_stop)}")
    num_envs, options = min(episodes, MOST_SIDE_BY_SIDE), made(EnvironmentOptions, given)
    bar = ProgressBar(enabled=progress, total=episodes, unit="episode", desc="evaluation", leave=False)
    with playing(agent, env, num_envs, options, placement=placement) as (_, run), bar:
        # Environments have neighbouring seeds; neighbouring evaluations must not share them.
        seed = seed_of(seed, "evaluation")
        return run(
            episodes=episodes, seed=seed, deterministic=deterministic, on_episode=bar.advance, should_stop=should_stop
        )


@contextlib.contextmanager
def playing(
    agents: AnyAgent | Mapping[str, Any],
    env: EnvSource,
    num_envs: int,
    options: EnvironmentOptions | None = None,
    *,
    policy_of: PolicyOf | None = None,
    placement: Placement | None = None,
) -> Iterator[tuple[Environments, Callable[..., Evaluation]]]:
    """New environments, and `evaluate` of `runners/episodes.py`, with which an agent acts in them.

    Args:
        agents: an agent; or agents and functions by policy, as for `evaluate_policies`.
        env: as for `evaluate_agent`.
        num_envs: number of environments.
        options: other options of the environments, for one agent.
        policy_of: as for `evaluate_policies`.
        placement: as for `evaluate_agent`.

    Raises:
        ConfigurationError: if the environments' agents have other policies.
        EnvError: if the environments cannot be made, or have other spaces than an agent.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(agents, Mapping):
            environments = _environments_of_policies(agents, env, num_envs, policy_of)
        else:
            environments = environments_for(agents, env, num_envs, options)
        stack.callback(environments.close)
        if isinstance(agents, Mapping):
            acting_with = _acting_together(agents, environments, policy_of, stack)
        else:
            acting_with = stack.enter_context(acting(agents, placement))
        yield environments, partial(run_episodes, **acting_with, environments=environments)


def environments_for(
    agent: AnyAgent, env: EnvSource, num_envs: int, options: EnvironmentOptions | None = None
) -> Environments:
    """New environments for an agent, which gives masks, frames and the observations of critics.

    Args:
        agent: the agent.
        env: as for `evaluate_agent`.
        num_envs: how many.
        options: other options.

    Raises:
        EnvError: if they cannot be made, or have other spaces than the agent, or others than its agents.
    """
    own = options_for(agent, EnvironmentOptions() if options is None else options)
    with contextlib.ExitStack() as stack:
        environments = made_for(agent, env, num_envs, own, own_number=True)
        stack.callback(environments.close)
        agent.config.require_agents(environments.agents, EnvError)
        stack.pop_all()
    return environments


def options_for(agent: AnyAgent, options: EnvironmentOptions) -> EnvironmentOptions:
    """The options with which environments give masks, frames, items and the observations of critics as in training."""
    own = replace(
        options,
        action_masks=any(isinstance(space, MaskedObservation) for space in each_space(agent.observation_space)),
        frame_stack=num_frames_of(agent.observation_space),
        max_items=max_items_of(agent.observation_space),
    )
    return for_critics(own, critics_see(agent.config))


def evaluate(
    run_dir: str | Path | AnyAgent,
    env: EnvSource | None = None,
    *,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    env_kwargs: dict[str, Any] | None = None,
    agent: type[AnyAgent] | None = None,
    networks: Networks | None = None,
    action_distribution: MakeDistribution | None = None,
    checkpoint: WhichCheckpoint = "latest",
    progress: bool = True,
) -> Evaluation:
    """Evaluate a checkpoint of a run, or an agent's file, on the CPU.

    Args:
        run_dir: the run's folder, or a file of `agent.save`; or an agent, as for `evaluate_agent`.
        env: the environment, as for `evaluate_agent`. None for the run's own, if an id names it; a file or an agent
            needs one.
        episodes: as for `evaluate_agent`, like `seed`, `deterministic` and `progress`.
        seed: see `episodes`.
        deterministic: see `episodes`.
        env_kwargs: arguments of the environment in place of those in training, such as another data set. With `env`,
            these are the only ones, and no module of the run's `imports` is imported.
        agent: as for `load`, like `networks`, `action_distribution` and `checkpoint`.
        networks: see `agent`.
        action_distribution: see `agent`.
        checkpoint: see `agent`.
        progress: see `episodes`.

    Raises:
        ConfigurationError: if `run_dir` is a file, and `env` is missing, or an argument is invalid.
    """
    how: dict[str, Any] = {"episodes": episodes, "seed": seed, "deterministic": deterministic, "progress": progress}
    given: Any = run_dir
    if env is not None and (isinstance(given, AnyAgent) or isinstance(env, AnyAgent)):
        return evaluate_agent(given, env, env_kwargs=env_kwargs, **how)
    source, options = environment_of(given, env, env_kwargs)
    loaded = load(given, checkpoint, agent=agent, networks=networks, action_distribution=action_distribution)
    return evaluate_agent(loaded, source, **how, **like_training(options))


def environment_of(
    run_dir: str | Path, env: EnvSource | None, env_kwargs: dict[str, Any] | None
) -> tuple[EnvSource, EnvironmentOptions]:
    """The source and the options of the environments in which the agent of a run, or of a file, is to act.

    Args:
        run_dir: the run's folder, or a file of `agent.save`.
        env: as for `evaluate`.
        env_kwargs: as for `evaluate`.

    Raises:
        CheckpointError: if `run_dir` is a file that `agent.save` has not written, and `env` is missing.
        ConfigurationError: if `run_dir` is a file, and `env` is missing.
    """
    source, options, path = env, EnvironmentOptions(), path_of(run_dir)
    if not is_agent_file(path):
        directory = RunDirectory.open(path)
        settings = Settings.read(directory)
        is_own = env is None or bool(settings.own.keys() & {"env", "env_kwargs"})  # the file alone cannot make it
        kwargs = settings.environment.env_kwargs if is_own and env_kwargs is None else env_kwargs
        imports = settings.environment.imports if env is None else ""
        options = replace(settings.environment, env_kwargs=kwargs, imports=imports)
        if is_own:
            source = settings.source(env)
            tell_what_runs(directory.path, settings.env_id, options)
    if source is None:
        read_agent_file(path)  # another file has another error
        raise ConfigurationError(f"{run_dir} is an agent's file, which names no environment: pass env=... (--env)")
    return source, options if env_kwargs is None else replace(options, env_kwargs=env_kwargs)


def like_training(options: EnvironmentOptions) -> dict[str, Any]:
    """The options of a training's environments that `evaluate_agent` takes."""
    names = ("autoreset_mode", "on_env_error", "env_kwargs", "imports", "info_metrics", "reward_weights")
    vectorization = "compiled" if options.vectorization == "compiled" else "auto"
    return {**{name: getattr(options, name) for name in names}, "vectorization": vectorization}


def evaluate_policies(
    agents: Mapping[str, Any],
    env: EnvSource,
    *,
    episodes: int = 20,
    num_envs: int = 10,
    seed: int = 0,
    deterministic: bool = False,
    policy_of: PolicyOf | None = None,
) -> dict[str, Evaluation]:
    """Run whole episodes with an agent for each policy; the evaluation of each policy by its name.

    Args:
        agents: for each policy, an agent; or a scripted policy: a function of observations `[n, obs]` that returns the
            outputs `[n, outputs]` of an actor, which are logits of choices, or means and then log standard deviations.
            If agents have action masks, the mask follows the observation, and the function must obey it.
        env: a multi-agent environment.
        episodes: number of episodes of the environment.
        num_envs: number of environments side by side.
        seed: seed of the environments, and of the actions.
        deterministic: take the deterministic action instead of a random one.
        policy_of: as for `train`.

    Raises:
        ConfigurationError: if the environment's agents have other policies, an argument is invalid, or a function
            returns other arrays.
        EnvError: if the environment has other spaces than an agent.
    """
    for name, number in {"episodes": episodes, "num_envs": num_envs}.items():
        require_whole(name, number)
    require_whole("seed", seed, 0, below=2**128)
    require_bools(deterministic=deterministic)
    require_names(agents)
    policy_of = by_id(policy_of)
    for name, agent in agents.items():
        if not isinstance(agent, PPO) and not callable(agent):
            raise ConfigurationError(f"policy {name!r} must be an agent of PPO or a function, got {shown(agent)}")
    with playing(agents, env, min(num_envs, episodes), policy_of=policy_of) as (environments, run):
        found = run(episodes=episodes, seed=seed_of(seed, "evaluation"), deterministic=deterministic)
    whose = policies_of(environments.agents, agents, policy_of)
    return {policy: found.of_agents([name for name in whose if whose[name] == policy]) for policy in agents}


def _outputs_of(function: Callable[[Any], Any], policy: str, size: int, observations: Any) -> Any:
    """The outputs `[n, size]` of a function that acts as a policy, for observations `[n, *row]`."""
    found, shape = function(observations), (len(observations), size)
    if np.shape(found) != shape:
        raise ConfigurationError(
            f"the function of policy {policy!r} must return the outputs of an actor, an array {shape} (the logits of "
            f"choices, or means and then log standard deviations), got {shown(found)}"
        )
    return np.asarray(found, np.float32)


def require_names(agents: object) -> None:
    """Refuse agents without names.

    Raises:
        ConfigurationError: with the remedy.
    """
    if not isinstance(agents, Mapping):
        raise ConfigurationError(f"agents must have names, as in {{'one': ..., 'other': ...}}, got {shown(agents)}")


def _environments_of_policies(
    agents: Mapping[str, Any], env: EnvSource, num_envs: int, policy_of: PolicyOf | None
) -> Environments:
    spaces = [agent.observation_space for agent in agents.values() if isinstance(agent, PPO)]
    options = EnvironmentOptions(action_masks=any(isinstance(space, MaskedObservation) for space in spaces))
    configs = {name: getattr(agent, "config", None) for name, agent in agents.items()}
    options = compiled_if_possible(env, for_critics(options, critics_of(configs, policy_of)))
    return make_environments(env, num_envs, options, own_number=True)


def compiled_if_possible(env: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:
    """The options for environments that are compiled, if they have a compiled form and Numba is installed."""
    return compiled_environments(env, options)[0] if has_numba() else options


def compiled_environments(env: EnvSource, options: EnvironmentOptions) -> tuple[EnvironmentOptions, str | None]:
    """The options for compiled environments; or the same options, and the reason."""
    if options.vectorization != "auto":
        return options, None if options.vectorization == "compiled" else "vectorization='sync' was asked for"
    if options.env_kwargs:
        return options, "env_kwargs were given, which a compiled form does not take"
    try:
        compiled = replace(options, vectorization="compiled")
        compiled_definition(env, compiled)
    except (EnvError, ConfigurationError) as error:
        return options, str(error)
    return compiled, None


@contextlib.contextmanager
def acting(agent: AnyAgent, placement: Placement | None = None) -> Iterator[dict[str, Any]]:
    """The arguments with which `evaluate` lets an agent act: `actor`, `distribution` and `memory`.

    Args:
        agent: the agent.
        placement: one that the agent is prepared for; None to act where the agent is.
    """
    if placement is None:
        placement = SingleDevice(agents_of(agent)[0].parameters.values.device)
        placement.prepare(agent)
    with float32_products(agent.config.precision, placement.sampling_device), placement.evaluating(agent) as actor:
        yield {"actor": actor, "distribution": agent.distribution, "memory": agent.memory}


def _acting_together(
    agents: Mapping[str, Any], environments: Environments, policy_of: PolicyOf | None, stack: contextlib.ExitStack
) -> dict[str, Any]:
    """The arguments with which `evaluate` lets the agents of all policies act, within the stack."""
    whose = policies_of(environments.agents, agents, policy_of)
    columns = list(columns_of(whose, agents).values())
    every = environments.observation_space, environments.action_space
    spaces = [spaces_of_policy(*every, policy, whose) for policy in agents]
    trained = [agent if isinstance(agent, PPO) else None for agent in agents.values()]
    of_functions = any(agent.config.squash_actions for agent in trained if agent is not None)
    squash = [of_functions if agent is None else agent.config.squash_actions for agent in trained]
    parts: list[Any] = [None if agent is None else agent.own.get("action_distribution") for agent in trained]
    distributions = [
        distribution_for(action, squash=own, own=part)
        for (_, action), own, part in zip(spaces, squash, parts, strict=True)
    ]
    distribution, are_alike = distributions[0], all(own == spaces[0] for own in spaces)
    row_layouts = None if are_alike else [ObservationEncoder(observation).layout for observation, _ in spaces]
    if not are_alike or len({*zip(squash, parts, strict=True)}) > 1:
        distribution = DistributionOfPolicies(distributions, [action for _, action in spaces], columns)
    layouts = [None if agent is None else agent.memory for agent in trained]
    state_sizes = [0 if layout is None else layout.state_size for layout in layouts]
    actors: list[Any] = []
    for (policy, given), own, each in zip(agents.items(), spaces, distributions, strict=True):
        if isinstance(given, PPO):
            require_spaces_of(given, SimpleNamespace(observation_space=own[0], action_space=own[1]))
            actors.append(stack.enter_context(acting(given))["actor"])
        else:
            actors.append(partial(_outputs_of, given, policy, each.output_size))
    return {
        "actor": NumpyPoliciesActor(actors, columns, row_layouts, state_sizes=state_sizes),
        "distribution": distribution,
        "memory": max(filter(None, layouts), key=lambda each: each.state_size, default=None),
    }
