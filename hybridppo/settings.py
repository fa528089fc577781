"""The options of a run, the settings in `config.json`, which are checked when it resumes, and the plan of a training.

A group of options is a frozen dataclass. An option is a field with its default, its help in the string below it, and
its check in `__post_init__`. The flags of the command line and `config.json` follow from `GROUPS`. A further option is
one field, and one argument of `train`, and of `resume` if a run may change it.
"""

import functools
import inspect
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import gymnasium as gym
import numpy as np
import torch

from hybridppo._version import __version__
from hybridppo.agents.registry import AGENTS, OF_PPO, AnyAgent, AnyConfig, agent_class, config_from_json, default_config
from hybridppo.agents.schedules import OfOnePolicy, sizes_of
from hybridppo.environments import base
from hybridppo.environments.options import CriticsOptions, EnvironmentOptions, EnvSource
from hybridppo.errors import (
    CheckpointError,
    ConfigurationError,
    RunDirectoryError,
    as_argument,
    hint,
    shown,
    shown_name,
)
from hybridppo.placements.placement import Placement
from hybridppo.placements.placement import settings_of_result as placement_settings_of_result
from hybridppo.reporting.callbacks import Callback
from hybridppo.reporting.loggers import logger_names
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.spaces.serialization import space_from_json, space_to_json
from hybridppo.system.signals import Interruption
from hybridppo.system.threads import kernels_taken
from hybridppo.system.validation import CHANGEABLE, SAME_RESULT, SECONDS, SHARE, check_fields, require

logger = logging.getLogger(__name__)

LARGEST_SEED = 2**128
"""The limit for seeds: reading much larger numbers takes forever."""

WITH_TARGET = {"changes_result": "target_return"}
"""Metadata of an option that can change the result only if the other option is given."""


REDUCTIONS = ("shards", "all_reduce")
"""How learners may sum their gradients."""
NUMBER: dict[str, Any] = {"least": 1, "below": 2**16}
"""Metadata of a number of processes, or of parts."""


@dataclass(frozen=True)
class Distributed:
    """A way to distribute a training: a name and numbers, which are checked."""

    name: ClassVar[str]
    """Its name on the command line."""

    def __post_init__(self) -> None:
        check_fields(self)

    def part_in_result(self) -> str:
        """The part of its text that can change the result of a seed by more than rounding; "local" if no part can."""
        return Local.name

    def __str__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]
        return ":".join([self.name, *(str(value) for value in values if value not in (None, "shards"))])


@dataclass(frozen=True)
class Local(Distributed):
    """Everything is in this process (and in worker processes, with `num_workers`)."""

    name = "local"


@dataclass(frozen=True)
class SingleLearnerCoarse(Distributed):
    """One learner, and remote samplers, which step environments with their own actors."""

    samplers: int = field(metadata=NUMBER)
    name = "coarse"


@dataclass(frozen=True)
class SingleLearnerFine(Distributed):
    """Remote environments; actor and learner are together on one device."""

    env_workers: int = field(metadata=NUMBER)
    name = "fine"


@dataclass(frozen=True)
class Environments(Distributed):
    """Remote environments; actor and learner may be on different devices."""

    workers: int = field(metadata=NUMBER)
    name = "environments"


@dataclass(frozen=True)
class MultiLearner(Distributed):
    """Each learner has shards of the environments and of every minibatch; the gradients of all shards are summed.

    Rollouts stay where they are sampled. Any number of learners gives the same bits for the same number of shards, on
    devices of one kind. The processes are started by this one, or by torchrun.
    """

    learners: int | None = field(default=None, metadata=NUMBER)
    """Number of learners; each has its own device if the placement uses cuda. None for all that torchrun has started.
    """
    shards: int | None = field(default=None, metadata=NUMBER)
    """Number of parts of the environments and of every minibatch; each learner has equally many. None for one per
    learner."""
    reduce: Literal["shards", "all_reduce"] = "shards"
    """How gradients are summed: "shards" in the order of the shards; "all_reduce" by torch.distributed, which
    adds in another order (the same up to rounding) and sends less."""
    name = "multi"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learners is not None and self.shards is not None and self.shards % self.learners:
            raise ConfigurationError(
                f"shards must be a multiple of learners = {self.learners}, got {self.shards}: each takes as many"
            )
        if self.learners is None and self.shards is not None:
            raise ConfigurationError(
                f"shards cannot be given without learners: {type(self).__name__}(learners, shards)"
            )

    @property
    def num_shards(self) -> int:
        """The number of shards; one for each learner by default."""
        return self.shards or self.learners or 1

    def part_in_result(self) -> str:  # noqa: D102 - as in the base
        return f"multi, {self.num_shards} shards" if self.num_shards > 1 else Local.name


