"""A run directory: everything that one training run leaves on disk.

config.json      all settings, enough to resume
placements.json  what `auto` measured and chose
metrics.jsonl    a line per iteration
evaluations.jsonl  a line per evaluation during training
checkpoints/     the newest few and the best, see `hybridppo.run_directory.checkpoints`
trace.json       a profile of a few iterations, if asked for
result.json      at the end
lock             locked by the process that trains here, which lock.json names

If the disk fails during training, a warning names what was not written, and the training goes on.
"""

import contextlib
import json
import logging
import math
import os
import shutil
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from hybridppo.errors import CheckpointError, ConfigurationError, RunDirectoryError, command, shown
from hybridppo.run_directory import checkpoints, files
from hybridppo.run_directory.checkpoints import FORMAT_VERSION, Checkpoint
from hybridppo.run_directory.files import HOLDER, LOCK, FolderLock, append, as_json, truncate_after
from hybridppo.run_directory.replay_rows import ReplayRows, require_whole
from hybridppo.system.messages import ThrottledWarning
from hybridppo.system.validation import require_path

logger = logging.getLogger(__name__)

WhichCheckpoint = Literal["latest", "best"]

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"
"""The files of lines."""
CHECKPOINT_LOST = "training goes on, and the checkpoints before it are kept"
"""The consequence, for the warning if a checkpoint cannot be written."""


class TakenError(RunDirectoryError):
    """Another run has this folder."""


