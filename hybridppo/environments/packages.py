"""What an environment's id stands for: the modules that register it, and packages such as Atari games and MiniGrid.

An id may name its module, as in gymnasium: `my_envs:Maze-v0`.

A package is imported only for its own ids. To add a package, add a line to `PACKAGES`.

Atari games (`ALE/Pong-v5`) are stepped by ale-py's vector of emulators in C++. Preprocessing is the usual one (Machado
et al., "Revisiting the Arcade Learning Environment", 2018): four frames per action, the maximum of the last two, gray,
84 x 84, the last four stacked, up to 30 no-op frames at the start of a game. The version of the id sets the rest: `v5`
repeats the last action with probability 0.25, and ends a game after 108,000 frames. Rewards are the game's; they are
clipped only for learning (`Environments.clips_rewards`), so returns and evaluations are scores.

EnvPool (`envpool/Pong-v5`) steps by threads in C++, asynchronously if it gets a `batch_size`.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from gymnasium.wrappers import TransformObservation

from hybridppo.environments.checks import takes_seed
from hybridppo.errors import ConfigurationError, EnvError, failures, pip_install, shown, shown_error
from hybridppo.spaces.kinds import map_parts
from hybridppo.system.validation import require_whole

COUNTS = ("n_agents", "num_agents", "nagents", "n_agent", "agents")
"""Attributes that packages have for the number of agents, or for the list of them."""

MAX_SEED = 2**31 - 1
"""ale-py and EnvPool take seeds of 31 bits."""


class OneOfVector(gym.Env[Any, Any]):
    """Wraps a vector of one, for environments that exist only as vectors: to check, watch or restart them.

    Args:
        vector: a vector of one environment, which resets itself.
        mode: `NEXT_STEP` or `SAME_STEP`, the vector's autoreset mode.
    """

    def __init__(self, vector: "VectorEnv[Any, Any, Any]", mode: AutoresetMode) -> None:
        self.vector = vector
        self._resets_at_once = mode is AutoresetMode.SAME_STEP
        self._begun: Any = None
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed, the one that the vector has already begun, if there is one."""
        begun, self._begun = self._begun, None
        if begun is not None and seed is None:
            return begun, {}
        observations, infos = self.vector.reset(seed=seed, options=options)
        return _first_of_batch(observations), _first_of_infos(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The vector's step."""
        observations, rewards, terminated, truncated, infos = self.vector.step(np.asarray(action)[None])
        observation = _first_of_batch(observations)
        if self._resets_at_once and (terminated[0] or truncated[0]):
            self._begun, observation = observation, _first_of_batch(infos["final_obs"])
            infos = infos.get("final_info", infos)
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _first_of_infos(infos)

    def close(self) -> None:
        """Close the vector."""
        self.vector.close()


def _first_of_batch(batch: Any) -> Any:
    return map_parts(lambda part: part[0], batch)


def _first_of_infos(infos: Any) -> dict[str, Any]:
    """The entries of the vector's only environment, without their masks (`_profit` of `profit`)."""
    arrays = {name: value for name, value in infos.items() if isinstance(value, np.ndarray)}
    masks = {f"_{name}" for name in arrays} & arrays.keys()
    there = (name for name in arrays.keys() - masks if np.all(arrays.get(f"_{name}", True)))
    return {name: arrays[name][0] for name in there}


class _WithShortSeeds(VectorWrapper):  # not generic in older releases of gymnasium
    """A vector that gets one seed of 31 bits for each environment."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        seeds = None if seed is None else np.array([(seed + i) % MAX_SEED for i in range(self.num_envs)])
        vector: Any = self.env  # unlike most vectors, it takes a list of seeds
        return vector.reset(seed=seeds, options=options)


def atari_vector(env_id: str, num_envs: int, episodic_life: bool, threads: int, **options: Any) -> Any:
    """Atari games, each with its own generator, so that their division among processes changes nothing."""
    if options:
        what = f"env_kwargs={shown(options)} does not work with {env_id!r}, which has preprocessing of its own"
        raise ConfigurationError(f"{what}: pass a function that makes ale-py's AtariVectorEnv")
    spec = gym.spec(env_id)
    # The class writes its mode into the metadata of all vectors, which would then declare it as theirs.
    of_all = VectorEnv.metadata
    VectorEnv.metadata = dict(of_all)
    try:
        vector = gym.make_vec(
            spec,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point",
            num_threads=threads,
            # Every row is then a step, also after the loss of a life, which resets nothing.
            autoreset_mode=AutoresetMode.SAME_STEP,
            reward_clipping=False,
            # ale-py's episodic_life begins a new game at the loss of a life, so the other lives are never played.
            life_loss_info=episodic_life,
        )
        vector.metadata = VectorEnv.metadata
    finally:
        VectorEnv.metadata = of_all
    return _WithShortSeeds(vector)


class SeededPool(VectorEnv[Any, Any, Any]):
    """Environments of EnvPool, each with its own seed: a pool that is made at its reset, since it then takes the seed.

    Args:
        env_id: the id.
        num_envs: number of environments.
        episodic_life: whether the loss of a life ends an episode of an Atari game.
        threads: threads that step them; 0 for one per core.
        **options: EnvPool's own; with a `batch_size` below `num_envs`, it is an asynchronous vector.

    Raises:
        EnvError: if EnvPool has no such environment.
        ConfigurationError: for `episodic_life` without an Atari game.
    """

    def __init__(self, env_id: str, num_envs: int, episodic_life: bool, threads: int, **options: Any) -> None:
        if reserved := options.keys() & {"num_envs", "episodic_life", "seed", "env_seed"}:
            raise ConfigurationError(f"env_kwargs has {', '.join(sorted(reserved))}: use the training's own options")
        self.batch_size = options.pop("batch_size", num_envs)
        self._name, spec = env_id.removeprefix(ENV_POOL), _spec_of_pool(env_id, **options)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space = spec.gymnasium_observation_space
        self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        is_game = is_atari(env_id)
        if episodic_life and not is_game:
            raise ConfigurationError(f"episodic_life=True is for Atari games, and {env_id!r} is not one: leave it out")
        options = {"num_threads": threads, **options, "num_envs": num_envs, "batch_size": self.batch_size}
        self._options = options | ({"episodic_life": episodic_life} if is_game else {})
        self._pool: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Make the pool again if a seed is given; the `i`-th environment gets `seed + i`."""
        import envpool

        if seed is not None or self._pool is None:
            self.close_extras()
            seeds = [int((seed or 0) + i) % MAX_SEED for i in range(self.num_envs)]
            self._pool = envpool.make_gymnasium(self._name, seed=seeds, **self._options)
        if self.batch_size == self.num_envs:
            return self._pool.reset()
        self._pool.async_reset()
        rows: dict[int, Any] = {}
        while len(rows) < self.num_envs:
            observations, infos = self._pool.recv(reset=True)
            rows |= dict(zip(infos["env_id"].tolist(), iterate(self.observation_space, observations), strict=True))
        whole: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, [rows[env] for env in range(self.num_envs)], whole), {}

    def step(self, actions: Any) -> Any:
        """The pool's step."""
        return self._pool.step(np.asarray(actions, self.single_action_space.dtype))

    def send(self, actions: Any, env_id: Any) -> None:
        """Let these environments step."""
        self._pool.send(np.asarray(actions, self.single_action_space.dtype), env_id)

    def recv(self) -> Any:
        """The step of the environments that are ready first, with their numbers in `infos["env_id"]`."""
        return self._pool.recv()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def without_batch_size(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an environment without the size of a part, for environments that step together."""
    return {name: value for name, value in env_kwargs.items() if name != "batch_size"}


def _spec_of_pool(env_id: str, **options: Any) -> Any:
    import envpool

    name = env_id.removeprefix(ENV_POOL)
    try:
        return envpool.make_spec(name, **options)
    except KeyError:
        raise EnvError(f"environment {env_id!r} cannot be made: envpool.list_all_envs() has no {name!r}") from None


def truths_as_pixels(env: "gym.Env[Any, Any]") -> "gym.Env[Any, Any]":
    """MinAtar's observations `[10, 10, channels]` of bool as bytes, 0 and 255, which pass through convolutions."""
    if env.observation_space.dtype != np.bool_:
        return env
    pixels = Box(0, 255, env.observation_space.shape, np.uint8)
    return TransformObservation(env, partial(np.multiply, np.uint8(255)), pixels)


def without_mission(env: "gym.Env[Any, Any]") -> "gym.Env[Any, Any]":
    """MiniGrid's observations without the mission, a text, which no network here reads.

    The image becomes numbers, which are normalised instead of divided by 255: it has codes from 0 to 10 of the objects
    in each cell, and no brightness.
    """
    space = env.observation_space
    if not isinstance(space, Dict) or "mission" not in space.spaces:
        return env
    parts = {key: part for key, part in space.spaces.items() if key != "mission"}
    codes = {key: Box(0.0, 255.0, part.shape, np.float32) for key, part in parts.items() if part.dtype == np.uint8}
    return TransformObservation(env, partial(_with_numbers, [*parts], [*codes]), Dict({**parts, **codes}))


def _with_numbers(keys: Collection[str], of_numbers: Collection[str], observation: Any) -> Any:
    """The parts with these keys, of which some become float32."""
    return {key: observation[key].astype(np.float32) if key in of_numbers else observation[key] for key in keys}


def _register_minigrid() -> None:
    """Before version 3, importing the package does so."""
    if "MiniGrid-Empty-5x5-v0" not in gym.registry:
        importlib.import_module("minigrid").register_minigrid_envs()


@dataclass(frozen=True)
class Package:
    """A package that registers its environments when it is imported."""

    prefixes: tuple[str, ...]
    """Prefix of its ids."""
    module: str
    extra: str
    """The extra of this library that installs it."""
    vector: Callable[..., Any] | None = None
    """Makes its vector, if its environments exist only as vectors: from the id, `num_envs`, `episodic_life`, threads,
    and `env_kwargs`."""
    register: Callable[[], object] = lambda: None
    """Called once it is imported."""
    wrapper: Callable[["gym.Env[Any, Any]"], "gym.Env[Any, Any]"] = lambda env: env
    """Wraps environments, if they need it."""
    note: str = ""
    """A note for users of its environments."""


NO_LIMIT = -1
"""The `max_episode_steps` with which `gymnasium.make` limits no episode; a vectorised form does not know it."""
ATARI, ENV_POOL = "ALE/", "envpool/"
PACKAGES = (
    Package((ATARI,), "ale_py", "atari", atari_vector),
    Package((ENV_POOL,), "envpool", "envpool", SeededPool),
    Package(
        ("MinAtar/",), "minatar", "minatar", wrapper=truths_as_pixels,
        # It registers its games only if gymnasium loads plugins.
        register=lambda: importlib.import_module("minatar.gym").register_envs(),
    ),
    Package(
        ("MiniGrid-", "BabyAI-"), "minigrid", "minigrid", register=_register_minigrid, wrapper=without_mission,
        note="its mission, a text, is left out of what is observed: the image, as numbers, and the direction stay",
    ),
)  # fmt: skip


OTHERS = Package((), "", "")
"""Stands for all ids of other packages."""


def package_of(env_id: object) -> Package:
    """The package of an id, if it is one of `PACKAGES`; else `OTHERS`."""
    own = (package for package in PACKAGES if isinstance(env_id, str) and env_id.startswith(package.prefixes))
    return next(own, OTHERS)


def require_package(env_id: str) -> None:
    """Import the package of an id, if it is not imported yet.

    Raises:
        EnvError: if it is not installed; it names the extra that installs it.
    """
    package = package_of(env_id)
    if package is OTHERS or env_id in gym.registry:
        return
    try:
        importlib.import_module(package.module)
        package.register()
    except ImportError as error:
        what = f"environment {env_id!r} needs {package.module}, which cannot be imported"
        raise EnvError(f"{what} ({error}): {pip_install(package.extra)}") from error


def is_atari(env_id: str) -> bool:
    """Whether an id is an Atari game, of ale-py or of EnvPool, whose package is imported."""
    if not env_id.startswith(ENV_POOL):
        return env_id.startswith(ATARI)
    settings = _spec_of_pool(env_id).config._asdict()
    return "episodic_life" in settings and "reward_clip" in settings


def make_env(env_id: str, episodic_life: bool = False, imports: str = "", **env_kwargs: Any) -> "gym.Env[Any, Any]":
    """One environment as `train` steps it, with the observations that a trained agent takes.

    Args:
        env_id: the environment's id, or `module:function` for a function that makes it.
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
    import_modules(imports)
    source: Any = source_of(env_id)
    made = source(**env_kwargs) if callable(source) else env_of_id(env_id, episodic_life, "", **env_kwargs)
    return cast("gym.Env[Any, Any]", adapted(made))


def env_of_id(env_id: str, episodic_life: bool, imports: str, /, **env_kwargs: Any) -> "gym.Env[Any, Any]":
    """As `make_env`, for an environment whose arguments may have the names of the parameters of `make_env`."""
    import_modules(imports)
    require_package(env_id)
    package = package_of(env_id)
    if package.vector is not None:
        vector = package.vector(env_id, 1, episodic_life, 1, **without_batch_size(env_kwargs))
        return OneOfVector(vector, vector.metadata["autoreset_mode"])
    if episodic_life:
        raise ConfigurationError(f"episodic_life=True is for Atari games (ALE/...), and {env_id!r} is not one")
    require_limit(env_kwargs)
    env = gym.make(spec_of(env_id).id, **env_kwargs)
    return package.wrapper(env)


def adapted(made: Any) -> Any:
    """The environment, or an adapter with gymnasium's or PettingZoo's interface, of which a warning tells once."""
    if _has_old_interface(made):
        from hybridppo.environments.adapters import with_old_interface

        made = with_old_interface(made)
    if isinstance(made, gym.Env) and _has_agents(made):
        from hybridppo.environments.adapters import TupleOfAgents

        made = TupleOfAgents(made)
    return made


def _has_old_interface(made: Any) -> bool:
    """Whether an object has `reset` and `step`, but not as gymnasium has them."""
    if isinstance(made, gym.Env):
        return not takes_seed(made.unwrapped.reset)
    if isinstance(made, type) or any(hasattr(made, name) for name in ("possible_agents", "num_envs")):
        return False
    spaces = [getattr(made, name, None) for name in ("observation_space", "action_space")]
    has_spaces = not any(space is None or callable(space) for space in spaces)
    return has_spaces and all(callable(getattr(made, name, None)) for name in ("reset", "step"))


def _has_agents(env: Any) -> bool:
    """Whether an environment's spaces are lists, or tuples with a part for each of the agents that it says it has."""
    spaces: list[Any] = [env.observation_space, env.action_space]
    if not all(isinstance(space, gym.spaces.Tuple) for space in spaces):
        return False
    if isinstance(env.unwrapped.action_space, list):  # OldInterface makes a Tuple of it
        return True
    counts = {_count(getattr(env.unwrapped, name, None)) for name in COUNTS}
    return len(spaces[0].spaces) == len(spaces[1].spaces) in counts


def _count(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return len(value)
    return int(value) if isinstance(value, (int, np.integer)) else None


def require_limit(env_kwargs: Mapping[str, Any]) -> None:
    """Refuse a limit of episodes that `gymnasium.make` does not take.

    Raises:
        ConfigurationError: with the value.
    """
    if (limit := env_kwargs.get("max_episode_steps")) not in (None, NO_LIMIT):
        require_whole(f"max_episode_steps in env_kwargs ({NO_LIMIT} for no limit)", limit)


def require_imports(names: object) -> None:
    """Refuse names of modules that are no text.

    Raises:
        ConfigurationError: with the remedy.
    """
    if not isinstance(names, str):
        raise ConfigurationError(f"imports must name modules, with commas between, got {shown(names)}")


_SEARCHED: list[str] = []
"""The folder in which modules that the user names are looked for, too, if there is one."""


def look_in_working_directory() -> None:
    """Let `import_modules` look in the working directory, too, as the command line does."""
    _SEARCHED.clear()
    with contextlib.suppress(FileNotFoundError):  # it was deleted
        _SEARCHED.append(os.getcwd())


def _import(name: str) -> None:
    """Import a module, also from the searched folder, which is added to `sys.path` only if the module is there.

    A file in it may have the name of a package that is imported later. Once it is in `sys.path`, worker processes find
    the module as well, and the module finds its neighbours at any time.
    """
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:  # it lacks another one
            raise
        path = list(sys.path)
        sys.path += _SEARCHED
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            sys.path[:] = path
            raise


def import_modules(names: str, of: str = ", which is to register environments,") -> None:
    """Import modules that register environments; `names` has commas between them.

    Args:
        names: the names.
        of: what the modules are for, in an error.

    Raises:
        ConfigurationError: if it is no text.
        EnvError: if there is no such module, or it cannot be imported.
    """
    require_imports(names)
    for name in filter(None, (name.strip() for name in names.split(","))):
        try:
            _import(name)
        except failures() as error:  # any error of the module
            is_extra = isinstance(error, ModuleNotFoundError) and error.name == "pettingzoo"
            remedy = pip_install("pettingzoo") if is_extra else "is it installed, or in the folder you are in?"
            what = f"the module {name!r}{of} cannot be imported"
            raise EnvError(f"{what}: {shown_error(error)} ({remedy})") from error


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
        EnvError: if the module cannot be imported, or has no such name.
    """
    module, _, name = source.rpartition(":") if isinstance(source, str) else ("", "", "")
    if not module:
        return source
    try:
        spec_of(source)
    except gym.error.Error as error:
        found = getattr(sys.modules.get(module), name, None)
        if not callable(found) and isinstance(error, gym.error.NameNotFound) and module in sys.modules:
            what = f"{module} has no function {name!r}, and registers no environment of this name"
            raise EnvError(
                f"environment {source!r} cannot be made: {what}: write module:id, or module:function"
            ) from None
        return found if callable(found) else source
    return source


def to_send(source: Any) -> Any:
    """The source for worker processes, which have not imported the modules that register environments."""
    if not isinstance(source, str) or callable(source_of(source)):
        return source
    require_package(source)
    package = package_of(source)
    if package.vector is not None:
        return source
    spec = spec_of(source)
    if package is not OTHERS and str(spec.entry_point).startswith(package.module):
        return source
    points = {name: str(getattr(spec, name)).partition(":") for name in ("entry_point", "vector_entry_point")}
    # `__main__` is another module there.
    own = {name: getattr(sys.modules[module], of) for name, (module, _, of) in points.items() if module == "__main__"}
    return replace(spec, **own)


def source_here(source: Any, imports: str) -> Any:
    """An environment's id, or the function, from the result of `to_send`, in another process."""
    if not isinstance(source, EnvSpec):
        return source
    import_modules(imports)
    if source.id not in gym.registry and isinstance(source.entry_point, str):
        # Import the module first: if it registers the id after us, gymnasium warns of a second registration.
        with contextlib.suppress(ImportError):  # making the environment will raise the error
            importlib.import_module(source.entry_point.partition(":")[0])
    gym.registry.setdefault(source.id, source)
    return source.id
