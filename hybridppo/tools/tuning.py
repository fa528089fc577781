"""Settings by the name of an environment, out of one readable file, `tuned.json`.

config = hybridppo.tuned("Hopper-v5")
hybridppo.train("Hopper-v5", total_steps=1_000_000, config=config)
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.errors import ConfigurationError

FILE = Path(__file__).with_name("tuned.json")


@dataclass(frozen=True)
class Entry:
    """What is known of an environment."""

    config: PPOConfig
    total_steps: int
    """That the settings were made for: what is annealed is annealed over them."""
    source: str
    """Whose settings they are."""
    published_return: float | None
    """What the source reached."""
    return_here: float | None
    """What this library has reached; None until it has been measured."""
    left_out: str | None
    """What of the source's settings cannot be expressed here."""

    def __str__(self) -> str:
        published = "none published" if self.published_return is None else f"{self.published_return:g} published"
        here = "not measured here yet" if self.return_here is None else f"{self.return_here:g} here"
        left_out = "" if self.left_out is None else f"; left out: {self.left_out}"
        return f"{self.source}, {self.total_steps:,} steps; return: {published}, {here}{left_out}"


def tuned(env_id: str) -> PPOConfig:
    """The settings that are known to suit an environment.

    Raises:
        ConfigurationError: for one without an entry, with those that have one.
    """
    return tuned_entry(env_id).config


def tuned_entry(env_id: str) -> Entry:
    """The settings, the steps that they were made for, and where they are from.

    Raises:
        ConfigurationError: for one without an entry, with those that have one.
    """
    entries = _entries()
    if env_id not in entries:
        raise ConfigurationError(
            f"there are no tuned settings for {env_id!r}, but for: {', '.join(entries)}. Leave tuned out, or give "
            "settings of your own"
        )
    found = dict(entries[env_id])
    return Entry(config=PPOConfig(**found.pop("config")), **found)


@cache
def _entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["environments"]
    return entries
