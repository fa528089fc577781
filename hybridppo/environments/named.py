"""Environments by the name of their package: what is imported for an id, and how one is made.

A package is imported only where an id of it is asked for. A further one is a line in `PACKAGES`, and, where its
environments need more than to be made, one in `PREPARED`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from hybridppo.environments import atari, env_pool, minatar, minigrid
from hybridppo.environments.registration import import_modules, spec_of
from hybridppo.errors import ConfigurationError, EnvError, pip_install


@dataclass(frozen=True)
class Package:
    """A package whose environments gymnasium knows once it is imported."""

    prefixes: tuple[str, ...]
    """That its ids begin with."""
    module: str
    extra: str
    """Of this library, which installs it."""
    register: Callable[[], object] = lambda: None
    """What is called once it is imported."""
    note: str = ""
    """What whoever uses its environments should know."""


PACKAGES = (
    Package((atari.PREFIX,), "ale_py", "atari"),
    Package((env_pool.PREFIX,), "envpool", "envpool"),
    Package((minatar.PREFIX,), "minatar", "minatar", minatar.register),
    Package(minigrid.PREFIXES, "minigrid", "minigrid", minigrid.register, minigrid.NOTE),
)

PREPARED: dict[str, Callable[[Any], Any]] = {
    minatar.PREFIX: minatar.prepared,
    **dict.fromkeys(minigrid.PREFIXES, minigrid.prepared),
}
"""What is put around a package's environments."""


def package_of(env_id: str) -> Package | None:
    """The package that an id is of, where it is one of `PACKAGES`."""
    return next((package for package in PACKAGES if env_id.startswith(package.prefixes)), None)


def require_package(env_id: str) -> None:
    """Import the package of an id, where there is one that gymnasium does not know yet.

    Raises:
        EnvError: if it is not installed, with the extra that installs it.
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
    """What whoever uses an environment should know of what is done with it; "" for nothing."""
    package = package_of(env_id) if isinstance(env_id, str) else None
    return package.note if package is not None else ""


def is_of_pool(env_id: object) -> bool:
    """Whether it is an id of EnvPool, which gymnasium never knows."""
    return isinstance(env_id, str) and env_id.startswith(env_pool.PREFIX)


def is_atari(env_id: object) -> bool:
    """Whether it is a game of ale-py's vector."""
    return isinstance(env_id, str) and env_id.startswith(atari.PREFIX)


def make_env(env_id: str, episodic_life: bool = False, imports: str = "", **env_kwargs: Any) -> "gym.Env[Any, Any]":
    """One environment, as `train` would step it: what an agent that was trained in it acts on.

    Args:
        env_id: its id.
        episodic_life: of an Atari game, whether the loss of a life ends an episode.
        imports: modules to import first, with commas between them, for what they register.
        **env_kwargs: for the environment itself, where gymnasium makes it.

    Raises:
        EnvError: if its package is missing.
        gymnasium.error.Error: where gymnasium cannot make it.
    """
    import_modules(imports)
    require_package(env_id)
    if is_of_pool(env_id):
        return env_pool.one_of_pool(env_id, episodic_life)
    if is_atari(env_id):
        return atari.one_game(env_id, episodic_life)
    if episodic_life:
        raise ConfigurationError(f"episodic_life=True is for Atari games (ALE/...), and {env_id!r} is none")
    env = gym.make(spec_of(env_id).id, **env_kwargs)
    prepare = next((prepare for prefix, prepare in PREPARED.items() if env_id.startswith(prefix)), None)
    return prepare(env) if prepare is not None else env
