"""A run directory: everything that one training run leaves on disk.

config.json      what was asked for, enough to resume
metrics.jsonl    a line per iteration
checkpoints/     the newest few, see `hybridppo.checkpoints`
result.json      at the end
"""

import json
import math
import time
from pathlib import Path
from typing import Any, TextIO

import gymnasium as gym
import numpy as np
from torch import Tensor

from hybridppo import checkpoints
from hybridppo.checkpoints import Checkpoint
from hybridppo.errors import RunDirectoryError


class RunDirectory:
    """The files of one run; made by `create` or `open`."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self._metrics: TextIO | None = None

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "RunDirectory":
        """A new run directory.

        Raises:
            RunDirectoryError: where there is one already, or a file; nothing is ever overwritten.
        """
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunDirectoryError(
                f"{path} exists already and is not empty: name another folder, or go on with `hybridppo resume {path}`"
            )
        try:
            (path / "checkpoints").mkdir(parents=True)
            checkpoints.replace_synced(path / "config.json", _dump(config).encode())
        except OSError as error:
            raise RunDirectoryError(f"the run directory {path} cannot be made: {error}") from error
        return cls(path, config)

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """A run directory that exists.

        Raises:
            RunDirectoryError: where it is none.
        """
        path = Path(path)
        try:
            config = json.loads((path / "config.json").read_text())
        except OSError as error:
            raise RunDirectoryError(f"{path} is no run directory: {error}") from error
        except ValueError as error:
            raise RunDirectoryError(f"{path / 'config.json'} is damaged: {error}") from error
        return cls(path, config)

    def update_config(self, config: dict[str, Any]) -> None:
        """Write another `config.json` in place of the one there is."""
        checkpoints.replace_synced(self.path / "config.json", _dump(config).encode())
        self.config = config

    def log(self, metrics: dict[str, Any]) -> None:
        """Append a line to `metrics.jsonl`; what is not a finite number becomes null."""
        if self._metrics is None:
            self._metrics = (self.path / "metrics.jsonl").open("a", buffering=1)
        self._metrics.write(json.dumps(finite(metrics)) + "\n")

    def save_checkpoint(self, env_steps: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int) -> None:
        """Write a checkpoint named after `env_steps`, then delete all but the newest `keep`."""
        folder = self.path / "checkpoints" / f"{env_steps:012d}"
        if folder.exists():  # as when a run is interrupted just after its last checkpoint
            return
        checkpoints.save(folder, tensors, state)
        checkpoints.remove_old(folder.parent, keep)

    def load_checkpoint(self) -> Checkpoint:
        """The newest checkpoint that is whole.

        Raises:
            CheckpointError: where none is.
        """
        return checkpoints.load_latest(self.path / "checkpoints")[1]

    def rewind(self, iteration: int, env_steps: int) -> None:
        """Drop what was written after the checkpoint of `iteration`, at `env_steps`; a resumed run does it anew.

        Lines of metrics go, and checkpoints that are newer and so were found damaged are set aside by name.
        """
        path = self.path / "metrics.jsonl"
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if _iteration_of(line) <= iteration]
            checkpoints.replace_synced(path, "".join(f"{line}\n" for line in kept).encode())
        for folder in checkpoints.folders(self.path / "checkpoints"):
            if int(folder.name) > env_steps:
                folder.rename(folder.with_name(f"damaged-{folder.name}-{time.time_ns()}"))

    def write_result(self, result: dict[str, Any]) -> None:
        """Write `result.json`."""
        checkpoints.replace_synced(self.path / "result.json", _dump(finite(result)).encode())

    def close(self) -> None:
        """Close the metrics; a second call does nothing."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def fresh_path(env_id: str, seed: int) -> Path:
    """A folder under `runs/` that does not exist yet, named after the environment, the time and the seed."""
    stem = f"{env_id.replace('/', '-').replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    candidates = (Path("runs") / (stem if attempt == 0 else f"{stem}-{attempt}") for attempt in range(10_000))
    return next(path for path in candidates if not path.exists())


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """A `Box` or `Discrete` space as JSON can hold it."""
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    assert isinstance(space, gym.spaces.Box)  # others were refused when the agent was made
    # As text: JSON has no infinity, and not every reader of it keeps 64 bits.
    bounds = {name: [str(x) for x in getattr(space, name).ravel().tolist()] for name in ("low", "high")}
    return {"type": "Box", "shape": list(space.shape), "dtype": str(np.dtype(space.dtype)), **bounds}


def space_from_json(space: dict[str, Any]) -> gym.Space[Any]:
    """The space that `space_to_json` described."""
    if space["type"] == "Discrete":
        return gym.spaces.Discrete(space["n"], start=space["start"])
    dtype = np.dtype(space["dtype"])
    number = int if np.issubdtype(dtype, np.integer) else float
    low, high = (
        np.array([number(x) for x in space[name]], dtype=dtype).reshape(space["shape"]) for name in ("low", "high")
    )
    return gym.spaces.Box(low, high, dtype=dtype.type)


def _iteration_of(line: str) -> float:
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a crash
        return math.inf


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """The values with None for every number that is not finite, which JSON cannot hold."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"
