"""A run directory: everything that one training run leaves on disk.

config.json      what was asked for, enough to resume
placements.json  what `auto` measured and chose, where it did
metrics.jsonl    a line per iteration
checkpoints/     the newest few and the best, see `hybridppo.checkpoints`
trace.json       of a few iterations, where the run was profiled
result.json      at the end

A disk that fails while training goes on costs what could not be written, and is told of; it never ends the training.
"""

import contextlib
import errno
import io
import json
import math
import os
import time
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hybridppo import checkpoints
from hybridppo.checkpoints import FORMAT_VERSION, Checkpoint
from hybridppo.errors import ConfigurationError, RunDirectoryError
from hybridppo.images import ImageLayout
from hybridppo.observations import MaskedObservation
from hybridppo.outage import Outage

WhichCheckpoint = Literal["latest", "best"]

MOST_NUMBERS = 2**26
"""In an observation or action whose space is read from a file: more is damage, and would only fill the memory."""


class RunDirectory:
    """The files of one run; made by `create` or `open`."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self._metrics: io.FileIO | None = None
        self._metrics_outage = Outage(f"writing {path / 'metrics.jsonl'}")
        self._checkpoint_outage = Outage(f"writing a checkpoint to {path / 'checkpoints'}")
        self._made: list[Path] = []

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "RunDirectory":
        """A new run directory.

        Raises:
            RunDirectoryError: where there is one already, or a file; nothing is ever overwritten.
        """
        path = Path(path)
        directory = cls(path, config)
        try:
            if path.exists() and not _is_as_good_as_empty(path):
                raise RunDirectoryError(
                    f"{path} exists already and is not empty: name another folder, or go on with "
                    f"`hybridppo resume {path}`"
                )
            folder = path / "checkpoints"
            directory._made = [each for each in (folder, *folder.parents) if not each.exists()]
            path.mkdir(parents=True, exist_ok=True)
            checkpoints.remove_leftovers(path)
            checkpoints.replace_synced(path / "config.json", _dump(config).encode())
            folder.mkdir()
        except OSError as error:
            directory.discard()
            raise RunDirectoryError(f"the run directory {path} cannot be made: {error}") from error
        return directory

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """A run directory that exists.

        Raises:
            RunDirectoryError: where it is none, or one of a newer format.
        """
        path = Path(path)
        file = path / "config.json"
        try:
            config = json.loads(file.read_bytes())
        except OSError as error:
            raise RunDirectoryError(f"{path} is no run directory: {error}") from error
        except (ValueError, RecursionError) as error:
            raise RunDirectoryError(f"{file} is damaged: {error}") from error
        if not isinstance(config, dict):
            raise RunDirectoryError(f"{file} is damaged: it holds no object")
        version = config.get("format_version", FORMAT_VERSION)
        if isinstance(version, (int, float)) and version > FORMAT_VERSION:
            raise RunDirectoryError(
                f"{file} has format version {version}, but this version of hybridppo reads up to {FORMAT_VERSION}: "
                "update hybridppo"
            )
        return cls(path, config)

    def update_config(self, config: dict[str, Any]) -> None:
        """Write another `config.json` in place of the one there is.

        Raises:
            RunDirectoryError: where the disk will not take it; the old one stays.
        """
        if config == self.config:
            return
        try:
            checkpoints.replace_synced(self.path / "config.json", _dump(config).encode())
        except OSError as error:
            raise RunDirectoryError(f"{self.path / 'config.json'} cannot be written: {error}") from error
        self.config = config

    def log(self, metrics: dict[str, Any]) -> None:
        """Append a line to `metrics.jsonl`; what is not a finite number becomes null."""
        line = (json.dumps(finite(metrics)) + "\n").encode()
        try:
            self._append(line)
        except OSError as error:
            self._metrics_outage.failed(error, "training goes on; the lines meanwhile are lost")
        else:
            self._metrics_outage.works()

    def _append(self, line: bytes) -> None:
        if self._metrics is None:
            self._metrics = io.FileIO(self.path / "metrics.jsonl", "a")  # unbuffered: a line is on disk at once
        end = self._metrics.seek(0, os.SEEK_END)
        try:
            if self._metrics.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                self._metrics.truncate(end)  # no half of a line
            raise

    def save_checkpoint(
        self,
        env_steps: int,
        tensors: dict[str, Tensor],
        state: dict[str, Any],
        keep: int,
        *,
        score: float | None = None,
    ) -> bool:
        """Write a checkpoint named after `env_steps`, then delete all but the newest `keep` and the best.

        Returns:
            Whether it is on the disk. Where the disk will not take it, that is told, and the old ones stay.
        """
        folder = self.path / "checkpoints" / f"{env_steps:012d}"
        if folder.exists():  # as when a run is interrupted just after its last checkpoint
            return True
        try:
            if self._metrics is not None:
                os.fsync(self._metrics.fileno())  # the lines of the iterations that the checkpoint counts
            checkpoints.save(folder, tensors, state, score=score)
            checkpoints.remove_old(folder.parent, keep)
        except OSError as error:
            self._checkpoint_outage.failed(error, "training goes on, and the checkpoints before it are kept")
            return folder.exists()
        self._checkpoint_outage.works()
        return True

    def load_checkpoint(self, which: WhichCheckpoint = "latest") -> Checkpoint:
        """The newest checkpoint that is whole, or the best.

        Raises:
            CheckpointError: where none is.
            ConfigurationError: where `which` is neither.
        """
        if which not in ("latest", "best"):
            raise ConfigurationError(f"checkpoint must be latest or best, got {which!r}")
        load = checkpoints.load_best if which == "best" else checkpoints.load_latest
        return load(self.path / "checkpoints")[1]

    @property
    def is_untouched(self) -> bool:
        """Whether the run ended before anything came of it: no checkpoint, whole or damaged, and no line of metrics."""
        folder, metrics = self.path / "checkpoints", self.path / "metrics.jsonl"
        has_checkpoints = folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir())
        return not has_checkpoints and not (metrics.exists() and metrics.stat().st_size)

    def rewind(self, iteration: int, env_steps: int) -> None:
        """Drop what was written after the checkpoint of `iteration`, at `env_steps`; a resumed run does it anew.

        Lines of metrics go, what a killed process has left behind goes, and checkpoints that are newer and so were
        found damaged are set aside by name.

        Raises:
            RunDirectoryError: where the disk will not have it.
        """
        try:
            _cut(self.path / "metrics.jsonl", iteration)
            for folder in checkpoints.folders(self.path / "checkpoints"):
                if int(folder.name) > env_steps:
                    folder.rename(folder.with_name(f"damaged-{folder.name}-{time.time_ns()}"))
            checkpoints.remove_leftovers(self.path)
            checkpoints.remove_leftovers(self.path / "checkpoints")
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be made ready to go on: {error}") from error

    def write_placements(self, table: dict[str, Any]) -> bool:
        """Write `placements.json`; whether the disk took it."""
        return self._write("placements.json", table, "the table is not kept")

    def write_result(self, result: dict[str, Any]) -> bool:
        """Write `result.json`; whether the disk took it."""
        return self._write("result.json", finite(result), "the result is not kept")

    def _write(self, name: str, value: dict[str, Any], consequence: str) -> bool:
        outage = Outage(f"writing {self.path / name}")
        try:
            checkpoints.replace_synced(self.path / name, _dump(value).encode())
        except OSError as error:
            outage.failed(error, consequence)
            return False
        return True

    def discard(self) -> None:
        """Remove what `create` made, as long as nothing has come of the run; else do nothing."""
        self.close()
        if not self._made or (self.path / "metrics.jsonl").exists() or any((self.path / "checkpoints").glob("*")):
            return
        with contextlib.suppress(OSError):
            for name in ("config.json", "placements.json"):
                (self.path / name).unlink(missing_ok=True)
            for folder in self._made:  # the deepest first
                folder.rmdir()

    def close(self) -> None:
        """Close the metrics; a second call does nothing."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def _is_as_good_as_empty(path: Path) -> bool:
    """Whether nothing lies there but what a process killed at its start may have left."""
    return path.is_dir() and all(each.match(".config.json.*.tmp") for each in path.iterdir())


