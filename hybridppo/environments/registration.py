"""Imports the modules that register environments, in this process and in others.

An id may name its module, as in gymnasium: `my_envs:Maze-v0`.
"""

import contextlib
import importlib
import sys
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from hybridppo.errors import ENV_FAILURES, ConfigurationError, EnvError, pip_install, shown


def require_imports(names: object) -> None:
    """Refuse names of modules that are no text.

    Raises:
        ConfigurationError: with the remedy.
    """
    if not isinstance(names, str):
        raise ConfigurationError(
            f"imports must name modules, with commas between, got {shown(names)}: write 'my_envs,others'"
        )


def import_modules(names: str) -> None:
    """Import modules that register environments; `names` has commas between them.

    Raises:
        ConfigurationError: if it is no text.
        EnvError: if there is no such module, or it cannot be imported.
    """
    require_imports(names)
    for name in filter(None, (name.strip() for name in names.split(","))):
        try:
            importlib.import_module(name)
        except ENV_FAILURES as error:  # any error of the module
            is_extra = isinstance(error, ModuleNotFoundError) and error.name == "pettingzoo"
            remedy = pip_install("pettingzoo") if is_extra else "is it installed, or in the folder you are in?"
            raise EnvError(
                f"the module {name!r}, which is to register environments, cannot be imported: {type(error).__name__}: "
                f"{error} ({remedy})"
            ) from error


def spec_of(env_id: str) -> EnvSpec:
    """The registered spec of an id; imports the module that the id names.

    Raises:
        EnvError: if its module cannot be imported.
        gymnasium.error.Error: if there is no such environment.
    """
    module, _, name = env_id.rpartition(":")
    try:
        import_modules(module)
    except EnvError as error:
        raise EnvError(f"environment {env_id!r} cannot be made: {error}") from error.__cause__
    return gym.spec(name)


def source_of(source: Any) -> Any:
    """The function that an id names in a module, as `pettingzoo.classic.connect_four_v3:env`; all else as it is.

    If gymnasium knows the id, it is that environment.

    Raises:
        EnvError: if the module cannot be imported.
    """
    module, _, name = source.rpartition(":") if isinstance(source, str) else ("", "", "")
    if not module:
        return source
    try:
        spec_of(source)
    except gym.error.Error:
        found = getattr(sys.modules.get(module), name, None)
        return found if callable(found) else source
    return source


def source_here(source: Any, imports: str) -> Any:
    """An environment's id, or the function, from the result of `making.to_send`, in another process."""
    if not isinstance(source, EnvSpec):
        return source
    import_modules(imports)
    if source.id not in gym.registry and isinstance(source.entry_point, str):
        # Import the module first: if it registers the id after us, gymnasium warns of a second registration.
        with contextlib.suppress(ImportError):  # making the environment will raise the error
            importlib.import_module(source.entry_point.partition(":")[0])
    gym.registry.setdefault(source.id, source)
    return source.id
