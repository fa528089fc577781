"""Environments by their id: imported where need be, in this process and in others.

An id may name the module that registers it, as gymnasium has it: `my_envs:Maze-v0`.
"""

import contextlib
import importlib
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from hybridppo.errors import EnvError


def import_modules(names: str) -> None:
    """Import modules, with commas between their names, for the environments that they register.

    Raises:
        EnvError: if there is no such module, or it cannot be imported.
    """
    for name in filter(None, (name.strip() for name in names.split(","))):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module raises while it is imported
            raise EnvError(
                f"the module {name!r}, which is to register environments, cannot be imported: {type(error).__name__}: "
                f"{error} (is it installed, or in the folder you are in?)"
            ) from error


def spec_of(env_id: str) -> EnvSpec:
    """What is registered under an id, after its module is imported where it names one.

    Raises:
        EnvError: if its module cannot be imported.
        gymnasium.error.Error: where there is no such environment.
    """
    module, _, name = env_id.rpartition(":")
    try:
        import_modules(module)
    except EnvError as error:
        raise EnvError(f"environment {env_id!r} cannot be made: {error}") from error.__cause__
    return gym.spec(name)


def source_here(source: Any, imports: str) -> Any:
    """An environment's id, or the function, out of what `making.to_send` gave, in a process that may know nothing."""
    if not isinstance(source, EnvSpec):
        return source
    import_modules(imports)
    if source.id not in gym.registry and isinstance(source.entry_point, str):
        # The module may register it itself: after us, it would say that it does so for the second time.
        with contextlib.suppress(ImportError):  # which making the environment will tell of
            importlib.import_module(source.entry_point.partition(":")[0])
    gym.registry.setdefault(source.id, source)
    return source.id
