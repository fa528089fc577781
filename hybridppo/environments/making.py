"""Environments from an id or a function: copies of one, its own vectorised form, or one with several agents."""

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import gymnasium as gym
from gymnasium.vector import VectorEnv

from hybridppo.environments.adapters import WeightedRewards
from hybridppo.environments.base import Environments, closed_if_refused
from hybridppo.environments.checks import describe_error, require_spaces
from hybridppo.environments.multi_agent import is_parallel, multi_agent_environment, takes_turns
from hybridppo.environments.options import NEED_COPIES, CriticsOptions, EnvironmentOptions, EnvSource, SelfPlayOptions
from hybridppo.environments.packages import (
    NO_LIMIT,
    adapted,
    env_of_id,
    import_modules,
    is_atari,
    package_of,
    require_limit,
    require_package,
    source_of,
    spec_of,
    without_batch_size,
)
from hybridppo.environments.self_play_game import SelfPlayGame
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.environments.vector import wrap
from hybridppo.environments.wrappers import MaskInObservation, stacked, with_limit
from hybridppo.errors import ConfigurationError, EnvError, HybridPPOError, message_of, shown, shown_name
from hybridppo.spaces.frames import num_frames_of
from hybridppo.spaces.items import max_items_of
from hybridppo.spaces.rows import ObservesOfAgents

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition

logger = logging.getLogger(__name__)

OF_TENSORS = ("num_envs", "device", "single_observation_space", "single_action_space", "reset", "step")
"""The attributes that only batched environments all have."""
WHERE_TO_LOOK = (
    "gymnasium.pprint_registry() lists what there is; if a module has it, write module:id, or module:function"
)
"""The remedy for an unknown environment."""
_MADE: "WeakValueDictionary[int, Any]" = WeakValueDictionary()
"""The environments that functions of this process have returned, without their wrappers, by `id`."""


def make_environments(
    source: EnvSource,
    num_envs: int,
    options: EnvironmentOptions | None = None,
    *,
    first: int = 0,
    threads: int = 0,
    own_number: bool = False,
    copies: int | None = None,
    **changes: Any,
) -> Environments:
    """Make `num_envs` equal environments that are stepped together.

    Restarts (`on_env_error="restart"`), action masks and frame stacks need copies made by the library;
    `vectorization="auto"` then makes copies.

    Args:
        source: an environment's id; a function that makes an environment, a vector of `num_envs`, an environment of
            tensors, or a multi-agent environment (PettingZoo's `ParallelEnv` or `AECEnv`), whose agents are a
            column each; or a batched environment.
        num_envs: number of environments.
        options: how they are made and stepped; None for the defaults.
        first: number of the first environment among those of the run, for messages.
        threads: threads for a vectorised form in C++; 0 for one per core.
        own_number: whether a vector, or a batched environment, may have another number of environments.
        copies: number of copies to make if they are only inspected; None for all. A vectorised form is always whole.
        **changes: single options that replace those in `options`.

    Raises:
        EnvError: if no such environment can be made, with gymnasium's reason.
        ConfigurationError: for an unknown option.
    """
    options = replace(options if options is not None else EnvironmentOptions(), **changes)
    import_modules(options.imports)
    source = source_of(source)
    if options.vectorization == "compiled":
        environments = _compiled(source, num_envs, options, first)
    elif isinstance(source, str):
        with _errors_named(source, options.env_kwargs or {}):
            make = _maker_of(source, num_envs, options, threads, own_number)
            environments = _made_by(make, num_envs, options, first, own_number, copies)
        environments.clips_rewards = is_atari(source)
        if note := package_of(source).note:
            logger.info("%s: %s", source, note)
    elif is_tensor_env(source):
        environments = _of_tensors(source, None if own_number else num_envs, options, owns=False)
    elif callable(source):
        options.refuse("functions", "episodic_life", remedy="leave it out, it is for ids of Atari games (ALE/...)")
        make = with_arguments(source, num_envs, options)
        environments = _made_by(make, num_envs, options, first, own_number, copies)
    else:
        what = "env must be an environment's id, a function that makes one, or a batched environment"
        raise ConfigurationError(f"{what}, got {shown(source)}{_lacking(source)}")
    if options.clip_rewards is not None:
        environments.clips_rewards = options.clip_rewards
    environments.keeps_finals = isinstance(options, CriticsOptions) and options.keeps_finals
    with closed_if_refused(environments):
        if (problem := _misfit(options, environments)) is not None:
            raise ConfigurationError(problem)
        names = (*options.info_metrics, *(f"reward_{number}" for number in range(len(options.reward_weights))))
        if names or options.step_infos:
            environments.measure_infos(names, options.step_infos)
    return environments