@dataclass(frozen=True)
class GPUOnly(MultiLearner):
    """`MultiLearner` for environments that each learner steps on its device: batched environments, or compiled."""

    name = "gpu"


@dataclass(frozen=True)
class Central(Distributed):
    """Learners that send gradients to a server of parameters, each at its own pace."""

    learners: int = field(metadata=NUMBER)
    """Number of learners; the environments, and the minibatches of an epoch, are divided evenly among them."""
    max_lag: int | None = field(default=None, metadata=NUMBER | {"least": 0})
    """How many optimizer steps old the parameters of a gradient may be when it is applied; a learner that would exceed
    this waits. None for the number of learners minus one: then learners of equal speed do not wait."""
    name = "central"

    @property
    def lag(self) -> int:
        """`max_lag`, with its default."""
        return self.learners - 1 if self.max_lag is None else self.max_lag

    def part_in_result(self) -> str:  # noqa: D102 - as in the base
        return f"central:{self.learners}:{self.lag}"


POLICIES: dict[str, type[Distributed]] = {
    kind.name: kind
    for kind in (Local, SingleLearnerCoarse, SingleLearnerFine, Environments, MultiLearner, GPUOnly, Central)
}
"""Every policy by its name on the command line."""


def distributed_from(value: object) -> Distributed:
    """A policy from itself, or from its text, such as `multi:2` or `multi:2:4`.

    Raises:
        ConfigurationError: if it is neither.
    """
    if isinstance(value, Distributed):
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"distributed must be a policy or its text, as multi:2, got {shown(value)}")
    name, *given = value.split(":")
    if name not in POLICIES:
        names = ", ".join(POLICIES)
        raise ConfigurationError(f"unknown distributed={shown(value)}: use one of {names}, with its numbers (multi:2)")
    kind = POLICIES[name]
    takes = [each.name for each in fields(kind)]
    words = {"reduce": given.pop()} if "reduce" in takes and given and given[-1] in REDUCTIONS else {}
    most = len(takes) - ("reduce" in takes)
    if len(given) > most or not all(number.isascii() and number.isdigit() for number in given):
        form = ":".join([name, *(each.upper() for each in takes)])
        raise ConfigurationError(f"distributed={name} is written {form}, with whole numbers, got {shown(value)}")
    try:
        return kind(*map(int, given), **words)
    except TypeError:
        raise ConfigurationError(f"distributed={name} needs {takes[0]}: {name}:2, for example") from None


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

    snapshot_every: int = field(default=50_000, metadata={"least": 1})
    """Environment steps between two snapshots; the first snapshot is the agent at the start."""
    pool: int = field(default=20, metadata={"least": 1})
    """How many of the newest snapshots are opponents."""
    latest: float = 0.5
    """The share of episodes against the newest snapshot; in the other episodes, an older one is drawn."""
    opponents: Opponents = "uniform"
    """How older snapshots are drawn: "uniform", or "prioritised": the more rarely a snapshot is beaten, the more often.
    """

    def __post_init__(self) -> None:
        check_fields(self, {"latest": SHARE})


