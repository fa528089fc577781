"""Files of options, for `hybridppo train --config my.yaml` and `hybridppo.train(config="my.yaml")`.

    env: CartPole-v1
    total_steps: 1e5
    num_envs: 8

The names are those of the flags, with underscores. A name that is no option and has options below it is an environment:
its options are for this environment alone, and win over those above.
"""

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from hybridppo.agents.registry import AGENTS, AnyConfig
from hybridppo.agents.schedules import sizes_of
from hybridppo.auto.auto import PlacementOptions
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.environments.packages import import_modules
from hybridppo.errors import ConfigurationError, hint, is_installed, message_of, pip_install, shown
from hybridppo.settings import RunOptions, fields_of
from hybridppo.system.validation import each_once, require_path

OWN = ("env", "agent", "run_dir", "compiled", "profile", "progress", "verbose", "policies")
"""Options that belong to no group."""
USUAL_STEPS = 500_000
"""The length of a run whose `total_steps` neither a flag nor a file gives."""


@dataclass(frozen=True)
class ConfigFile:
    """The options that a file gives."""

    values: Mapping[str, Any]
    """The options by name, as written."""
    groups: Mapping[str, Any]
    """The groups of options, with the defaults of the others: `options`, `environment`, `placement`, `config`."""

    @property
    def own(self) -> dict[str, Any]:
        """The options that belong to no group."""
        return {name: self.values[name] for name in OWN if name in self.values}

    def arguments(self) -> dict[str, Any]:
        """The options as arguments of `hybridppo.train`."""
        given = {
            name: getattr(self.groups[group], name)
            for group in ("options", "environment")
            for name in fields_of(type(self.groups[group]))
            if name in self.values
        }
        if any(name in self.values for name in fields_of(PlacementOptions)):
            given["placement"] = self.groups["placement"].resolve()
        given |= {name: value for name, value in self.own.items() if name not in ("agent", "policies")}
        own = own_agent(self.values.get("agent"))
        given |= {} if own is None else {"agent": own}
        return given | {"config": of_policies(self.groups["config"], self.values.get("policies"))}


def arguments_from(keywords: Mapping[str, Any], *arguments: Any) -> dict[str, Any]:
    """The arguments of `hybridppo.train` whose `config` names a file; those that are given win over the file's.

    Raises:
        ConfigurationError: naming the file, the line and the option.
    """
    env = arguments[0] if arguments else keywords.get("env")
    given = {name: value for name, value in keywords.items() if name != "config"}
    found = read_config(keywords["config"], env if isinstance(env, str) else None).arguments()
    if arguments:
        found.pop("env", None)
    return {**found, **given}


def of_policies(config: AnyConfig, policies: Any) -> Any:
    """A configuration for each policy, with its own fields in place of some of `config`; `config` for None.

    Raises:
        ConfigurationError: if they are no fields by name.
    """
    if policies is None:
        return config
    try:
        each = policies.items()
        return {name: own if isinstance(own, str) else replace(config, **own) for name, own in each}
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"policies must hold an object of PPO's settings for each policy, got {shown(policies)}: {error}"
        ) from error


def read_config(path: str | os.PathLike[str], env_id: str | None = None, agent: str | None = None) -> ConfigFile:
    """Read a file of options, and check all of them.

    Args:
        path: the file: .yaml, .yml, .json or .toml.
        env_id: the environment, if it is known; else the file names it.
        agent: the agent's name, in place of the file's.

    Raises:
        ConfigurationError: naming the file, the line and the option.
    """
    file = require_path("config", path)
    text, content = _content(file)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConfigurationError(f"{file} must hold options by name, as num_envs: 8, got {shown(content)}")
    every = {*OWN, *fields_of(RunOptions, EnvironmentOptions, PlacementOptions)}
    every |= fields_of(*(kind.config_type for kind in AGENTS.values())).keys()
    sections = {name: own for name, own in content.items() if name not in every and isinstance(own, dict)}
    values = {name: value for name, value in content.items() if name not in sections}
    env_id = values.get("env", next(iter(sections)) if len(sections) == 1 else None) if env_id is None else env_id
    if not isinstance(env_id, str | None):
        raise ConfigurationError(f"{file}: env must be an id, or a function as module:function, got {shown(env_id)}")
    if sections and not values and env_id not in sections:
        raise ConfigurationError(
            f"{file} has options for {', '.join(sections)}, and none for {shown(env_id)}: add some"
        )
    above = {**values, **({} if env_id is None else {"env": env_id})}
    for name in (*(name for name in sections if name != env_id), env_id):  # all are checked
        found = _checked(file, text, {**above, **sections.get(name, {})}, name if name in sections else None, agent)
    return found


