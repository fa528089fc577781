"""What `config.json` must say for a run to go on: all of it is checked when read, whoever wrote it."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.environments.options import MODES, WORKER_TIMEOUT
from hybridppo.errors import ConfigurationError, RunDirectoryError, shown
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.upgrades import FORMAT_VERSION
from hybridppo.spaces.serialization import space_from_json

Settings = dict[str, Any]

LARGEST_SEED = 2**128
"""Nobody's seed is larger; and a larger number may be one that takes forever to read."""


def _is_whole(value: Any, minimum: int, below: int = 2**63) -> bool:
    return type(value) is int and minimum <= value < below


def is_seconds(value: Any) -> bool:
    """Whether it is a number of seconds, endless ones included."""
    # What is no number is not at least 0, either; and a whole number may be too large for a float.
    return type(value) in (int, float) and value >= 0 and (value == math.inf or value < 2**63)


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "env_id": (lambda value: isinstance(value, str), "text"),
    "env_is_registered": (lambda value: isinstance(value, bool), "true or false"),
    "seed": (lambda value: _is_whole(value, 0, LARGEST_SEED), "a whole number of at least 0"),
    "total_steps": (lambda value: _is_whole(value, 1), "a whole number of at least 1"),
    "placement": (lambda value: isinstance(value, dict), "an object"),
    "config": (lambda value: isinstance(value, dict), "an object"),
    "num_workers": (lambda value: value is None or _is_whole(value, 0), "null or a whole number of at least 0"),
    "vectorization": (lambda value: value in ("auto", "sync", "async"), "auto, sync or async"),
    "autoreset_mode": (lambda value: value is None or value in tuple(MODES), f"null or one of {', '.join(MODES)}"),
    "evaluation_episodes": (lambda value: _is_whole(value, 0), "a whole number of at least 0"),
    "checkpoint_seconds": (is_seconds, "a number of at least 0"),
    "keep_checkpoints": (lambda value: _is_whole(value, 1), "a whole number of at least 1"),
    "observation_space": (lambda value: isinstance(value, dict), "an object"),
    "action_space": (lambda value: isinstance(value, dict), "an object"),
}

OPTIONAL: dict[str, tuple[Callable[[Any], bool], str]] = {
    "total_episodes": (lambda value: value is None or _is_whole(value, 1), "null or a whole number of at least 1"),
    "on_env_error": (lambda value: value in ("raise", "restart"), "raise or restart"),
    "worker_timeout": (lambda value: is_seconds(value) and value > 0, "a positive number"),
    "action_masks": (lambda value: isinstance(value, bool), "true or false"),
}
DEFAULTS: Settings = {
    "total_episodes": None,
    "on_env_error": "raise",
    "worker_timeout": WORKER_TIMEOUT,
    "action_masks": False,
}
"""What earlier releases did not write, and what it was then."""


def settings_of(directory: RunDirectory) -> Settings:
    """The settings of a run, whole and of the right kinds.

    Raises:
        RunDirectoryError: where `config.json` lacks one, or says what cannot be: which, the value and the rule.
    """
    file, settings = directory.path / "config.json", dict(directory.config)
    settings = {**DEFAULTS, **settings}
    for name, (holds, rule) in {**RULES, **OPTIONAL}.items():
        if name not in settings:
            raise RunDirectoryError(f"{file} is damaged: it has no {name}")
        if not holds(settings[name]):
            raise RunDirectoryError(f"{file} is damaged: {name} must be {rule}, got {shown(settings[name])}")
    for name in ("observation_space", "action_space"):
        _attempt(file, name, partial(space_from_json, settings[name]))
    _attempt(file, "config", lambda: PPOConfig(**settings["config"]))
    return {**settings, "format_version": FORMAT_VERSION}  # what goes on from here is written in this one


def _attempt(file: Path, name: str, make: Callable[[], object]) -> None:
    try:
        make()
    except ConfigurationError as error:
        raise RunDirectoryError(f"{file} is damaged: {name}: {error}") from error
    except Exception as error:  # gymnasium and NumPy raise whatever comes to them for what is no space
        raise RunDirectoryError(f"{file} is damaged: {name}: {type(error).__name__}: {error}") from error
