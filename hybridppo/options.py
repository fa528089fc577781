"""The options of a run, and how they become arguments.

A group of options is a frozen dataclass. An option is a field with its default, its help in the string below it, and
its check in `__post_init__`. The flags of the command line and `config.json` follow from `GROUPS`. A further option is
one field, and one argument of `train`, and of `resume` if a run may change it.
"""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from hybridppo.distributed_policies import distributed_from
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError, meant_by, shown
from hybridppo.reporting.loggers import logger_names
from hybridppo.system.validation import CHANGEABLE, SAME_RESULT, is_number, require_seconds, require_whole, seconds_of

LARGEST_SEED = 2**128
"""The limit for seeds: reading much larger numbers takes forever."""

WITH_TARGET = {"changes_result": "target_return"}
"""Metadata of an option that can change the result only if the other option is given."""


Opponents = Literal["uniform", "prioritised"]


@dataclass(frozen=True)
class SelfPlay:
    """An agent plays one random side of a game in each episode; its snapshots play the others.

    Source: Silver et al., "Mastering the game of Go without human knowledge", 2017, and for prioritised opponents,
    Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning", 2019, "Prioritized
    fictitious self-play".

    Raises:
        ConfigurationError: naming the field, the rule and the value.
    """

    snapshot_every: int = 50_000
    """Environment steps between two snapshots; the first snapshot is the agent at the start."""
    pool: int = 20
    """How many of the newest snapshots are opponents."""
    latest: float = 0.5
    """The share of episodes against the newest snapshot; in the other episodes, an older one is drawn."""
    opponents: Opponents = "uniform"
    """How older snapshots are drawn: "uniform", or "prioritised": the more rarely a snapshot is beaten, the more often.
    """

    def __post_init__(self) -> None:
        for name in ("snapshot_every", "pool"):
            object.__setattr__(self, name, require_whole(name, getattr(self, name)))
        if not (is_number(self.latest) and 0.0 <= self.latest <= 1.0):
            raise ConfigurationError(f"latest must lie between 0 and 1, got {shown(self.latest)}")
        if self.opponents not in get_args(Opponents):
            raise ConfigurationError(
                f"opponents must be one of {', '.join(get_args(Opponents))}, got {shown(self.opponents)}"
            )

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def self_play_of(given: Any) -> SelfPlay | None:
    """A `SelfPlay` from itself, or from a dict of its fields; None for None.

    Raises:
        ConfigurationError: if it is something else.
    """
    if given is None or isinstance(given, SelfPlay):
        return given
    try:
        return SelfPlay(**given)
    except TypeError:
        raise ConfigurationError(
            "self_play must be a hybridppo.SelfPlay, or a dict of its fields (snapshot_every, pool, latest, "
            f"opponents), got {shown(given)}"
        ) from None


