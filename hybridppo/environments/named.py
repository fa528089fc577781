"""Environments of other packages: the package that an id needs, and how its environments are made.

A package is imported only for its own ids. To add a package, add a line to `PACKAGES`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from hybridppo.environments import atari, env_pool, minatar, minigrid
from hybridppo.environments.registration import import_modules, spec_of
from hybridppo.errors import ConfigurationError, EnvError, pip_install, shown


@dataclass(frozen=True)
class Package:
    """A package that registers its environments when it is imported."""

    prefixes: tuple[str, ...]
    """Prefix of its ids."""
    module: str
    extra: str
    """The extra of this library that installs it."""
    register: Callable[[], object] = lambda: None
    """Called once it is imported."""
    prepared: Callable[[Any], Any] = lambda env: env
    """Wraps its environments if they need it."""
    note: str = ""
    """A note for users of its environments."""


PACKAGES = (
    Package((atari.PREFIX,), "ale_py", "atari"),
    Package((env_pool.PREFIX,), "envpool", "envpool"),
    Package((minatar.PREFIX,), "minatar", "minatar", minatar.register, minatar.prepared),
    Package(minigrid.PREFIXES, "minigrid", "minigrid", minigrid.register, minigrid.prepared, minigrid.NOTE),
)


def package_of(env_id: str) -> Package | None:
    """The package of an id, if it is one of `PACKAGES`; else None."""
    return next((package for package in PACKAGES if env_id.startswith(package.prefixes)), None)


def require_package(env_id: str) -> None:
    """Import the package of an id, if it is not imported yet.

    Raises:
        EnvError: if it is not installed; it names the extra that installs it.
    """
    package = package_of(env_id)
    if package is None or env_id in gym.registry:
        return
    try:
        importlib.import_module(package.module)
        package.register()
    except ImportError as error:
        raise EnvError(
            f"environment {env_id!r} needs {package.module}, which cannot be imported ({error}): "
            f"{pip_install(package.extra)}"
        ) from error


def note_of(env_id: object) -> str:
    """A note for users of an environment; "" if there is none."""
    package = package_of(env_id) if isinstance(env_id, str) else None
    return package.note if package is not None else ""


def is_of_pool(env_id: object) -> bool:
    """Whether an id belongs to EnvPool, which gymnasium does not register."""
    return isinstance(env_id, str) and env_id.startswith(env_pool.PREFIX)


def is_atari(env_id: object) -> bool:
    """Whether an id is a game of ale-py."""
    return isinstance(env_id, str) and env_id.startswith(atari.PREFIX)


def make_env(env_id: str, episodic_life: bool = False, imports: str = "", **env_kwargs: Any) -> "gym.Env[Any, Any]":
    """One environment as `train` steps it, with the observations that a trained agent takes.

    Args:
        env_id: the environment's id.
        episodic_life: whether the loss of a life ends an episode of an Atari game.
        imports: modules that register environments, to import first, with commas between them.
        **env_kwargs: arguments of the environment, if gymnasium makes it.

    Raises:
        ConfigurationError: for a function, or anything else that is no id.
        EnvError: if its package is missing.
        gymnasium.error.Error: if gymnasium cannot make it.
    """
    if not isinstance(env_id, str):
        raise ConfigurationError(f"make_env takes an environment's id, got {shown(env_id)}: call a function yourself")
    return env_of_id(env_id, episodic_life, imports, **env_kwargs)


def env_of_id(env_id: str, episodic_life: bool, imports: str, /, **env_kwargs: Any) -> "gym.Env[Any, Any]":
    """As `make_env`, for an environment whose arguments may have the names of the parameters of `make_env`."""
    import_modules(imports)
    require_package(env_id)
    if is_of_pool(env_id):
        return env_pool.one_of_pool(env_id, episodic_life)
    if is_atari(env_id):
        return atari.one_game(env_id, episodic_life)
    if episodic_life:
        raise ConfigurationError(f"episodic_life=True is for Atari games (ALE/...), and {env_id!r} is not one")
    env, package = gym.make(spec_of(env_id).id, **env_kwargs), package_of(env_id)
    return package.prepared(env) if package is not None else env