@dataclass(frozen=True)
class RunOptions:
    """The length of a run, what it starts from, and what it writes; checked when made."""

    total_steps: int = field(metadata=CHANGEABLE | {"least": 1})
    """Environment steps, of all environments together, after which to stop. With several agents that share a policy, it
    counts each agent's steps."""
    total_episodes: int | None = field(default=None, metadata=CHANGEABLE | {"least": 1})
    """Episodes of all environments together, after which to stop if that comes first."""
    seed: int | None = field(default=None, metadata={"least": 0, "below": LARGEST_SEED})
    """Seed of everything random; without it, one is taken from the operating system and saved."""
    num_workers: int | None = field(default=None, metadata=CHANGEABLE | SAME_RESULT | {"least": 0})
    """Processes that step the environments; 0 steps them in this process. Default: chosen by `auto`; otherwise 1 with
    overlap, else 0."""
    evaluation_episodes: int = field(default=0, metadata=CHANGEABLE | SAME_RESULT | {"least": 0})
    """Deterministic episodes to run after training; 0 for none."""
    evaluate_every: int = field(default=0, metadata=CHANGEABLE | WITH_TARGET | {"least": 0})
    """Environment steps, of all environments together, between evaluations during training; 0 for never. Evaluations
    have their own environments and do not change the training. They then decide which checkpoint is the best."""
    episodes_per_evaluation: int = field(default=10, metadata=CHANGEABLE | WITH_TARGET | {"least": 1})
    """Deterministic episodes in each evaluation during training; every evaluation has the same seeds."""
    evaluate_async: bool | None = field(default=None, metadata=CHANGEABLE | WITH_TARGET)
    """Whether evaluations during training run in another process while the training continues, and are reported when
    the next one is due. None: only if sampling and learning overlap."""
    target_return: float | None = field(default=None, metadata=CHANGEABLE)
    """Mean return at which to stop: the mean of an evaluation during training if there are any, else of the latest 100
    episodes, once 100 episodes have ended."""
    track: str = field(default="", metadata=CHANGEABLE | SAME_RESULT)
    """Loggers to write to, separated by commas: tensorboard, csv, wandb, trackio, mlflow."""
    track_project: str | None = field(default=None, metadata=SAME_RESULT)
    """The project in wandb and trackio, and the experiment in mlflow. None: what their environment variables say, else
    hybridppo."""
    track_entity: str | None = field(default=None, metadata=SAME_RESULT)
    """The user or team in wandb. None: your own."""
    track_name: str | None = field(default=None, metadata=SAME_RESULT)
    """The run's name in loggers. None: the name of the run directory."""
    track_tags: str = field(default="", metadata=SAME_RESULT)
    """Tags of the run in wandb and mlflow, separated by commas."""
    start_from: str | None = None
    """A run directory, or a file written by agent.save, with networks to start from. Everything else starts anew."""
    checkpoint_seconds: float = field(default=60.0, metadata=CHANGEABLE | SAME_RESULT | SECONDS)
    """The most seconds between two checkpoints, unless `checkpoint_every` says when they are written."""
    checkpoint_every: int | None = field(default=None, metadata=CHANGEABLE | SAME_RESULT | {"least": 1})
    """Environment steps, of all environments together, between two checkpoints. None: by `checkpoint_seconds`."""
    keep_checkpoints: int | None = field(default=3, metadata=CHANGEABLE | SAME_RESULT | {"least": 1})
    """How many of the newest checkpoints to keep, besides the best one by mean return. None: all."""

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
        for name in ("evaluate_every", "evaluation_episodes"):
            if getattr(self, name) is None:  # None means never as well
                object.__setattr__(self, name, 0)
        start_from: Any = self.start_from
        if start_from is not None and not isinstance(start_from, (str, Path)):
            raise ConfigurationError(
                f"start_from must name a run directory or an agent's file, got {shown(start_from)}: save an agent with "
                "agent.save(FILE), and pass FILE"
            )
        plain = {
            "self_play": _self_play_fields(self.self_play),
            "distributed": str(distributed_from(self.distributed)),
            "start_from": None if start_from is None else str(start_from),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        check_fields(self)
        logger_names(self.track)
        for name in ("track_project", "track_entity", "track_name", "track_tags"):
            require(self, name, isinstance(getattr(self, name), str | None), "must be text")
        if not isinstance(self.address, str | None):
            raise ConfigurationError(f"address must be auto or HOST:PORT, got {shown(self.address)}")


def _self_play_fields(given: Any) -> dict[str, Any] | None:
    """The fields of a `SelfPlay`, which may be given as a dict of them; None for None."""
    if given is None:
        return None
    try:
        return asdict(given if isinstance(given, SelfPlay) else SelfPlay(**given))
    except TypeError:
        raise ConfigurationError(
            "self_play must be a hybridppo.SelfPlay, or a dict of its fields (snapshot_every, pool, latest, "
            f"opponents), got {shown(given)}"
        ) from None


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
    settings = fields_of(*GROUPS, *(kind.config_type for kind in AGENTS.values()))
    return name in {"config", *settings} - {*changeable_names()}


def made(group: type[Group], options: dict[str, Any]) -> Group:
    """A group made from those of the options that belong to it."""
    return group(**{name: options[name] for name in fields_of(group) if name in options})


def changed(group: Group, options: dict[str, Any]) -> Group:
    """A copy of the group with these values for its own options; None changes nothing."""
    changes = {name: options[name] for name in fields_of(type(group)) if options.get(name) is not None}
    return replace(group, **changes)  # type: ignore[type-var]


Function = TypeVar("Function", bound=Callable[..., Any])


def suggests_arguments(
    function: Function,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
    from_file: Callable[..., dict[str, Any]] | None = None,
) -> Function:
    """A function that is called in a context, and whose error for an unknown argument names the one probably meant.

    Args:
        function: the function.
        within: makes the context.
        from_file: returns the arguments by name, if `config` is a path; called with the keywords and the others.
    """
    ours = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if from_file is not None and isinstance(keywords.get("config"), (str, os.PathLike)):
            keywords = from_file(keywords, *arguments)
        for name in keywords:
            if name not in ours:
                hint = _hint(name, ours, keywords)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        with within():
            return function(*arguments, **keywords)

    return checked  # type: ignore[return-value]


def _hint(name: str, ours: list[str], keywords: Mapping[str, Any]) -> str:
    """A hint for an unknown argument: another argument, or a setting of an agent, first of the one in question."""
    config = keywords.get("config")
    if "config" in ours:
        config = config if isinstance(config, OfOnePolicy) else default_config(keywords.get("agent"))
    elif "run_dir" in ours and is_kept(name):  # of `resume`
        return ": a run keeps it; hybridppo.train(ENV, start_from=RUN_DIR, ...) begins another one"
    kinds = () if config is None else (type(config), *(each.config_type for each in AGENTS.values()))
    for kind in kinds or (None,):
        holders = {} if kind is None else dict.fromkeys(fields_of(kind), f"config={kind.__name__}({{}})")
        if "placement" in ours:
            holders |= dict.fromkeys(("max_lag", "publish_every"), "placement=Mirrored(..., {})")
        holders |= dict.fromkeys(ours, "{}")

        def written(meant: str, value: Any, holders: Mapping[str, str] = holders) -> str:
            return holders[meant].format(as_argument(meant, value))

        if found := hint(name, keywords[name], holders, sizes_of(config), written):
            return found
    return ""


GIT_SECONDS = 5.0
"""A repository that takes longer to look at is not named."""
COMMIT = ("git", "-c", "core.fsmonitor=false", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")
"""Prints the commit of the working directory, with `-dirty` if tracked files differ; `--exclude` leaves tags out."""

KINDS: dict[str, type] = {
    **dict.fromkeys(("env_id", "policy"), str),
    **dict.fromkeys(("placement", "observation_space", "action_space", "versions", "origin", "own"), dict),
}
"""The types of settings in `config.json` that are neither the agent's nor options."""
RENAMED = {"evaluate_episodes": "episodes_per_evaluation"}
"""Names of options in the `config.json` of older versions, with the present ones."""
OF_ONES_OWN = ("env", "agents", "agent", *OF_PPO, "schedules", "env_kwargs")
"""Parts of a run that only Python can make again, by the names of `train`'s arguments."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run; `config.json` also has the versions of its packages."""

    env_id: str
    """The environment's id, or the name of the function that makes it."""
    config: AnyConfig
    environment: EnvironmentOptions
    run: RunOptions
    """The options of the run. They have a seed, also if the user gave none."""
    placement: dict[str, Any]
    """As `Placement.settings`."""
    observation_space: "gym.Space[Any]"
    action_space: "gym.Space[Any]"
    own: dict[str, str]
    """The names of the user's own parts (`OF_ONES_OWN`): `env`, if it is a function; `agents`, if the run began with
    networks of agents that were given in Python; `env_kwargs` as text, if JSON cannot hold them."""
    policy: str = "policy"
    """The name of the policy, if there is only one: its key, if `config` was a mapping."""

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        assert self.run.seed is not None  # `train` and `read` see to that
        return self.run.seed

    def changed(self, options: dict[str, Any]) -> "Settings":
        """The settings with other values for some options of the run; None changes nothing.

        The address of a cluster goes with the policy that used it.
        """
        policy = distributed_from(options.get("distributed") or self.run.distributed)
        run = replace(self.run, address=None) if isinstance(policy, Local | MultiLearner) else self.run
        return replace(self, environment=changed(self.environment, options), run=changed(run, options))

    def to_json(self) -> dict[str, Any]:
        """The contents of `config.json`."""
        of_agent = self.config.to_json()
        if (name := agent_class(self.config).name) in AGENTS:
            of_agent = {"agent": name, "settings": of_agent.pop("settings"), "config": of_agent}
        return {
            "env_id": self.env_id,
            **of_agent,
            "placement": self.placement,
            **asdict(self.run),
            **asdict(replace(self.environment, env_kwargs=None)),
            "env_kwargs": None if "env_kwargs" in self.own else self.environment.env_kwargs,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "own": self.own,
            "policy": self.policy,
            "versions": {
                "hybridppo": __version__,
                "torch": torch.__version__,
                "gymnasium": gym.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "kernels": kernels_taken(),
            },
        }

    @classmethod
    def read(cls, directory: RunDirectory) -> "Settings":
        """Read the settings of a run, and check all of them.

        Raises:
            RunDirectoryError: if `config.json` lacks a setting, or has an invalid one; the message has the rule.
        """
        found, file = directory.config, directory.path / "config.json"
        found = {RENAMED.get(name, name): value for name, value in found.items()}
        with _naming(file):
            _require_types(found)
            run = made(RunOptions, found)
            environment = made(CriticsOptions if "critic_observes" in found else EnvironmentOptions, found)
        agent, of_agent = "policies", found
        if "policies" not in found:
            agent, of_agent = found["agent"], {**found["config"], "settings": found.get("settings", {})}
        with _naming(file, "config: "):
            config = config_from_json(agent, of_agent)
        spaces: dict[str, Any] = {}
        for name in ("observation_space", "action_space"):
            with _naming(file, f"{name}: "):
                spaces[name] = space_from_json(found[name])
        others = ("env_id", "placement", "own", "policy")
        return cls(config=config, environment=environment, run=run, **spaces, **{name: found[name] for name in others})

    def source(self, env: EnvSource | None) -> EnvSource:
        """The source of the run's environments: an id, or a function.

        Raises:
            CheckpointError: if `env` is another environment than the run's.
            RunDirectoryError: if `env` is None, although a function made the run's environments, or they have arguments
                that JSON cannot hold; `env` must then be a function that makes them.
        """
        if (kwargs := self.own.get("env_kwargs")) is not None:
            if env is None or isinstance(env, str):
                raise RunDirectoryError(
                    f"the run's environment, {self.env_id!r}, was made with env_kwargs that config.json cannot hold, "
                    f"{kwargs}: pass a function that makes it with them, in Python, as env=..."
                )
            logger.warning(
                "the run's environments were made with env_kwargs that config.json cannot hold, %s: env=... must make "
                "them so by itself, because it is called without env_kwargs",
                kwargs,
            )
            return env
        if "env" not in self.own:
            if env is not None and env != self.env_id:
                raise CheckpointError(
                    f"the run was trained in {self.env_id!r}, not in {name_of_source(env)!r}: evaluate its agent there "
                    "with hybridppo.evaluate(RUN_DIR, env=...), or train it there with start_from=RUN_DIR"
                )
            return self.env_id
        if env is None:
            raise RunDirectoryError(
                f"the run's environment was made by a function, {self.env_id!r}: pass it again in Python, as env=..."
            )
        return env


@dataclass(frozen=True)
class Plan:
    """A training that is about to begin, or to resume from a checkpoint."""

    env: EnvSource
    settings: Settings
    environments: base.Environments
    agent: AnyAgent
    placement: Placement
    interruption: Interruption
    directory: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    profile: bool = False
    progress: bool = False
    """Whether to show a progress bar."""
    verbose: bool = False
    """Whether to show tables of the metrics."""
    debug: bool = False
    """Whether a debugger may follow the updates."""
    callbacks: Sequence[Callback] = ()


def tell_what_runs(
    path: str | Path, env_id: str, environment: EnvironmentOptions, run: RunOptions | None = None
) -> None:
    """Log which code a `config.json` asks for, before any of it runs: it may be somebody else's.

    Args:
        path: the file, or its folder.
        env_id: the environment to be made.
        environment: its options.
        run: the options of the training to come, if there is one.
    """
    module, kwargs = env_id.rpartition(":")[0], environment.env_kwargs
    asked = [f"import {name.strip()}" for name in (*environment.imports.split(","), module) if name.strip()]
    if module or kwargs:
        asked.append(f"call {env_id} with {shown(kwargs or {}, 1000)}")
    if run is not None:
        asked += [f"log to {run.track}"] * bool(run.track) + [f"connect to {run.address}"] * bool(run.address)
    if asked:
        logger.info("%s and the command line ask to %s", path, ", to ".join(asked))


def require_own(own: Mapping[str, str], **given: object) -> None:
    """Refuse to go on without a run's or an agent's own parts, or with others.

    Raises:
        RunDirectoryError: if a part is missing.
        CheckpointError: if a part is given that the run did not have.
    """
    for what, value in given.items():
        name = own.get(what)
        if name is not None and value is None:
            flag = " or --agent module:Class" if what == "agent" else ""
            raise RunDirectoryError(
                f"the run has its own {what}, {name!r}: pass it again in Python, as {what}=...{flag}"
            )
        if name is None and value is not None:
            raise CheckpointError(f"the run was begun without its own {what}: leave {what}=... out")
        if not isinstance(value, Mapping):
            continue
        names, given_names = str(name).split(", "), [*map(str, value)]
        if what == "schedules":  # of which the order says nothing
            names, given_names = sorted(names), sorted(given_names)
        if names != given_names:
            raise CheckpointError(f"{what} of the run were of {name}, got those of {name_of_source(value)}")


def origin() -> dict[str, Any]:
    """The command line, the directory and the machine of a run, for `config.json`.

    If the directory is in a git repository, it also has `commit`, and `has_changes`: whether tracked files differ from
    the commit.
    """
    found: dict[str, Any] = {"command": shlex.join(sys.orig_argv), "directory": None, "host": platform.node()}
    with suppress(FileNotFoundError):  # it was deleted
        found["directory"] = os.getcwd()
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "timeout": GIT_SECONDS}
    try:
        git = subprocess.run(COMMIT, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}, **options)
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, no repository, or one without a commit
        return found
    commit = git.stdout.strip().removesuffix("-dirty")
    return {**found, "commit": commit, "has_changes": git.stdout.strip() != commit}


