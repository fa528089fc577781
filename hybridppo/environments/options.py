"""What can be set about environments."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args

from gymnasium.vector import AutoresetMode

from hybridppo.errors import ConfigurationError, shown
from hybridppo.spaces.rows import CriticObserves
from hybridppo.system.validation import CHANGEABLE, SAME_RESULT, is_seconds, require_whole

if TYPE_CHECKING:
    from hybridppo.environments.tensors import TensorEnv

EnvSource = Union[str, Callable[..., Any], "TensorEnv"]
"""An environment's id, or a function that makes one environment, a vector of them, one of several agents, or one of
tensors; an environment of tensors may also be given itself."""
Vectorization = Literal["auto", "sync", "compiled"]
AutoresetName = Literal["next_step", "same_step", "disabled"]
OnEnvError = Literal["raise", "restart"]

INSTEAD_OF_ASYNC = (
    "use num_workers (--num-workers) to step environments in processes; as many as num_envs step each in its own"
)
MOST_FRAMES = 64
"""Of a stack."""
MODES: dict[str, AutoresetMode] = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


@dataclass(frozen=True)
class EnvironmentOptions:
    """How the environments of a run are made and stepped; checked when made."""

    vectorization: Vectorization = "auto"
    """How sub-environments are stepped: auto takes the environment's own vectorised form where it has one, and else
    steps them one after the other; sync always does that; compiled takes the form that Numba compiles."""
    env_threads: int = field(default=1, metadata=CHANGEABLE | SAME_RESULT)
    """Threads that step compiled environments; it changes no result."""
    autoreset_mode: AutoresetName | None = None
    """How a vector environment resets, where it does not declare it."""
    on_env_error: OnEnvError = field(default="raise", metadata=CHANGEABLE)
    """What to do where an environment fails, returns what cannot be used, or its worker process dies: raise an error,
    or restart it, drop its unfinished episode, and count that as env_restarts."""
    worker_timeout: float = field(default=300.0, metadata=CHANGEABLE | SAME_RESULT)
    """Seconds without a step after which a worker process counts as hung."""
    env_kwargs: dict[str, Any] | None = None
    """Arguments for whoever makes an environment: what gymnasium.make takes beside an id, or the function given. On the
    command line, an object of JSON. In Python they may be anything; a run whose arguments JSON cannot hold goes on with
    env=..., a function that makes the environment with them."""
    imports: str = ""
    """Modules that register environments, to be imported first, with commas between; of module:Env-v0 it is done
    anyway."""
    action_masks: bool = False
    """Choose only among the actions that the environment allows, in info["action_mask"] of every reset and step."""
    frame_stack: int = 1
    """Act on the last so many observations of an episode, of a Box (vectors or images), instead of the last alone; each
    is stored once."""
    clip_rewards: bool | None = None
    """Learn from rewards clipped between -1 and 1; returns and evaluations stay as they are. None does so for Atari."""
    episodic_life: bool = False
    """In Atari games, end an episode with the loss of a life, while training; evaluations are of whole games."""

    info_metrics: tuple[str, ...] = field(default=(), metadata=SAME_RESULT)
    """Entries of infos for the metrics: `info/NAME`, the mean over a rollout's steps that had one, and
    `episode_info/NAME`, the mean of the last ones of episodes that ended."""

    def __post_init__(self) -> None:
        names: Any = self.info_metrics
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError(f"info_metrics must be a tuple of names of entries in infos, got {shown(names)}")
        object.__setattr__(self, "info_metrics", tuple(names))
        given: object = self.vectorization
        if given not in get_args(Vectorization):
            instead = f": {INSTEAD_OF_ASYNC}" if isinstance(given, str) and given == "async" else ""
            raise ConfigurationError(f"vectorization must be auto, sync or compiled, got {shown(given)}{instead}")
        require_whole("env_threads", self.env_threads)
        if self.autoreset_mode is not None and self.autoreset_mode not in tuple(MODES):
            raise ConfigurationError(
                f"autoreset_mode must be one of {', '.join(MODES)}, got {shown(self.autoreset_mode)}"
            )
        if self.on_env_error not in get_args(OnEnvError):
            raise ConfigurationError(f"on_env_error must be raise or restart, got {shown(self.on_env_error)}")
        worker_timeout: Any = self.worker_timeout
        if worker_timeout is None:  # of config.json, which has no infinity
            object.__setattr__(self, "worker_timeout", math.inf)
        if not (is_seconds(self.worker_timeout) and self.worker_timeout > 0):
            raise ConfigurationError(f"worker_timeout must be positive, got {shown(self.worker_timeout)}")
        kwargs: Any = self.env_kwargs
        if kwargs is not None and not (isinstance(kwargs, dict) and all(isinstance(name, str) for name in kwargs)):
            raise ConfigurationError(f"env_kwargs must be a dict of arguments by name, got {shown(kwargs)}")
        if not isinstance(self.imports, str):
            raise ConfigurationError(
                f"imports must name modules, with commas between, got {shown(self.imports)}: write 'my_envs,others'"
            )
        if not isinstance(self.action_masks, bool):
            raise ConfigurationError(f"action_masks must be True or False, got {shown(self.action_masks)}")
        require_whole("frame_stack", self.frame_stack)
        if self.frame_stack > MOST_FRAMES:
            raise ConfigurationError(f"frame_stack must be at most {MOST_FRAMES}, got {self.frame_stack}")
        if self.frame_stack > 1 and (self.action_masks or self.vectorization == "compiled"):
            given = "action_masks=True" if self.action_masks else "vectorization='compiled'"
            raise ConfigurationError(
                f"frame_stack={self.frame_stack} cannot be had with {given}: leave one of the two out"
            )
        if self.clip_rewards is not None and not isinstance(self.clip_rewards, bool):
            raise ConfigurationError(f"clip_rewards must be True, False or None, got {shown(self.clip_rewards)}")
        if not isinstance(self.episodic_life, bool):
            raise ConfigurationError(f"episodic_life must be True or False, got {shown(self.episodic_life)}")
        if self.vectorization == "compiled" and (self.restarts or self.action_masks):
            given = "on_env_error='restart'" if self.restarts else "action_masks=True"
            raise ConfigurationError(f"{given} cannot be had with vectorization='compiled': leave one of the two out")

    @property
    def restarts(self) -> bool:
        """Whether an environment that fails is restarted."""
        return self.on_env_error == "restart"

    @property
    def needs_copies(self) -> str | None:
        """What is asked for that only copies can have which the library makes; None for nothing."""
        if self.restarts:
            return "on_env_error='restart'"
        if self.action_masks:
            return "action_masks=True"
        return f"frame_stack={self.frame_stack}" if self.frame_stack > 1 else None

    @property
    def vectorization_of_evaluation(self) -> Vectorization:
        """How the environments of an evaluation are stepped: in the form that they were trained in, if compiled."""
        return "compiled" if self.vectorization == "compiled" else "auto"


@dataclass(frozen=True)
class CriticsOptions(EnvironmentOptions):
    """The same for agents whose critics see more than they do themselves: what their configuration says."""

    critic_observes: CriticObserves = "own"
    """As `PPOConfig.critic_observes`."""


@dataclass(frozen=True)
class SeatOptions(EnvironmentOptions):
    """The same for self-play: an agent has a seat in each environment, and opponents the others."""

    opponent_of: Callable[[Path], Any] = field(kw_only=True)
    """Loads the opponent that a file has."""


def for_critics(options: EnvironmentOptions, config: Any) -> EnvironmentOptions:
    """The options for agents of this configuration."""
    observes: CriticObserves = getattr(config, "critic_observes", "own")
    own = {each.name: getattr(options, each.name) for each in fields(EnvironmentOptions)}
    return EnvironmentOptions(**own) if observes == "own" else CriticsOptions(**own, critic_observes=observes)


def is_held_by_json(value: Any) -> bool:
    """Whether a value comes back from JSON as it is, with all of its types."""
    try:
        return _is_same(json.loads(json.dumps(value, allow_nan=False)), value)
    except (TypeError, ValueError, RecursionError):
        return False


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)
