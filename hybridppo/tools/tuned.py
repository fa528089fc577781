"""Tuned settings of environments, from the file `tuned.json`.

config = hybridppo.tuned("Hopper-v5")
hybridppo.train("Hopper-v5", total_steps=1_000_000, config=config)
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.errors import ConfigurationError, command
from hybridppo.run_directory.files import as_json

FILE = Path(__file__).with_name("tuned.json")


@dataclass(frozen=True)
class Entry:
    """The tuned settings of an environment."""

    config: PPOConfig
    total_steps: int
    """The steps that the settings were tuned for, over which annealed settings are annealed."""
    source: str
    """The source of the settings."""
    published_return: float | None
    """The return that the source published."""
    return_here: float | None
    """The return of this library; None if it has not been measured."""
    left_out: str | None
    """The source's settings that this library does not have."""

    def __str__(self) -> str:
        published = "none published" if self.published_return is None else f"{self.published_return:g} published"
        here = "not measured here yet" if self.return_here is None else f"{self.return_here:g} here"
        left_out = "" if self.left_out is None else f"; left out: {self.left_out}"
        return f"{self.source}, {self.total_steps:,} steps; return: {published}, {here}{left_out}"


def tuned(env_id: str, *, file: str | Path | None = None) -> PPOConfig:
    """The tuned settings of an environment.

    Args:
        env_id: the environment.
        file: as `hybridppo tune` writes it; None for the library's own.

    Raises:
        ConfigurationError: if the environment has no entry, or the file cannot be read.
    """
    return tuned_entry(env_id, file).config


def tuned_entry(env_id: str, file: str | Path | None = None) -> Entry:
    """The tuned settings of an environment, with their steps and their source.

    Raises:
        ConfigurationError: if the environment has no entry, or the file cannot be read.
    """
    entries = known_environments(file)
    if env_id not in entries:
        raise ConfigurationError(
            f"there are no tuned settings for {env_id!r}, but for: {', '.join(entries)}. Leave tuned out, give "
            f"settings of your own, or search for some: {command('hybridppo', 'tune', env_id)}"
        )
    found = dict(entries[env_id])
    try:
        return Entry(config=PPOConfig(**found.pop("config")), **found)
    except (KeyError, TypeError, ConfigurationError) as error:
        if file is None:
            raise
        raise ConfigurationError(f"{file} has no whole entry for {env_id!r}: {error}") from error


def known_environments(file: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """The entries of a file, by environment.

    Raises:
        ConfigurationError: if it cannot be read.
    """
    if file is None:
        return _shipped()
    try:
        entries: dict[str, dict[str, Any]] = json.loads(Path(file).read_text(encoding="utf-8"))["environments"]
        if not all(isinstance(entry, dict) for entry in entries.values()):
            raise TypeError("an entry is no object")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{file} is no file of tuned settings: {error}") from error
    return entries


def write_entry(file: str | Path, env_id: str, entry: Entry) -> None:
    """Add an entry to a file of tuned settings."""
    path = Path(file)
    entries = known_environments(path) if path.exists() else {}
    fields = {name: value for name, value in vars(entry).items() if name != "config"}
    entries[env_id] = {**fields, "config": entry.config.to_json()}
    path.write_text(as_json({"environments": entries}), encoding="utf-8")


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["environments"]
    return entries
