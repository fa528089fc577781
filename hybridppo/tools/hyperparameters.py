"""Tuned hyperparameters of environments, from `tuned.json`, and the space that `hybridppo tune` searches.

config = hybridppo.tuned("Hopper-v5")
hybridppo.train("Hopper-v5", total_steps=1_000_000, config=config)
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import AGENTS, AnyConfig, agent_class
from hybridppo.errors import ConfigurationError, command, shown
from hybridppo.run_directory.files import as_json, read_file, replace_synced
from hybridppo.system.validation import is_number, require_path

FILE = resources.files("hybridppo.tools") / "tuned.json"
Space = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""Ranges of hyperparameters by name, or a function of a trial of optuna that returns hyperparameters."""
SPACE: dict[str, Any] = {
    "learning_rate": (3e-5, 3e-3, "log"),
    "num_envs": [4, 8, 16],
    "num_steps": [512, 64, 128, 256, 1024],
    "minibatch_size": [64, 128, 256, 512],
    "num_epochs": [10, 4, 20],
    "anneal_learning_rate": [False, True],
    "gamma": [0.99, 0.9, 0.95, 0.98, 0.995, 0.999],
    "gae_lambda": [0.95, 0.8, 0.9, 0.98, 1.0],
    "clip_range": [0.2, 0.1, 0.3],
    "entropy_coef": [0.0, 1e-4, 1e-3, 1e-2, 3e-2],
    "value_coef": [0.5, 1.0, 2.0],
    "max_grad_norm": [0.5, 1.0, 5.0],
    "hidden_sizes": [(64, 64), (128, 128), (256, 256)],
    "activation": ["tanh", "relu"],
    "normalize_observations": [True, False],
    "normalize_rewards": [True, False],
}
"""What is tried for each hyperparameter of PPO, the value nearest to the default first."""
FIRST = {"learning_rate": PPOConfig().learning_rate} | {
    name: str(values[0]) for name, values in SPACE.items() if isinstance(values, list)
}
"""The parameters of the first trial, as optuna keeps them: those nearest to the defaults."""
NETWORKS = ("hidden_sizes", "activation", "normalize_observations")
"""The hyperparameters that decide the shapes of the networks."""


@dataclass(frozen=True)
class Entry:
    """The tuned hyperparameters of an environment."""

    config: Any
    """A `PPOConfig`, unless another agent was tuned."""
    total_steps: int
    """The steps that they were tuned for, over which annealed hyperparameters are annealed."""
    source: str
    published_return: float | None = None
    """The return that the source published."""
    return_here: float | None = None
    """The return of this library; None if it has not been measured."""
    left_out: str | None = None
    """The source's hyperparameters that this library does not have."""

    def __str__(self) -> str:
        published = "none published" if self.published_return is None else f"{self.published_return:g} published"
        here = "not measured here yet" if self.return_here is None else f"{self.return_here:g} here"
        left_out = "" if self.left_out is None else f"; left out: {self.left_out}"
        return f"{self.source}, {self.total_steps:,} steps; return: {published}, {here}{left_out}"


def tuned(env_id: str, *, file: str | Path | None = None) -> Any:
    """The tuned hyperparameters of an environment.

    Args:
        env_id: the environment.
        file: as `hybridppo tune` writes it; None for the library's own.

    Raises:
        ConfigurationError: if the environment has no entry, or the file cannot be read.
    """
    return tuned_entry(env_id, file).config


def tuned_entry(env_id: str, file: str | Path | None = None) -> Entry:
    """The tuned hyperparameters of an environment, with their steps and their source.

    Raises:
        ConfigurationError: if the environment has no entry, or the file cannot be read.
    """
    entries = known_environments(file)
    if env_id not in entries:
        raise ConfigurationError(
            f"there are no tuned hyperparameters for {env_id!r}, but for: {', '.join(entries)}. Leave tuned out, give "
            f"settings of your own, or search for some: {command('hybridppo', 'tune', env_id)}"
        )
    found = entries[env_id]
    try:
        kind: Any = AGENTS[found.get("agent", "ppo")].config_type
        fields = {name: value for name, value in found.items() if name != "agent"}
        return Entry(**{**fields, "config": kind(**found["config"])})
    except (KeyError, TypeError, ConfigurationError) as error:
        raise ConfigurationError(f"{file or FILE} has no whole entry for {env_id!r}: {error}") from error