@dataclass(frozen=True)
class RunOptions:
    """The length of a run, what it starts from, and what it writes; checked when made."""

    total_steps: int = field(metadata=CHANGEABLE)
    """Environment steps, of all environments together, after which to stop. With several agents that share a policy, it
    counts each agent's steps."""
    total_episodes: int | None = field(default=None, metadata=CHANGEABLE)
    """Episodes of all environments together, after which to stop if that comes first."""
    seed: int | None = None
    """Seed of everything random; without it, one is taken from the operating system and saved."""
    num_workers: int | None = field(default=None, metadata=CHANGEABLE | SAME_RESULT)
    """Processes that step the environments; 0 steps them in this process. None lets placement auto choose the number;
    without auto, it is 1 if sampling and learning overlap, else 0."""
    evaluation_episodes: int = field(default=0, metadata=CHANGEABLE | SAME_RESULT)
    """Deterministic episodes to run after training; 0 for none."""
    evaluate_every: int = field(default=0, metadata=CHANGEABLE | WITH_TARGET)
    """Environment steps, of all environments together, between evaluations during training; 0 for never. Evaluations
    have their own environments and do not change the training. They then decide which checkpoint is the best."""
    evaluate_episodes: int = field(default=10, metadata=CHANGEABLE | WITH_TARGET)
    """Deterministic episodes in each evaluation during training; every evaluation has the same seeds."""
    evaluate_async: bool | None = field(default=None, metadata=CHANGEABLE | WITH_TARGET)
    """Whether evaluations during training run in another process while the training continues, and are reported when
    the next one is due. None: only if sampling and learning overlap."""
    target_return: float | None = field(default=None, metadata=CHANGEABLE)
    """Mean return at which to stop: the mean of an evaluation during training if there are any, else of the latest 100
    episodes, once 100 episodes have ended."""
    track: str = field(default="", metadata=CHANGEABLE | SAME_RESULT)
    """Loggers to write to, separated by commas: tensorboard, wandb, trackio, mlflow."""
    start_from: str | None = None
    """A run directory, or a file written by agent.save, with networks to start from. Everything else starts anew."""
    checkpoint_seconds: float = field(default=60.0, metadata=CHANGEABLE | SAME_RESULT)
    """The most seconds between two checkpoints."""
    keep_checkpoints: int = field(default=3, metadata=CHANGEABLE | SAME_RESULT)
    """How many of the newest checkpoints to keep, besides the best one by mean return."""

    distributed: str = field(default="local", metadata=CHANGEABLE)
    """How the training is divided into processes: a policy such as MultiLearner(2), or its text: local,
    multi:LEARNERS:SHARDS, gpu:LEARNERS:SHARDS; over Ray coarse:SAMPLERS, fine:WORKERS, environments:WORKERS,
    central:LEARNERS:MAX_LAG. The numbers after the first may be left out."""
    address: str | None = field(default=None, metadata=CHANGEABLE | SAME_RESULT)
    """Address of a running Ray cluster, auto or HOST:PORT, for policies that run on Ray. Without an address, the
    variable RAY_ADDRESS is used; if it is not set, Ray is started on this machine."""

    self_play: dict[str, Any] | None = None
    """Self-play: a hybridppo.SelfPlay, or its fields (snapshot_every, pool, latest, opponents). The learner plays one
    random side in each episode, and its snapshots play the others. On the command line, a JSON object."""

    def __post_init__(self) -> None:
        options = self_play_of(self.self_play)
        object.__setattr__(self, "self_play", None if options is None else options.to_json())
        object.__setattr__(self, "distributed", str(distributed_from(self.distributed)))
        self._require_whole("total_steps", "keep_checkpoints")
        for name in ("evaluate_every", "evaluation_episodes"):
            if getattr(self, name) is None:  # None means never as well
                object.__setattr__(self, name, 0)
        self._require_whole("evaluation_episodes", "evaluate_every", minimum=0)
        self._require_whole("evaluate_episodes")
        if self.evaluate_async is not None and not isinstance(self.evaluate_async, bool):
            raise ConfigurationError(f"evaluate_async must be True, False or None, got {shown(self.evaluate_async)}")
        self._require_whole("total_episodes", may_be_none=True)
        self._require_whole("num_workers", minimum=0, may_be_none=True)
        self._require_whole("seed", minimum=0, below=LARGEST_SEED, may_be_none=True)
        object.__setattr__(self, "checkpoint_seconds", seconds_of(self.checkpoint_seconds))
        require_seconds("checkpoint_seconds", self.checkpoint_seconds)
        if self.target_return is not None and not is_number(self.target_return):
            raise ConfigurationError(f"target_return must be a finite number, got {shown(self.target_return)}")
        logger_names(self.track)
        if self.address is not None and not isinstance(self.address, str):
            raise ConfigurationError(f"address must be auto or HOST:PORT, got {shown(self.address)}")
        start_from: Any = self.start_from
        if start_from is not None and not isinstance(start_from, (str, Path)):
            raise ConfigurationError(
                f"start_from must name a run directory or an agent's file, got {shown(start_from)}: save an agent with "
                "agent.save(FILE), and pass FILE"
            )
        object.__setattr__(self, "start_from", None if start_from is None else str(start_from))

    def _require_whole(self, *names: str, minimum: int = 1, below: int = 2**63, may_be_none: bool = False) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None or not may_be_none:
                object.__setattr__(self, name, require_whole(name, value, minimum, below=below))


