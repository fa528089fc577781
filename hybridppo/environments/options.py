"""The options of environments."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args

from gymnasium.vector import AutoresetMode

from hybridppo.environments.packages import require_imports
from hybridppo.errors import ConfigurationError, shown
from hybridppo.spaces.of_agents import each_observes
from hybridppo.spaces.rows import ObservesOfAgents
from hybridppo.system.validation import CHANGEABLE, SAME_RESULT, Rule, at_most, check_fields, is_number, require

if TYPE_CHECKING:
    from hybridppo.environments.tensors import TensorEnv

EnvSource = Union[str, Callable[..., Any], "TensorEnv"]
"""An environment's id; a function that makes an environment, a vector of environments, an environment of several
agents, or a batched environment; or a batched environment."""
Vectorization = Literal["auto", "sync", "compiled"]
AutoresetName = Literal["next_step", "same_step", "disabled"]
OnEnvError = Literal["raise", "restart"]

INSTEAD_OF_ASYNC = (
    "use num_workers (--num-workers) to step environments in processes; as many as num_envs step each in its own"
)
NEED_COPIES = ("on_env_error", "action_masks", "frame_stack", "max_items", "reward_weights")
"""Options for copies of an environment that the library makes."""
POSITIVE_SECONDS: Rule = "must be positive", lambda seconds: seconds > 0
MOST_FRAMES = 64
"""The largest `frame_stack`."""
MODES: dict[str, AutoresetMode] = {mode.name.lower(): mode for mode in AutoresetMode}


@dataclass(frozen=True)
class EnvironmentOptions:
    """How the environments of a run are made and stepped; checked when made."""

    vectorization: Vectorization = "auto"
    """How environments are stepped: auto uses the environment's vectorised form if it has one, else steps copies one
    after the other; sync always steps copies; compiled uses the form that Numba compiles."""
    env_threads: int = field(default=1, metadata=CHANGEABLE | SAME_RESULT | {"least": 1})
    """Threads that step compiled environments; their number does not change the result."""
    autoreset_mode: AutoresetName | None = None
    """The autoreset mode of a vector environment that does not declare one."""
    on_env_error: OnEnvError = field(default="raise", metadata=CHANGEABLE)
    """If an environment fails, returns invalid values, or its worker process dies: raise an error; or restart it, drop
    its unfinished episode, and count that in the metric env_restarts."""
    worker_timeout: float = field(default=300.0, metadata=CHANGEABLE | SAME_RESULT | {"seconds": "positive"})
    """Seconds without a step after which a worker process counts as hung."""
    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments for gymnasium.make, EnvPool, or the function that makes the environment. On the command line, a
    JSON object. In Python, values may be any objects. To resume a run whose arguments JSON cannot hold, pass env=..., a
    function that makes the environment with these arguments."""
    imports: str = ""
    """Modules that register environments, to import first, with commas between them. An id such as module:Env-v0
    imports its module anyway."""
    action_masks: bool = False
    """Choose only actions that the environment allows, by info["action_mask"] of every reset and step."""
    frame_stack: int = field(default=1, metadata={"least": 1})
    """Number of the last observations of an episode that the agent sees, if they are a Box (vectors or images). Each
    observation is stored once."""
    max_items: int = field(default=0, metadata={"least": 0})
    """If observations have a Sequence or a Graph: the largest number of items, of nodes and of edges. More are an
    error."""
    clip_rewards: bool | None = None
    """Learn from rewards clipped to +-1; returns and evaluations are not clipped. None clips for Atari only."""
    episodic_life: bool = False
    """In Atari games, end an episode with the loss of a life while training; evaluations play whole games."""
    reward_weights: tuple[float, ...] = ()
    """For environments whose reward is several numbers: the weight of each in their sum, which is the reward. The
    metrics info/reward_0 and on have each number's mean over steps."""

    info_metrics: tuple[str, ...] = field(default=(), metadata=SAME_RESULT)
    """Entries of infos to add to the metrics: `info/NAME`, the mean over the rollout's steps that have the entry, and
    `episode_info/NAME`, the mean of the last entry of each episode that ended. A pattern such as Episode_Reward/*
    stands for all entries that match it."""
    step_infos: tuple[str, ...] = ()
    """Entries of infos, one number for each step, that become columns of rollouts for a loss or an agent of your own:
    `rollout.infos["cost"]`, and `columns["cost"]` of `LossInputs`."""

    def __post_init__(self) -> None:
        for option in ("info_metrics", "step_infos"):
            names: Any = getattr(self, option)
            if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
                raise ConfigurationError(f"{option} must be a tuple of names of entries in infos, got {shown(names)}")
            object.__setattr__(self, option, tuple(names))
        weights: Any = self.reward_weights
        is_valid = isinstance(weights, (list, tuple)) and all(map(is_number, weights))
        require(self, "reward_weights", is_valid, "must be a tuple of finite numbers")
        object.__setattr__(self, "reward_weights", tuple(map(float, weights)))
        if shown(self.vectorization) == "'async'":
            names = ", ".join(get_args(Vectorization))
            raise ConfigurationError(f"vectorization must be one of {names}, got 'async': {INSTEAD_OF_ASYNC}")
        require(self, "autoreset_mode", self.autoreset_mode in (None, *MODES), f"must be one of {', '.join(MODES)}")
        check_fields(self, {"frame_stack": (at_most(MOST_FRAMES),), "worker_timeout": (POSITIVE_SECONDS,)})
        require_imports(self.imports)
        if self.frame_stack > 1 and self.action_masks:
            self.refuse("action_masks=True", "frame_stack", remedy="leave one of the two out")
        if self.vectorization == "compiled":
            names = ("autoreset_mode", "episodic_life", "info_metrics", "step_infos", *NEED_COPIES)
            self.refuse("vectorization='compiled'", *names, remedy="leave one of the two out")

    def refuse(self, kind: str, *names: str, remedy: str = "leave it out") -> None:
        """Refuse options that do not work with a kind of environments.

        Raises:
            ConfigurationError: naming the first of them that is given.
        """
        defaults = {each.name: each.default for each in fields(EnvironmentOptions)}
        for name in names:
            if (given := getattr(self, name)) != defaults[name]:
                raise ConfigurationError(f"{name}={shown(given)} does not work with {kind}: {remedy}")

    @property
    def restarts(self) -> bool:
        """Whether an environment that fails is restarted."""
        return self.on_env_error == "restart"

    @property
    def needs_copies(self) -> bool:
        """Whether an option needs copies made by the library."""
        return self.restarts or self.action_masks or self.frame_stack > 1 or bool(self.max_items or self.reward_weights)