def _require_types(found: dict[str, Any]) -> None:
    """Refuse the contents of a `config.json` that lack a setting, or have one of another type."""
    of_agent = {"agents": dict, "played": list} if "policies" in found else {"agent": str, "config": dict}
    options = fields_of(*GROUPS).items()  # a run of an older version lacks later options
    needed = [name for name, option in options if option.default is MISSING or name == "seed"]
    for name, kind in {**KINDS, **of_agent, **dict.fromkeys(needed, object)}.items():
        _require(found, name, kind)
    for name in found.get("policies", ()):
        _require(found["policies"], name, dict)
    if (agent := found.get("agent", "ppo")) not in AGENTS:
        raise RunDirectoryError(f"agent must be one of {', '.join(AGENTS)}, got {shown(agent)}")
    if not all(name in OF_ONES_OWN and isinstance(value, str) for name, value in found["own"].items()):
        raise RunDirectoryError(f"own must name {', '.join(OF_ONES_OWN)}, got {shown(found['own'])}")
    if found["seed"] is None:
        raise RunDirectoryError("seed must be a whole number of at least 0, got None")


def _require(found: dict[str, Any], name: str, kind: type) -> None:
    if name not in found:
        raise RunDirectoryError(f"it has no {name}")
    if not isinstance(found[name], kind):
        rule = {str: "text", bool: "true or false", dict: "an object", list: "a list"}[kind]
        raise RunDirectoryError(f"{name} must be {rule}, got {shown(found[name])}")


