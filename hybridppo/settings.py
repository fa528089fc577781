"""The settings in `config.json`, written when a run begins and checked when it resumes; and the plan of a training."""

import json
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from hybridppo._version import __version__
from hybridppo.agents.registry import AGENTS, AnyAgent, AnyConfig, config_from_json, name_of
from hybridppo.distributed_policies import distributed_from
from hybridppo.environments.base import Environments
from hybridppo.environments.options import CriticsOptions, EnvironmentOptions, EnvSource
from hybridppo.errors import CheckpointError, ConfigurationError, RunDirectoryError, shown, shown_name
from hybridppo.options import GROUPS, RunOptions, can_change_result, changed, fields_of, made
from hybridppo.placements.by_name import settings_of_result as placement_settings_of_result
from hybridppo.placements.placement import Placement
from hybridppo.reporting.callbacks import Callback
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.spaces.serialization import space_from_json, space_to_json
from hybridppo.system.signals import Interruption
from hybridppo.system.threads import kernels_taken

logger = logging.getLogger(__name__)

GIT_SECONDS = 5.0
"""A repository that takes longer to look at is not named."""
COMMIT = ("git", "-c", "core.fsmonitor=false", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")
"""Prints the commit of the working directory, with `-dirty` if tracked files differ; `--exclude` leaves tags out."""

KINDS: dict[str, type] = {
    **dict.fromkeys(("env_id", "policy"), str),
    **dict.fromkeys(("env_is_registered", "has_given_agents"), bool),
    **dict.fromkeys(("placement", "observation_space", "action_space", "versions", "origin", "own"), dict),
}
"""The types of settings in `config.json` that are neither the agent's nor options."""
OF_ONES_OWN = ("agent", "loss", "networks", "advantages", "modules", "schedules", "env_kwargs")
"""Parts of a run that only Python can make again, by the names of `train`'s arguments."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run; `config.json` also has the versions of its packages."""

    env_id: str
    """The environment's id, or the name of the function that makes it."""
    env_is_registered: bool
    config: AnyConfig
    environment: EnvironmentOptions
    run: RunOptions
    """The options of the run. They have a seed, also if the user gave none."""
    placement: dict[str, Any]
    """As `Placement.settings`."""
    observation_space: "gym.Space[Any]"
    action_space: "gym.Space[Any]"
    own: dict[str, str]
    """The names of the user's own parts (`OF_ONES_OWN`); `env_kwargs` as text, if JSON cannot hold them."""
    has_given_agents: bool = False
    """Whether the run began with the networks of agents that were given in Python."""
    policy: str = "policy"
    """The name of the policy, if there is only one: its key, if `config` was a mapping."""

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        assert self.run.seed is not None  # `train` and `read` see to that
        return self.run.seed

    @property
    def can_make_env(self) -> bool:
        """Whether the file alone says how to make the environment."""
        return self.env_is_registered and "env_kwargs" not in self.own

    def changed(self, options: dict[str, Any]) -> "Settings":
        """The settings with other values for some options of the run; None changes nothing."""
        return replace(self, environment=changed(self.environment, options), run=changed(self.run, options))

    def to_json(self) -> dict[str, Any]:
        """The contents of `config.json`."""
        config = self.config.to_json()
        return {
            "env_id": self.env_id,
            "env_is_registered": self.env_is_registered,
            **({"agent": name_of(self.config), "config": config} if name_of(self.config) in AGENTS else config),
            "placement": self.placement,
            **asdict(self.run),
            **asdict(replace(self.environment, env_kwargs=None)),
            "env_kwargs": None if "env_kwargs" in self.own else self.environment.env_kwargs,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "own": self.own,
            "has_given_agents": self.has_given_agents,
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
        """Read the settings of a run, and check their types.

        Raises:
            RunDirectoryError: if `config.json` lacks a setting, or has an invalid one; the message has the rule.
        """
        found = config_to_show(directory)
        agent, config = ("policies", found) if "policies" in found else (found["agent"], found["config"])
        group = CriticsOptions if "critic_observes" in found else EnvironmentOptions
        making: dict[str, Callable[[], Any]] = {
            "config": lambda: config_from_json(agent, config),
            "environment": lambda: made(group, found),
            "observation_space": lambda: space_from_json(found["observation_space"]),
            "action_space": lambda: space_from_json(found["action_space"]),
        }
        parts = {}
        for name, make in making.items():
            with _naming(directory.path / "config.json", "" if name == "environment" else f"{name}: "):
                parts[name] = make()
        return cls(
            env_id=found["env_id"],
            env_is_registered=found["env_is_registered"],
            run=made(RunOptions, found),
            placement=found["placement"],
            **parts,
            own=found["own"],
            has_given_agents=found["has_given_agents"],
            policy=found["policy"],
        )

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
                "them so by itself, for it is called without env_kwargs",
                kwargs,
            )
            return env
        if self.env_is_registered:
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
    environments: Environments
    agent: AnyAgent
    placement: Placement
    interruption: Interruption
    directory: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    profile: bool = False
    progress: bool = False
    """Whether to show a progress bar."""
    callbacks: Sequence[Callback] = ()


def require_own(own: Mapping[str, str], **given: object) -> None:
    """Refuse to go on without a run's or an agent's own parts, or with others.

    Raises:
        RunDirectoryError: if a part is missing.
        CheckpointError: if a part is given that the run did not have.
    """
    for what, value in given.items():
        name = own.get(what)
        if name is not None and value is None:
            raise RunDirectoryError(f"the run has its own {what}, {name!r}: pass it again in Python, as {what}=...")
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
    found = {"command": shlex.join(sys.orig_argv), "directory": _directory(), "host": platform.node()}
    try:
        described = subprocess.run(
            COMMIT,
            capture_output=True,
            text=True,
            check=True,
            timeout=GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.strip()
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, no repository, or one without a commit
        return found
    commit = described.removesuffix("-dirty")
    return {**found, "commit": commit, "has_changes": described != commit}


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return None


def config_to_show(directory: RunDirectory) -> dict[str, Any]:
    """The contents of `config.json`, in which every setting is there and of its type.

    `Settings.read` also makes the spaces and the agent's configuration.

    Raises:
        RunDirectoryError: if a setting is missing or invalid; the message has the rule.
    """
    found = directory.config
    of_agent: dict[str, type] = (
        {"agents": dict, "played": list} if "policies" in found else {"agent": str, "config": dict}
    )
    with _naming(directory.path / "config.json"):
        for name, kind in (KINDS | of_agent).items():
            _require(found, name, kind)
        for name in found.get("policies", ()):
            _require(found["policies"], name, dict)
        if (agent := found.get("agent", "ppo")) not in AGENTS:
            raise RunDirectoryError(f"agent must be one of {', '.join(AGENTS)}, got {shown(agent)}")
        for name, value in found["own"].items():
            if name not in OF_ONES_OWN or not isinstance(value, str):
                raise RunDirectoryError(f"own must name {', '.join(OF_ONES_OWN)}, got {shown(found['own'])}")
        for name in fields_of(*GROUPS):
            _require(found, name, object)
        if found["seed"] is None:
            raise RunDirectoryError("seed must be a whole number of at least 0, got None")
        made(RunOptions, found)
    return found


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
    """The settings in `config.json` that can change the result of a seed by more than rounding.

    If two runs in one environment have equal settings of this kind, only their seeds differ. The metadata of an option
    says whether it is one of them (`can_change_result`).
    """
    agent = found["agent"]
    options = {**fields_of(AGENTS[agent].config), **fields_of(*GROUPS)}
    values = {**found, **found["config"]}
    names = [name for name in options if name in values and name != "seed"]
    decided = {name: values[name] for name in names if can_change_result(options[name], values)}
    decided["distributed"] = distributed_from(values["distributed"]).part_in_result()
    others = {**placement_settings_of_result(found["placement"]), "own": found["own"]}
    read: dict[str, Any] = json.loads(
        json.dumps({"agent": agent, **decided, **others}, allow_nan=True)
    )  # lists, in place of tuples
    return read


def name_of_source(source: object) -> str:
    """An environment's id, or the name of a function or class; or the names of several, from a mapping."""
    if isinstance(source, Mapping):
        return ", ".join(source)
    return source if isinstance(source, str) else shown_name(source)