def known_environments(file: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """The entries of a file, by environment.

    Raises:
        ConfigurationError: if it cannot be read.
    """
    path = FILE if file is None else require_path("file", file)
    try:
        text = read_file(path) if isinstance(path, Path) else path.read_bytes()  # in a zip, the library's is no path
        entries: dict[str, dict[str, Any]] = json.loads(text)["environments"]
        if not all(isinstance(entry, dict) for entry in entries.values()):
            raise TypeError("an entry is no object")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path} is no file of tuned hyperparameters: {error}") from error
    return entries


def write_entry(file: str | Path, env_id: str, entry: Entry) -> None:
    """Add an entry to a file of tuned hyperparameters."""
    path = Path(file)
    entries = known_environments(path) if path.exists() else {}
    of_agent = {} if isinstance(entry.config, PPOConfig) else {"agent": agent_class(entry.config).name}
    entries[env_id] = {**vars(entry), "config": entry.config.to_json(), **of_agent}
    replace_synced(path, as_json({"environments": entries}).encode())


def suggested(trial: Any, fixed: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """The hyperparameters that a trial of optuna tries, without the fixed ones.

    Raises:
        ConfigurationError: if a range of the space has another form, or its function returns no dict.
    """
    if not callable(space):
        return {name: _suggested_in(trial, name, range_) for name, range_ in space.items() if name not in fixed}
    found = space(trial)
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"space must return a dict of hyperparameters, returned {shown(found)}")
    return {name: value for name, value in found.items() if name not in fixed}


def _suggested_in(trial: Any, name: str, range_: Any) -> Any:
    """A value of a range: one of a list, or between the two numbers of a tuple."""
    if isinstance(range_, list) and range_:
        by_text = {str(value): value for value in range_}  # optuna keeps no tuples
        return by_text[trial.suggest_categorical(name, list(by_text))]
    match range_:
        case (low, high, *log) if is_number(low) and is_number(high) and log in ([], ["log"]):
            if low <= high and (low > 0 or not log):
                are_whole = isinstance(low, int) and isinstance(high, int)
                suggest = trial.suggest_int if are_whole else trial.suggest_float
                return suggest(name, low, high, log=bool(log))
    raise ConfigurationError(
        f"space[{name!r}] must be a list of values, or a range (low, high) or (low, high, 'log'), got {shown(range_)}"
    )


def config_from(parameters: Mapping[str, Any], fixed: Mapping[str, Any], base: AnyConfig | None = None) -> Any:
    """The configuration with these hyperparameters; `minibatch_size` gives the number of minibatches.

    Args:
        parameters: fields of the configuration by name; `settings.NAME` is a setting of one's own.
        fixed: more of them, which win.
        base: the configuration with the other fields; None for PPO's defaults.

    Raises:
        ConfigurationError: if a hyperparameter is invalid.
    """
    base = PPOConfig() if base is None else base
    fields = {**parameters, **fixed}
    own = {name: fields.pop(name) for name in [*fields] if name.startswith("settings.")}
    if own:
        named = {name.removeprefix("settings."): value for name, value in own.items()}
        fields["settings"] = {**base.settings, **fields.get("settings", {}), **named}
    size = fields.pop("minibatch_size", None) if isinstance(base, PPOConfig) else None
    try:
        made: Any = replace(base, **fields)
    except TypeError as error:
        raise ConfigurationError(f"fixed and space must hold fields of {type(base).__name__}: {error}") from error
    if size is None or "num_minibatches" in fields:
        return made
    most = max(1, min(made.batch_size // size, made.units))
    count = next(n for n in range(most, 0, -1) if made.batch_size % n == 0)
    return replace(made, num_minibatches=count, minibatch_size=None)