GROUPS: tuple[type, ...] = (EnvironmentOptions, RunOptions)

Group = TypeVar("Group")


def fields_of(*groups: type) -> dict[str, "Field[Any]"]:
    """The fields of groups of options, by name."""
    return {each.name: each for group in groups for each in fields(group)}


def can_change_result(option: "Field[Any]", values: Mapping[str, Any]) -> bool:
    """Whether another value of an option can change the metrics or the agent of a seed, by more than rounding.

    Args:
        option: the field; its metadata may say that it cannot.
        values: the values of all options, by name.
    """
    says = option.metadata.get("changes_result", True)
    return values.get(says) is not None if isinstance(says, str) else bool(says)


def changeable_names() -> list[str]:
    """The options that `resume` takes."""
    return [name for name, option in fields_of(*GROUPS).items() if option.metadata.get("changeable")]


def is_kept(name: str) -> bool:
    """Whether this is a setting or an option that `resume` cannot change."""
    from hybridppo.agents.registry import AGENTS

    settings = fields_of(*GROUPS, *(kind.config for kind in AGENTS.values()))
    return name in {"config", *settings} - {*changeable_names()}


def made(group: type[Group], options: dict[str, Any]) -> Group:
    """A group made from those of the options that belong to it."""
    return group(**{name: options[name] for name in fields_of(group) if name in options})


def changed(group: Group, options: dict[str, Any]) -> Group:
    """A copy of the group with these values for its own options; None changes nothing."""
    changes = {name: options[name] for name in fields_of(type(group)) if options.get(name) is not None}
    return replace(group, **changes)  # type: ignore[type-var]


def helps(group: type) -> dict[str, str]:
    """The help of every field: the text below it in the source. Empty without the source."""
    try:
        text = Path(sys.modules[group.__module__].__file__ or "").read_text(encoding="utf-8")
    except OSError:
        return {}
    # The class ends before the next line that begins at the margin. This runs when the library is imported, and
    # `inspect.getsource` takes ten times as long.
    found_class = re.search(rf"^class {group.__name__}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    if found_class is None:
        return {}
    (node,) = ast.parse(found_class.group()).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for one, following in zip(node.body, node.body[1:], strict=False):
        has_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if has_text and isinstance(one, ast.AnnAssign):
            found[ast.unparse(one.target)] = " ".join(ast.literal_eval(following.value).split())  # type: ignore[attr-defined]
    return found


Function = TypeVar("Function", bound=Callable[..., Any])


def suggests_arguments(function: Function) -> Function:
    """A decorator that lets the error for an unknown argument name the argument that was probably meant."""
    ours = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in ours:
                hint = _hint(name, ours)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*arguments, **keywords)

    return checked  # type: ignore[return-value]


def _hint(name: str, ours: list[str]) -> str:
    """A hint for an unknown argument: another argument, or a setting of an agent."""
    from hybridppo.agents.registry import AGENTS

    configs = [kind.config for kind in AGENTS.values()] if "config" in ours else []
    for config in configs:
        if name in fields_of(config):
            return f": did you mean config={config.__name__}({name}=...)?"
    if "run_dir" in ours and not configs and is_kept(name):  # of `resume`
        return ": a run keeps it; hybridppo.train(ENV, start_from=RUN_DIR, ...) begins another one"
    if "placement" in ours and name in ("max_lag", "publish_every"):
        return f": did you mean placement=Mirrored(..., {name}=...)?"
    near = meant_by(name, [*ours, *fields_of(*configs)])
    if near is not None and near not in ours:
        near = f"config={next(each for each in configs if near in fields_of(each)).__name__}({near}=...)"
    return f": did you mean {near}?" if near else ""