@dataclass(frozen=True)
class CriticsOptions(EnvironmentOptions):
    """Options that follow from the agent."""

    critic_observes: ObservesOfAgents = "own"
    """Like `PPOConfig.critic_observes`; by the names of the agents if it differs."""
    keeps_finals: bool = False
    """Whether `Environments.step` returns the final observations of terminated episodes, too."""


@dataclass(frozen=True)
class SelfPlayOptions(CriticsOptions):
    """Options for self-play: the agent is one player in each environment, and opponents are the others."""

    opponent_of: Callable[[Path], Any] = field(kw_only=True)
    """Loads an opponent from a file."""
    policy_of: Callable[[str], str | None] | None = field(default=None, kw_only=True)
    """The policy of an agent by the agent's name, if there are several policies; one then is all its players."""
    policies: tuple[str, ...] = field(default=(), kw_only=True)
    """The policies that learn, if there are several."""


def for_critics(
    options: EnvironmentOptions, observes: ObservesOfAgents, keeps_finals: bool = False
) -> EnvironmentOptions:
    """The options for agents whose critics see `observes`; see `CriticsOptions`."""
    own = {each.name: getattr(options, each.name) for each in fields(EnvironmentOptions)}
    if observes == "own" and not keeps_finals:
        return EnvironmentOptions(**own)
    return CriticsOptions(**own, critic_observes=observes, keeps_finals=keeps_finals)


def for_agents(options: EnvironmentOptions, agents: Sequence[str]) -> EnvironmentOptions:
    """The options for an environment with these agents, in a form that a file can hold."""
    if not isinstance(options, CriticsOptions) or not callable(options.critic_observes):
        return options
    observes = dict(zip(agents, each_observes(options.critic_observes, agents), strict=True))
    return replace(options, critic_observes=observes)


def is_held_by_json(value: Any) -> bool:
    """Whether a value is the same, with the same types, after it was written to JSON and read again."""
    try:
        return repr(json.loads(json.dumps(value, allow_nan=False))) == repr(value)
    except (TypeError, ValueError, RecursionError):
        return False