class RunDirectory:
    """The files of one run; made by `create` or `open`."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = self.given = path
        """The path; in a training it is absolute, because an environment may change the working directory. `given` is
        the user's, for messages."""
        self.config = config
        self._outages = {name: ThrottledWarning(f"writing {path / name}") for name in (METRICS, EVALUATIONS)}
        self._checkpoint_outage = ThrottledWarning(f"writing a checkpoint to {path / 'checkpoints'}")
        self.awaited: int | None = None
        """The number of a checkpoint that is being evaluated, and is kept."""
        self._made: list[Path] = []
        self._lock: FolderLock | None = None
        self._opened_at: Path | None = None
        """The folder of the checkpoint by which the run was opened; None if it was opened as a whole."""

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "RunDirectory":
        """Make a run directory, locked until it is closed.

        Raises:
            TakenError: if the folder is not empty, or another process begins a run there; nothing is ever overwritten.
            RunDirectoryError: if it cannot be made.
        """
        given = Path(path)
        path = given.absolute()
        config = {"format_version": FORMAT_VERSION, **config}
        directory = cls(path, config)
        directory.given = given
        try:
            folder = path / "checkpoints"
            parents = [each for each in folder.parents if not each.exists()]
            if not path.is_file():
                path.mkdir(parents=True, exist_ok=True)
            _require_empty(path)
            try:
                directory._lock = FolderLock(path)
            except RunDirectoryError as error:
                raise TakenError(str(error)) from None
            _require_empty(path)  # another process may have begun and ended in between
            directory._made = [folder, *parents]  # from here on, all files there are this process's
            files.remove_leftovers(path)
            files.replace_synced(path / "config.json", as_json(config).encode())
            folder.mkdir()
        except OSError as error:
            directory.discard()
            raise RunDirectoryError(f"the run directory {given} cannot be made: {error}") from error
        except RunDirectoryError:
            directory.close()
            raise
        return directory

    @classmethod
    def open_to_train(cls, path: str | Path) -> "RunDirectory":
        """Open an existing run directory, locked until it is closed.

        Raises:
            RunDirectoryError: as `open`; if `path` is a checkpoint; and if another process trains in it.
        """
        opened = cls.open(path)  # a folder that is no run directory gets no lock
        given = opened.path
        if opened._opened_at is not None:
            raise RunDirectoryError(
                f"{path} is a checkpoint, and a run continues from its newest one: name its run, {given}; "
                "start_from=CHECKPOINT (--start-from) begins another run with the networks of a checkpoint"
            )
        path = given.absolute()
        try:
            lock = FolderLock(path)
        except OSError as error:
            raise RunDirectoryError(f"{given} cannot be locked: {error}") from error
        try:
            directory = cls.open(path)  # another process may have changed it before
        except BaseException:
            lock.release()
            raise
        directory._lock, directory.given = lock, given
        return directory

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Open an existing run directory.

        Args:
            path: of the folder, of the `config.json` in it, or of one of its checkpoints, which `load_checkpoint` then
                reads.

        Raises:
            RunDirectoryError: if it is no run directory, or of another format.
        """
        path = path_of(path)
        # os.path: below a folder that may not be entered, Path.is_file raises an error before Python 3.14.
        checkpoint = path if os.path.isfile(path / "state.json") else None
        if checkpoint is not None:
            path = path.absolute().parents[1]
        file = path if os.path.isfile(path) else path / "config.json"
        try:
            config = json.loads(file.read_bytes())
        except OSError as error:
            raise RunDirectoryError(f"{path} is no run directory: {error}") from error
        except (ValueError, RecursionError) as error:
            what = f"is damaged: {error}"
            if file.name != "config.json":
                what = "is a file: pass a run's folder (load, evaluate, export and start_from take agents' files, too)"
            raise RunDirectoryError(f"{file} {what}") from error
        if not isinstance(config, dict):
            raise RunDirectoryError(f"{file} is damaged: it holds no object")
        version = config.get("format_version")
        if type(version) is not int:
            raise RunDirectoryError(f"{file} is damaged: format_version must be a whole number, got {shown(version)}")
        if version != FORMAT_VERSION:
            raise RunDirectoryError(files.other_format(file, version, FORMAT_VERSION))
        directory = cls(file.parent, config)
        directory._opened_at = checkpoint
        return directory

    def update_config(self, config: dict[str, Any]) -> None:
        """Replace `config.json`.

        Raises:
            RunDirectoryError: if it cannot be written; the old one stays.
        """
        config = {"format_version": FORMAT_VERSION, **config}
        text = as_json(config)
        if json.loads(text) == self.config:
            return
        try:
            files.replace_synced(self.path / "config.json", text.encode())
        except OSError as error:
            raise RunDirectoryError(f"{self.path / 'config.json'} cannot be written: {error}") from error
        self.config = config

    def log(self, line: dict[str, Any], name: str = METRICS) -> None:
        """Append a line to a file; numbers that are not finite become null. A disk error is only logged."""
        with self._outages[name].tolerating(OSError, "training goes on; the lines meanwhile are lost"):
            append(self.path / name, line)

    def log_again(self, iteration: int, metrics: dict[str, Any]) -> None:
        """Replace the line of the last iteration in `metrics.jsonl`. A disk error is only logged."""
        path = self.path / METRICS
        with self._outages[METRICS].tolerating(OSError, "training goes on; the line may be lost"):
            truncate_after(path, iteration - 1)
            append(path, metrics)

    def judge(self, number: int, statistics: dict[str, Any]) -> None:
        """Write an evaluation's statistics, `return_mean` among them, into a checkpoint, if it exists."""
        folder = self.checkpoint(number)
        if not (folder.exists() and math.isfinite(statistics["return_mean"])):
            return
        try:
            checkpoints.judge(folder, statistics)
        except (OSError, CheckpointError) as error:
            self._checkpoint_outage.failed(error, "training goes on; the best checkpoint is chosen without it")

    def checkpoint(self, number: int) -> Path:
        """The folder of a checkpoint, which need not exist."""
        return self.path / "checkpoints" / f"{number:012d}"

    def save_checkpoint(
        self,
        env_steps: int,
        tensors: dict[str, Tensor],
        state: dict[str, Any],
        keep: int,
        *,
        score: float | None = None,
    ) -> bool:
        """Write a checkpoint named after `env_steps`; delete all but the newest `keep`, the best, and the `awaited`.

        Returns:
            Whether it is on the disk. If it cannot be written, that is logged, and the old ones stay.
        """
        folder = self.checkpoint(env_steps)
        if folder.exists():  # as when a run is interrupted just after its last checkpoint
            return True
        with self._checkpoint_outage.tolerating(OSError, CHECKPOINT_LOST):
            self._make_again()
            for name in (METRICS, EVALUATIONS):
                files.sync_file(self.path / name)  # the lines that the checkpoint counts
            checkpoints.save(folder, tensors, state, score=score)
            checkpoints.remove_old(folder.parent, keep, self.awaited)
        return folder.exists()

    def _make_again(self) -> None:
        """Make the folder again if it was moved or deleted: without its settings, nothing in it could be loaded."""
        if not (self.path / "config.json").exists():
            logger.warning("%s was moved or deleted: it is made again, for what is saved from now on", self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            files.replace_synced(self.path / "config.json", as_json(self.config).encode())

    def replay_rows(self) -> ReplayRows:
        """The files of a replay buffer."""
        return ReplayRows(self.path / "replay")

    def save_failed(self, error: OSError) -> None:
        """Log that a checkpoint could not be written."""
        self._checkpoint_outage.failed(error, CHECKPOINT_LOST)

    def load_checkpoint(self, which: WhichCheckpoint = "latest", *, to_go_on: bool = False) -> Checkpoint:
        """The newest whole checkpoint, or the best; or the one by which the run was opened.

        Args:
            which: `latest` or `best`.
            to_go_on: whether its replay buffer must be whole as well, which only a training needs.

        Raises:
            CheckpointError: if no checkpoint is whole.
            ConfigurationError: if `which` has another value, or is `best` and the run was opened by a checkpoint.
        """
        if which not in ("latest", "best"):
            raise ConfigurationError(
                f"checkpoint must be latest or best, got {which!r}: for another, pass its folder, which is in "
                f"{self.path / 'checkpoints'}, in place of the run's"
            )
        if self._opened_at is not None:
            if which == "best":
                raise ConfigurationError(f"{self._opened_at} is one checkpoint: name its run for the best, {self.path}")
            return checkpoints.load(self._opened_at)
        if which == "best":
            return checkpoints.load_best(self.path / "checkpoints")[1]
        require = self._require_rows if to_go_on else lambda checkpoint: None
        return checkpoints.load_latest(self.path / "checkpoints", require)[1]

    def _require_rows(self, checkpoint: Checkpoint) -> None:
        loop = checkpoint.state.get("runner")
        replay = loop.get("replay") if isinstance(loop, dict) else None
        if isinstance(replay, dict):
            oldest = replay.get("oldest")
            require_whole(self.path / "replay", replay.get("pieces"), oldest if type(oldest) is int else 0)

    @property
    def is_untouched(self) -> bool:
        """Whether the run ended without a checkpoint, whole or damaged, and without a line of metrics."""
        folder, metrics = self.path / "checkpoints", self.path / METRICS
        has_checkpoints = folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir())
        return not has_checkpoints and not (metrics.exists() and metrics.stat().st_size)

    def rewind(self, iteration: int, env_steps: int, evaluated: int = 0) -> None:
        """Remove what was written after the checkpoint of `iteration`, at `env_steps`; a resumed run writes it again.

        Evaluations up to iteration `evaluated` stay. Newer checkpoints, which are damaged, are renamed, and temporary
        files of a killed process are deleted.

        Raises:
            RunDirectoryError: if the disk refuses.
        """
        try:
            truncate_after(self.path / METRICS, iteration)
            truncate_after(self.path / EVALUATIONS, evaluated)
            for folder in checkpoints.folders(self.path / "checkpoints"):
                if int(folder.name) > env_steps:
                    folder.rename(folder.with_name(f"damaged-{folder.name}-{time.time_ns()}"))
            files.remove_leftovers(self.path)
            files.remove_leftovers(self.path / "checkpoints")
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be made ready to go on: {error}") from error

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write `placements.json` or `result.json`. A disk error is only logged."""
        with ThrottledWarning(f"writing {self.path / name}").tolerating(OSError, "it is not kept"):
            files.replace_synced(self.path / name, as_json(value).encode())

    def remove_result(self) -> None:
        """Remove the `result.json` of a run that trains on. A disk error is only logged."""
        path = self.path / "result.json"
        with ThrottledWarning(f"removing {path}").tolerating(OSError, "the run seems finished until it has gone on"):
            path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Close, and remove the files that `create` made, if the run has written no others."""
        files_of_run = self.path.glob("metrics.jsonl"), self.path.glob("checkpoints/*")
        if self._made and self._lock is not None and not any(map(any, files_of_run)):
            with contextlib.suppress(OSError):
                for name in ("config.json", "placements.json"):
                    (self.path / name).unlink(missing_ok=True)
                self._made[0].rmdir()
            shutil.rmtree(self.path / "snapshots", ignore_errors=True)  # of self-play
            self._lock.remove()
            with contextlib.suppress(OSError):
                for folder in self._made[1:]:  # the deepest first
                    folder.rmdir()
        self.close()

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        if self._lock is not None:
            self._lock.release()


