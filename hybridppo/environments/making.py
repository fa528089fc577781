"""Environments from an id or a function: copies of one, or its own vectorised form."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from hybridppo.environments.action_masks import MaskInObservation
from hybridppo.environments.async_vector import ProcessVector
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.environments.vector import wrap
from hybridppo.errors import ConfigurationError, EnvError, shown


def make_environments(
    source: EnvSource,
    num_envs: int,
    options: EnvironmentOptions | None = None,
    *,
    first: int = 0,
    **changes: Any,
) -> Environments:
    """`num_envs` sub-environments of one kind, stepped as one.

    Only sub-environments that the library makes can be restarted (`on_env_error="restart"`) or have action masks;
    `vectorization="auto"` then means those.

    Args:
        source: an id registered with gymnasium, or a function that makes one environment, or one that
            makes a vector environment of `num_envs`.
        num_envs: how many.
        options: how they are made and stepped; None for the defaults.
        first: the number of the first among those of the run, for messages.
        **changes: single options, in place of those in `options`.

    Raises:
        EnvError: where no such environment can be made, with gymnasium's reason.
        ConfigurationError: for an unknown option.
    """
    options = replace(options if options is not None else EnvironmentOptions(), **changes)
    action_masks, restarts, autoreset_mode = options.action_masks, options.restarts, options.autoreset_mode
    if options.vectorization == "compiled":
        return _compiled(source, num_envs, options, first)
    if not isinstance(source, str):
        if not callable(source):
            raise ConfigurationError(
                f"env must be an environment's id or a function that makes one, got {shown(source)}"
            )
        made = source()
        if isinstance(made, VectorEnv):
            if restarts or action_masks:
                made.close()
                raise ConfigurationError(
                    f"{'on_env_error=' + repr('restart') if restarts else 'action_masks=True'} needs copies that the "
                    f"library makes, and the function made a {type(made).__name__}: let it make one environment"
                )
            if made.num_envs != num_envs:
                message = f"the function made a vector of {made.num_envs} environments, but num_envs is {num_envs}"
                raise EnvError(f"{message}: make them equal")
            return wrap(made, autoreset_mode, first)
        if not isinstance(made, gym.Env):
            raise EnvError(f"the function must make a gymnasium.Env or VectorEnv, it made {type(made).__name__}")
        made.close()
        source = partial(_with_mask, source) if action_masks else source
        return _made_here(source, num_envs, options, first)
    try:
        must_be_made_here = options.vectorization != "auto" or restarts or action_masks
        if not must_be_made_here and gym.spec(source).vector_entry_point is not None:
            return wrap(gym.make_vec(source, num_envs=num_envs), autoreset_mode, first)
        make: Callable[[], Any] = partial(gym.make, source)
        make = partial(_with_mask, make) if action_masks else make
        return _made_here(make, num_envs, options, first)
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {source!r} needs a package that is not installed: {error}") from error
    except (gym.error.Error, ImportError, ValueError) as error:  # ValueError: of an id like ":"
        raise EnvError(
            f"environment {source!r} cannot be made: {error} (gymnasium.pprint_registry() lists what there is)"
        ) from error


def _compiled(source: EnvSource, num_envs: int, options: EnvironmentOptions, first: int) -> Environments:
    from hybridppo.compiled.building import require_numba
    from hybridppo.compiled.known import compiled_form
    from hybridppo.environments.compiled import CompiledEnvironments

    require_numba()
    try:
        definition = compiled_form(source)
    except (gym.error.Error, ImportError) as error:
        raise EnvError(
            f"environment {source!r} cannot be made: {error} (gymnasium.pprint_registry() lists what there is)"
        ) from error
    return CompiledEnvironments(definition, num_envs, first, options.env_threads)


def _with_mask(make: Callable[[], Any]) -> MaskInObservation:
    return MaskInObservation(make())


def _made_here(make: Callable[[], Any], num_envs: int, options: EnvironmentOptions, first: int) -> Environments:
    if options.vectorization != "async":
        return SyncEnvironments(make, num_envs, first, options.on_env_error)
    try:
        return wrap(ProcessVector(make, num_envs, first, options.worker_timeout), first=first)
    except RuntimeError as error:  # gymnasium found that the spaces differ
        raise EnvError(f"the {num_envs} environments differ: {error}") from error
