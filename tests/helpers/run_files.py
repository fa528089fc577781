"""What tests read in the folder of a run, and take away from it; and a disk that takes no more."""

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from gymnasium.spaces import Discrete

from hybridppo.environments.options import EnvironmentOptions
from hybridppo.run_directory.checkpoints import FORMAT_VERSION
from hybridppo.settings import RunOptions
from hybridppo.spaces.serialization import space_to_json


def config_of_a_run(**changes: Any) -> dict[str, Any]:
    """What tools read in a `config.json`, with these changes."""
    options = {**asdict(RunOptions(total_steps=100, seed=0)), **asdict(EnvironmentOptions())}
    objects = ("config", "placement", "versions", "origin", "own")
    usual = {"format_version": FORMAT_VERSION, "env_id": "A-v0", "agent": "ppo", **{name: {} for name in objects}}
    usual |= dict.fromkeys(("observation_space", "action_space"), space_to_json(Discrete(2)))
    of_policies = {"policy": "policy", "agents": {}, "played": []}
    return {**usual, **of_policies, **options, **changes}


@contextlib.contextmanager
def on_a_full_disk(size: int = 500) -> Iterator[None]:
    """A context in which no file can be longer than `size` bytes; skips the test on systems without such limits.

    What is imported there is not kept as bytecode: older Pythons would keep a truncated file, and no later process
    could import that module (https://github.com/python/cpython/issues/126606).
    """
    resource = pytest.importorskip("resource")
    before, bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = bytecode


def lines_of(run_dir: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def timeless_lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of every iteration, without times."""
    return [{k: v for k, v in line.items() if "second" not in k} for line in lines_of(run_dir)]


def remove_last_checkpoint(run_dir: Path, keep: int = -1) -> int:
    """Make a run as if it had been stopped before its last checkpoint, or after so many; the number of its last one."""
    found = sorted((run_dir / "checkpoints").iterdir())
    for later in found[keep:]:
        shutil.rmtree(later)
    return int(found[:keep][-1].name)
