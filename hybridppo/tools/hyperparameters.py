"""Tuned hyperparameters of environments, from `tuned.json`, and the space that `hybridppo tune` searches.

config = hybridppo.tuned("Hopper-v5")
hybridppo.train("Hopper-v5", total_steps=1_000_000, config=config)
"""

import json
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.errors import ConfigurationError, command
from hybridppo.run_directory.files import as_json, read_file, replace_synced
from hybridppo.system.validation import require_path

FILE = resources.files("hybridppo.tools") / "tuned.json"
SPACE: dict[str, tuple[Any, ...]] = {
    "num_envs": (4, 8, 16),
    "num_steps": (512, 64, 128, 256, 1024),
    "minibatch_size": (64, 128, 256, 512),
    "num_epochs": (10, 4, 20),
    "anneal_learning_rate": (False, True),
    "gamma": (0.99, 0.9, 0.95, 0.98, 0.995, 0.999),
    "gae_lambda": (0.95, 0.8, 0.9, 0.98, 1.0),
    "clip_range": (0.2, 0.1, 0.3),
    "entropy_coef": (0.0, 1e-4, 1e-3, 1e-2, 3e-2),
    "value_coef": (0.5, 1.0, 2.0),
    "max_grad_norm": (0.5, 1.0, 5.0),
    "hidden_sizes": ("64,64", "128,128", "256,256"),
    "activation": ("tanh", "relu"),
    "normalize_observations": (True, False),
    "normalize_rewards": (True, False),
}
"""The values to try for each hyperparameter, the one nearest to the default first; the learning rate lies between
`LEARNING_RATES`, on a logarithmic scale."""
LEARNING_RATES = (3e-5, 3e-3)
NETWORKS = ("hidden_sizes", "activation", "normalize_observations")
"""The hyperparameters that decide the shapes of the networks."""


@dataclass(frozen=True)
class Entry:
    """The tuned hyperparameters of an environment."""

    config: PPOConfig
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


def tuned(env_id: str, *, file: str | Path | None = None) -> PPOConfig:
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
            f"there are no tuned settings for {env_id!r}, but for: {', '.join(entries)}. Leave tuned out, give "
            f"settings of your own, or search for some: {command('hybridppo', 'tune', env_id)}"
        )
    found = entries[env_id]
    try:
        return Entry(**{**found, "config": PPOConfig(**found["config"])})
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
        raise ConfigurationError(f"{path} is no file of tuned settings: {error}") from error
    return entries


def write_entry(file: str | Path, env_id: str, entry: Entry) -> None:
    """Add an entry to a file of tuned hyperparameters."""
    path = Path(file)
    entries = known_environments(path) if path.exists() else {}
    entries[env_id] = {**vars(entry), "config": entry.config.to_json()}
    replace_synced(path, as_json({"environments": entries}).encode())


def suggested(trial: Any, fixed: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters that a trial of optuna tries, without the fixed ones."""
    found = {name: trial.suggest_categorical(name, values) for name, values in SPACE.items() if name not in fixed}
    if "learning_rate" not in fixed:
        found["learning_rate"] = trial.suggest_float("learning_rate", *LEARNING_RATES, log=True)
    return found


def config_from(parameters: dict[str, Any], fixed: dict[str, Any]) -> PPOConfig:
    """The configuration with these hyperparameters; `minibatch_size` gives the number of minibatches.

    Raises:
        ConfigurationError: if a fixed hyperparameter is invalid.
    """
    settings = {**parameters, **fixed}
    size = settings.pop("minibatch_size", None)
    if isinstance(settings.get("hidden_sizes"), str):
        settings["hidden_sizes"] = tuple(int(width) for width in settings["hidden_sizes"].split(","))
    try:
        made = PPOConfig(**settings)
    except TypeError as error:
        raise ConfigurationError(f"fixed must hold fields of PPOConfig: {error}") from error
    if size is None or "num_minibatches" in settings:
        return made
    most = max(1, min(made.batch_size // size, made.units))
    return replace(made, num_minibatches=next(n for n in range(most, 0, -1) if made.batch_size % n == 0))


def first_trial() -> dict[str, Any]:
    """The values of the space that are nearest to the defaults."""
    return {"learning_rate": PPOConfig().learning_rate, **{name: values[0] for name, values in SPACE.items()}}