def _require_empty(path: Path) -> None:
    """Refuse a folder that has files, except those of a process that was killed at its start."""
    names = [path.name] if path.is_file() else [each.name for each in path.iterdir()]
    if any(name not in (LOCK, HOLDER) and not fnmatch(name, ".config.json.*.tmp") for name in names):
        raise TakenError(
            f"{path} exists already and is not empty: name another folder, or go on with "
            f"`{command('hybridppo', 'resume', path)}`"
        )


def require_free(path: str | Path) -> None:
    """Refuse a folder that `RunDirectory.create` would refuse because it is not empty.

    Raises:
        ConfigurationError: if it is no path.
        RunDirectoryError: if it is not empty.
    """
    path = require_path("run_dir", path, "a path, or None to write nothing")
    with contextlib.suppress(OSError):  # there is no folder yet; `create` says what else is wrong
        _require_empty(path)


def path_of(given: Any) -> Path:
    """The path of a run directory or of an agent's file.

    Raises:
        RunDirectoryError: if it is no path.
    """
    try:
        return Path(given)
    except TypeError:
        raise RunDirectoryError(
            f"a run directory, or an agent's file, must be a path, got {shown(given)}: let train have a run_dir, or "
            "save an agent with agent.save(FILE), and pass FILE; evaluate_agent takes the agent itself"
        ) from None


def fresh_path(env_id: str, seed: int) -> Path:
    """A path under `runs/` that does not exist yet, named after the environment, the time and the seed."""
    stem = f"{env_id.replace('/', '-').replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    candidates = (Path("runs") / (stem if attempt == 0 else f"{stem}-{attempt}") for attempt in range(10_000))
    return next(path for path in candidates if not path.exists())