@contextmanager
def _naming(file: Path, name: str = "") -> Iterator[None]:
    """A context in which every error becomes a `RunDirectoryError` that names the file, and a setting."""
    try:
        yield
    except (ConfigurationError, RunDirectoryError) as error:
        raise RunDirectoryError(f"{file} is damaged: {name}{error}") from error
    except Exception as error:  # gymnasium and NumPy raise whatever comes to them for what is no space
        raise RunDirectoryError(f"{file} is damaged: {name}{type(error).__name__}: {error}") from error


def settings_of_result(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a `config.json` that can change the result of a seed by more than rounding.

    If two runs in one environment have equal settings of this kind, only their seeds differ. The metadata of an option
    says whether it is one of them (`can_change_result`).
    """
    agent, values = found["agent"], {**found, **found["config"]}
    options = {**fields_of(AGENTS[agent].config_type), **fields_of(*GROUPS)}
    names = [name for name in options if name in values and name != "seed"]
    decided = {name: values[name] for name in names if can_change_result(options[name], values)}
    decided |= {"agent": agent, "own": found["own"], **placement_settings_of_result(found["placement"])}
    decided["distributed"] = distributed_from(values["distributed"]).part_in_result()
    return json.loads(json.dumps(decided, allow_nan=True))  # lists, in place of tuples


def name_of_source(source: object) -> str:
    """An environment's id, or the name of a function or class; or the names of several, from a mapping."""
    if isinstance(source, Mapping):
        return ", ".join(source)
    return source if isinstance(source, str) else shown_name(source)