def fresh_path(env_id: str, seed: int) -> Path:
    """A folder under `runs/` that does not exist yet, named after the environment, the time and the seed."""
    stem = f"{env_id.replace('/', '-').replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    candidates = (Path("runs") / (stem if attempt == 0 else f"{stem}-{attempt}") for attempt in range(10_000))
    return next(path for path in candidates if not path.exists())


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """A `Box`, `Discrete` or `MaskedObservation` space as JSON can hold it."""
    if isinstance(space, MaskedObservation):
        observation = space_to_json(space.observation)
        return {"type": "MaskedObservation", "observation": observation, "num_actions": space.num_actions}
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    assert isinstance(space, gym.spaces.Box)  # others were refused when the agent was made
    # As text: JSON has no infinity, and not every reader of it keeps 64 bits.
    bounds = {name: [str(x) for x in _bound(space, name)] for name in ("low", "high")}
    return {"type": "Box", "shape": list(space.shape), "dtype": str(np.dtype(space.dtype)), **bounds}


def _bound(space: gym.spaces.Box, name: str) -> list[Any]:
    """A bound of every number; of an image, whose are the same, one."""
    bound: NDArray[Any] = getattr(space, name).ravel()
    is_same = ImageLayout.of(space) is not None and bool((bound == bound[0]).all())
    return list(bound[:1].tolist() if is_same else bound.tolist())


def space_from_json(space: dict[str, Any]) -> gym.Space[Any]:
    """The space that `space_to_json` described."""
    if space["type"] == "MaskedObservation":
        return MaskedObservation(space_from_json(space["observation"]), space["num_actions"])
    if space["type"] == "Discrete":
        return gym.spaces.Discrete(space["n"], start=space["start"])
    dtype = np.dtype(space["dtype"])
    number = int if np.issubdtype(dtype, np.integer) else float
    shape = tuple(space["shape"])
    if math.prod(shape) > MOST_NUMBERS:
        raise ConfigurationError(f"a space may have {MOST_NUMBERS} numbers, and one of shape {shape} has more")

    def bound(values: list[str]) -> NDArray[Any]:
        array = np.array([number(x) for x in values], dtype=dtype)
        return np.full(shape, array[0]) if len(array) == 1 else array.reshape(shape)

    return gym.spaces.Box(bound(space["low"]), bound(space["high"]), dtype=dtype.type)


def _cut(path: Path, iteration: int) -> None:
    """Cut the lines of metrics off that follow the last of `iteration` or before. In place: a full disk allows it."""
    if not path.exists():
        return
    end = position = 0
    with path.open("r+b") as file:
        for line in file:
            position += len(line)
            if line.endswith(b"\n") and _iteration_of(line) <= iteration:
                end = position
        if end < position:
            file.truncate(end)


def _iteration_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # cut short by a crash, or altered
        return math.inf


def finite(value: Any) -> Any:
    """The value as JSON can hold it: None for every number within that is not finite, NumPy's numbers as Python's."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return finite(value.tolist())
    return value


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"
