"""Environments from an id or a function: copies of one, or its own vectorised form."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from hybridppo.environments.action_masks import MaskInObservation
from hybridppo.environments.async_vector import ProcessVector
from hybridppo.environments.base import Environments
from hybridppo.environments.options import MODES, WORKER_TIMEOUT, AutoresetName, EnvSource, OnEnvError, Vectorization
from hybridppo.environments.vector import wrap
from hybridppo.errors import ConfigurationError, EnvError, shown


def make_environments(
    source: EnvSource,
    num_envs: int,
    *,
    vectorization: Vectorization = "auto",
    autoreset_mode: AutoresetName | None = None,
    on_env_error: OnEnvError = "raise",
    worker_timeout: float = WORKER_TIMEOUT,
    action_masks: bool = False,
    first: int = 0,
) -> Environments:
    """`num_envs` copies of an environment, stepped as one.

    Args:
        source: an id registered with gymnasium, or a function that makes one environment, or one that
            makes a vector environment of `num_envs`.
        num_envs: how many.
        vectorization: `auto` takes the environment's own vectorised implementation where it has one and
            steps the copies in turn otherwise; `sync` always does that; `async` gives each a process,
            which pays only where a step takes far longer than a message (a millisecond and more).
        autoreset_mode: for vector environments that do not declare theirs.
        on_env_error: what to do where an environment fails, or returns what cannot be used: `raise`, or `restart` that
            one. Only copies that the library steps in turn can be restarted; `auto` then means those.
        worker_timeout: seconds that a step may take where each copy has a process (`async`).
        action_masks: whether observations are to hold the masks that the environment gives in `info["action_mask"]`
            (`MaskInObservation`). Only copies that the library makes can have them; `auto` then means those.
        first: the number of the first among those of the run, for messages.

    Raises:
        EnvError: where no such environment can be made, with gymnasium's reason.
        ConfigurationError: for an unknown option.
    """
    if vectorization not in ("auto", "sync", "async"):
        raise ConfigurationError(f"vectorization must be auto, sync or async, got {shown(vectorization)}")
    if autoreset_mode is not None and autoreset_mode not in tuple(MODES):
        raise ConfigurationError(f"autoreset_mode must be one of {', '.join(MODES)}, got {shown(autoreset_mode)}")
    if on_env_error not in ("raise", "restart"):
        raise ConfigurationError(f"on_env_error must be raise or restart, got {shown(on_env_error)}")
    if not isinstance(action_masks, bool):
        raise ConfigurationError(f"action_masks must be True or False, got {shown(action_masks)}")
    restarts = on_env_error == "restart"
    if restarts and vectorization == "async":
        raise ConfigurationError(
            "on_env_error='restart' needs copies that are stepped in turn: leave vectorization='async' out, and set "
            "num_workers where processes are wanted"
        )
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
        return _copies_of(source, num_envs, vectorization, on_env_error, worker_timeout, first)
    try:
        makes_copies = vectorization != "auto" or restarts or action_masks
        if not makes_copies and gym.spec(source).vector_entry_point is not None:
            return wrap(gym.make_vec(source, num_envs=num_envs), autoreset_mode, first)
        make: Callable[[], Any] = partial(gym.make, source)
        make = partial(_with_mask, make) if action_masks else make
        return _copies_of(make, num_envs, vectorization, on_env_error, worker_timeout, first)
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {source!r} needs a package that is not installed: {error}") from error
    except (gym.error.Error, ImportError, ValueError) as error:  # ValueError: of an id like ":"
        raise EnvError(
            f"environment {source!r} cannot be made: {error} (gymnasium.pprint_registry() lists what there is)"
        ) from error


def _with_mask(make: Callable[[], Any]) -> MaskInObservation:
    return MaskInObservation(make())


def _copies_of(
    make: Callable[[], Any],
    num_envs: int,
    vectorization: Vectorization,
    on_env_error: OnEnvError,
    worker_timeout: float,
    first: int,
) -> Environments:
    if vectorization != "async":
        from hybridppo.environments.sync import SyncEnvironments

        return SyncEnvironments(make, num_envs, first, on_env_error)
    try:
        return wrap(ProcessVector(make, num_envs, first, worker_timeout), first=first)
    except RuntimeError as error:  # gymnasium found that the copies' spaces differ
        raise EnvError(f"the {num_envs} environments differ: {error}") from error