def _checked(file: Path, text: str, values: dict[str, Any], section: str | None, agent: str | None) -> ConfigFile:
    name = agent or values.get("agent", "ppo")

    def error(option: str, message: str) -> ConfigurationError:
        start = max(0, text.find(section or ""))
        found = re.search(rf"(?m)(?:^|[{{,])\s*[\"']?{re.escape(option)}\b[\"']?\s*[:=]", text[start:])
        place = "" if found is None else f", line {text.count(chr(10), 0, start + found.end()) + 1}"
        return ConfigurationError(f"{file}{place}: {message}")

    try:
        kind = config_type(str(name))
    except ConfigurationError as refused:
        raise error("agent", message_of(refused)) from refused
    kinds = {"options": RunOptions, "environment": EnvironmentOptions, "placement": PlacementOptions, "config": kind}
    names = fields_of(*kinds.values())
    for option, value in values.items():
        if option not in names and option not in OWN:
            meant = hint(option, value, [*names, *OWN], sizes_of(kind) | sizes_of(values))
            of = "" if section is None else f" for the environment {section!r}"
            raise error(option, f"there is no option {option!r}{of}{meant}")
    groups = {}
    for group, of_group in kinds.items():
        own = {
            option: _as_whole(names[option].type, values[option]) for option in fields_of(of_group) if option in values
        }
        if of_group is RunOptions:
            own = {"total_steps": USUAL_STEPS, **own}
        try:
            groups[group] = of_group(**own)
        except ConfigurationError as refused:
            option = next((option for option in own if message_of(refused).startswith(option)), "")
            raise error(option, message_of(refused)) from refused
    return ConfigFile(values, groups)


def _as_whole(kind: Any, value: Any) -> Any:
    """A number such as 1e6 as a whole number, if the option is one."""
    is_whole = isinstance(value, float) and value.is_integer() and int in (kind, *get_args(kind))
    return int(value) if is_whole else value


def own_agent(name: str | None) -> type[Any] | None:
    """The class that the option `agent` names as module:Class; None for an agent of the library, or without the option.

    Raises:
        ConfigurationError: if there is none.
    """
    if name is None or name in AGENTS:
        return None
    module, _, kind = name.rpartition(":")
    if not module:
        rule = f"one of {', '.join(AGENTS)}, or a class as module:Class"
        raise ConfigurationError(f"agent must be {rule}, got {shown(name)}{hint(name, None, AGENTS)}")
    import_modules(module, " of agent")
    found = getattr(sys.modules[module], kind, None)
    if not (isinstance(found, type) and issubclass(found, tuple(AGENTS.values()))):
        raise ConfigurationError(f"agent {name}: {module} has no subclass {kind} of PPO, DDPG or TD3")
    return found


def config_type(agent: str) -> type[Any]:
    """The type of an agent's hyperparameters, by the option `agent`.

    Raises:
        ConfigurationError: if there is no such agent.
    """
    kind: Any = own_agent(agent) or AGENTS[agent]
    return kind.config_type


def is_config_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of options by its name, and no run or its `config.json`."""
    path = Path(path)
    return path.suffix in READERS and path.name != "config.json"


def _content(file: Path) -> tuple[str, Any]:
    """The text of a file, and what it holds."""
    if not is_config_file(file):
        raise ConfigurationError(f"config must name a file of options, {', '.join(READERS)}, got {str(file)!r}")
    try:
        text = file.read_text(encoding="utf-8")
        return text, READERS[file.suffix](text)
    except FileNotFoundError:
        raise ConfigurationError(f"{file} does not exist") from None
    except (OSError, ValueError) as error:  # of any of the readers
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def _from_toml(text: str) -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    if not is_installed(name):
        raise ValueError("Python 3.10 needs tomli for TOML: pip install tomli, or write it as .json")
    return importlib.import_module(name).loads(text)


def _from_yaml(text: str) -> Any:
    if not is_installed("yaml"):
        raise ValueError(f"YAML needs PyYAML: {pip_install('yaml')}, or write it as .toml or .json")
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads 1e6 as a number, as YAML 1.2 does, and refuses a key that comes twice."""

    def mapping(loader: Any, node: Any) -> Any:
        each_once((loader.construct_object(key, deep=True), None) for key, _ in node.value if key.value != "<<")
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    number = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


READERS: dict[str, Callable[[str], Any]] = {
    ".yaml": _from_yaml, ".yml": _from_yaml, ".toml": _from_toml,
    ".json": partial(json.loads, object_pairs_hook=each_once),
}  # fmt: skip
"""The formats, by the ends of files' names."""