def _misfit(options: EnvironmentOptions, environments: Environments) -> str | None:
    """Why options do not go with environments; None if they do."""
    if isinstance(options, SelfPlayOptions) and not (isinstance(environments, SubEnvironments) and environments.agents):
        if environments.is_compiled and environments.agents:
            return "self_play does not work with compiled environments: use vectorization='sync'"
        return (
            "self_play, and agents against each other, are for PettingZoo's multi-agent environments: leave out "
            "self_play or the other agents, or use hybridppo.TwoPlayers of a gymnasium environment"
        )
    observes = _critics_observe(options)
    if environments.keeps_finals and (environments.is_compiled or observes != "own"):
        what = "compiled environments" if environments.is_compiled else f"critic_observes={observes!r}"
        return f"keeps_final_observations of the agent's class does not work with {what}: leave one of the two out"
    if observes != "own" and not environments.agents:
        given = f"={observes!r}" if isinstance(observes, str) else ""
        return f"critic_observes{given} is for multi-agent environments: leave it out, or use critic_keys"
    return None


def is_tensor_env(value: object) -> bool:
    """Whether an object is a batched environment (`hybridppo/environments/tensors.py`), by its attributes."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in OF_TENSORS)


def _lacking(value: Any) -> str:
    """What an object lacks to be a multi-agent environment or of tensors, if it seems to be one.

    It is the end of an error.
    """
    if hasattr(value, "possible_agents") or hasattr(value, "agents"):
        methods = ("reset", "step", "observation_space", "action_space")
        parts = [f"the method {name}" for name in methods if not callable(getattr(value, name, None))]
        parts += [] if hasattr(value, "possible_agents") else ["the list possible_agents"]
        return f", which lacks {', '.join(parts)} to be a multi-agent environment"
    if not hasattr(value, "num_envs") or isinstance(value, VectorEnv):
        return ""
    if hasattr(value, "get_observations") and hasattr(value, "num_actions"):
        return ": it is a VecEnv of rsl_rl: wrap it, hybridppo.tensors.RslRlVecEnv(env)"
    lacking = ", ".join(name for name in OF_TENSORS if not hasattr(value, name))
    return f", which lacks {lacking} to be a batched environment"


def with_arguments(source: Callable[..., Any], num_envs: int, options: EnvironmentOptions) -> Callable[[], Any]:
    """The function with its arguments: `env_kwargs`, and `num_envs` if it has a parameter of that name without default.

    Raises:
        ConfigurationError: if `source` does not take these arguments.
        EnvError: when called, if `source` returns an environment that it or another function has returned before.
    """
    arguments = dict(options.env_kwargs or {})
    try:
        signature = inspect.signature(source)
    except (TypeError, ValueError):  # Python cannot inspect it
        return partial(make_new, source, **arguments)
    asked = signature.parameters.get("num_envs")
    if asked is not None and asked.default is asked.empty and "num_envs" not in arguments:
        arguments["num_envs"] = num_envs
    try:
        signature.bind(**arguments)
    except TypeError as error:
        what = f"{shown_name(source)} makes the environment and cannot be called with env_kwargs {shown(arguments)}"
        raise ConfigurationError(f"{what}: {error}") from error
    return partial(make_new, source, **arguments)


def make_new(make: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """The environment that `make` returns for these arguments.

    Raises:
        EnvError: if a function has returned it before, also within another wrapper. An object that cannot have weak
            references is not checked.
    """
    made = make(*arguments, **keywords)
    core = getattr(made, "unwrapped", made)
    envs = getattr(core, "envs", None)  # of gymnasium's SyncVectorEnv
    for each in (core, *(getattr(env, "unwrapped", env) for env in (envs if isinstance(envs, list | tuple) else ()))):
        if id(each) in _MADE:  # only while the object lives, so no other can have its id
            what = f"the function that makes environments returned the same {type(each).__name__} object twice"
            raise EnvError(f"{what}: let every call make a new one, as lambda: MyEnv() does")
        try:
            _MADE[id(each)] = each
        except TypeError:
            continue
    return made


def _maker_of(source: str, num_envs: int, options: EnvironmentOptions, threads: int, own_number: bool) -> Any:
    """A function that makes an environment of an id, or its vectorised form if it has one that may be used."""
    require_package(source)
    package, env_kwargs = package_of(source), options.env_kwargs or {}
    require_limit(env_kwargs)
    is_limited = env_kwargs.get("max_episode_steps", 1) not in (None, NO_LIMIT)
    may_be_vector = options.vectorization == "auto" and not options.needs_copies and is_limited
    if package.vector is not None:
        kind = f"{source!r}, which has a vector and preprocessing of its own"
        options.refuse(kind, "frame_stack", remedy="pass a function that makes one environment")
        if own_number:  # for evaluations and checks, which step all of them at once
            env_kwargs = without_batch_size(env_kwargs)
        if "batch_size" in env_kwargs:
            options.refuse("batch_size in env_kwargs", "vectorization", *NEED_COPIES)
        if may_be_vector:
            return partial(package.vector, source, num_envs, options.episodic_life, threads, **env_kwargs)
    elif may_be_vector and not options.episodic_life and spec_of(source).vector_entry_point is not None:
        try:
            vector = make_new(gym.make_vec, source, num_envs=num_envs, **env_kwargs)
            return lambda: vector
        except (gym.error.Error, TypeError, ValueError) as error:  # it may not do what a single one does
            logger.info("%s: its own vectorised form cannot be made (%s), copies are stepped", source, error)
    return partial(make_new, env_of_id, source, options.episodic_life, options.imports, **env_kwargs)


@contextlib.contextmanager
def _errors_named(source: EnvSource, env_kwargs: dict[str, Any]) -> Iterator[None]:
    """A context in which errors of gymnasium name the id."""
    try:
        yield
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {source!r} needs a package that is not installed: {message_of(error)}") from error
    except HybridPPOError:
        raise
    except gym.error.Error as error:
        raise EnvError(f"environment {source!r} cannot be made: {message_of(error)} ({WHERE_TO_LOOK})") from error
    except Exception as error:
        message = message_of(error)
        if isinstance(error, TypeError) and any(
            f"unexpected keyword argument '{name}'" in message for name in env_kwargs
        ):
            what = f"environment {source!r} takes other arguments than env_kwargs has"
            raise ConfigurationError(f"{what}: {error}") from error
        if str(source).rpartition(":")[2] not in gym.registry:
            raise EnvError(f"environment {source!r} cannot be made: {message} ({WHERE_TO_LOOK})") from error
        own = error.__cause__ if type(error.__cause__) is type(error) else error  # gymnasium raises some of them again
        raise EnvError(f"environment {source!r} cannot be made: {describe_error(own)}") from error


def _made_by(
    make: Callable[[], Any], num_envs: int, options: EnvironmentOptions, first: int, own_number: bool,
    copies: int | None,
) -> Environments:  # fmt: skip
    """The environments that a function makes: one that is copied, or all of them."""
    make = partial(_adapted, make)
    made = make()
    with closed_if_refused(made):
        if is_tensor_env(made):
            return _of_tensors(made, None if own_number else num_envs, options, owns=True)
        if isinstance(made, VectorEnv):
            return _of_vector(made, num_envs, options, first, own_number)
        if isinstance(made, gym.Env):
            require_spaces(made)
        elif is_parallel(made) or takes_turns(made):
            kind, within = "multi-agent environments", "leave it out, or do it within the environment"
            options.refuse(kind, "frame_stack", "reward_weights", remedy=within)
            options.refuse(kind, "max_items", remedy="leave it out, and make an array of one shape of the items")
        else:
            known = "a gymnasium.Env or VectorEnv, or a pettingzoo.ParallelEnv or AECEnv"
            raise EnvError(f"the function must make {known}; it made {type(made).__name__}{_lacking(made)}")
    there, has_agents = [made], not isinstance(made, gym.Env)  # the one made is the first copy
    wrapped = partial(_wrapped, lambda: there.pop() if there else make(), _wrappers_for(options, has_agents))
    return SubEnvironments(wrapped, copies or num_envs, first, options.on_env_error, has_agents=has_agents)


def _adapted(make: Callable[[], Any]) -> Any:
    return adapted(make())


def _wrappers_for(options: EnvironmentOptions, has_agents: bool) -> list[Callable[[Any], Any]]:
    """The wrappers that several agents or options need, from the inside out."""
    wrappers: list[Callable[[Any], Any]] = []
    if has_agents:
        keeps_finals = isinstance(options, CriticsOptions) and options.keeps_finals
        how = options.action_masks, _critics_observe(options), keeps_finals
        wrappers.append(lambda env: multi_agent_environment(env, *how))
        if isinstance(options, SelfPlayOptions):
            wrappers.append(partial(SelfPlayGame, options=options))
        return wrappers
    if options.reward_weights:
        wrappers.append(partial(WeightedRewards, weights=options.reward_weights))
    if options.max_items:
        wrappers.append(partial(with_limit, max_items=options.max_items))
    if options.action_masks:
        wrappers.append(MaskInObservation)
    if options.frame_stack > 1:
        wrappers.append(partial(stacked, num_frames=options.frame_stack))
    return wrappers


def _wrapped(make: Callable[[], Any], wrappers: Sequence[Callable[[Any], Any]]) -> Any:
    """The environment that `make` makes, within wrappers; closed if one of them refuses it."""
    env = make()
    with closed_if_refused(env):
        return reduce(lambda inner, wrap_it: wrap_it(inner), wrappers, env)


def _of_vector(
    made: "VectorEnv[Any, Any, Any]", num_envs: int, options: EnvironmentOptions, first: int, own_number: bool
) -> Environments:
    require_spaces(made, "single_")
    if num_frames_of(made.single_observation_space) == options.frame_stack:  # they are stacked already
        options = replace(options, frame_stack=1)
    if options.max_items and max_items_of(made.single_observation_space) == options.max_items:  # it says so already
        options = replace(options, max_items=0)
    kind = f"a {type(made).__name__} that a function makes"
    options.refuse(kind, *NEED_COPIES, remedy="let it make one environment")
    if made.num_envs != num_envs and not own_number:
        what = f"the function made a vector of {made.num_envs} environments, and this process needs {num_envs}"
        raise EnvError(f"{what} of them: let it take num_envs as an argument, or make one environment")
    return wrap(made, options.autoreset_mode, first, in_parts=not own_number)


def _of_tensors(env: Any, num_envs: int | None, options: EnvironmentOptions, *, owns: bool) -> Environments:
    from hybridppo.environments.tensors import TensorEnvironments

    kind, needless = f"batched environments ({type(env).__name__})", ["vectorization", "episodic_life", *NEED_COPIES]
    needless += [] if options.autoreset_mode == "same_step" else ["autoreset_mode"]
    options.refuse(kind, *needless, remedy="leave it out, since they step and reset themselves")
    if not owns:
        options.refuse(kind, "env_kwargs", remedy="leave it out, or pass a function that makes the environment")
    return TensorEnvironments(env, num_envs, owns=owns, critic_observes=_critics_observe(options))


def _critics_observe(options: EnvironmentOptions) -> ObservesOfAgents:
    return options.critic_observes if isinstance(options, CriticsOptions) else "own"


def compiled_definition(source: EnvSource, options: EnvironmentOptions) -> "Definition":
    """The compiled definition of an id or a function; imports the modules that register it.

    Raises:
        EnvError: if there is no such environment, or it has no compiled form.
    """
    from hybridppo.compiled.classic import compiled_form

    import_modules(options.imports)
    source = source_of(source)
    with _errors_named(source, {}):
        return compiled_form(spec_of(source).id if isinstance(source, str) else source)


def _compiled(source: EnvSource, num_envs: int, options: EnvironmentOptions, first: int) -> Environments:
    from hybridppo.environments.compiled import CompiledEnvironments

    options.refuse("vectorization='compiled'", "env_kwargs", remedy="leave one of the two out")
    definition = compiled_definition(source, options)
    return CompiledEnvironments(definition, num_envs, first, options.env_threads, _critics_observe(options))
