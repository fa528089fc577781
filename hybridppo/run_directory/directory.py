"""A run directory: everything that one training run leaves on disk.

config.json      all settings, enough to resume
placements.json  what `auto` measured and chose
metrics.jsonl    a line per iteration
evaluations.jsonl  a line per evaluation during training
checkpoints/     the newest few and the best, see `hybridppo.run_directory.checkpoints`
latest           a text with the path of the newest one: a link that every system has
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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from hybridppo.errors import CheckpointError, ConfigurationError, RunDirectoryError, command, shown
from hybridppo.run_directory import checkpoints, files
from hybridppo.run_directory.checkpoints import FORMAT_VERSION, Checkpoint
from hybridppo.run_directory.files import HOLDER, LOCK, FolderLock, TakenError, append, as_json, truncate_after
from hybridppo.run_directory.replay_rows import require_whole
from hybridppo.system.messages import ThrottledWarning
from hybridppo.system.validation import require_path

logger = logging.getLogger(__name__)

WhichCheckpoint = Literal["latest", "best"]

CONFIG = "config.json"
LATEST = "latest"
METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"
"""The files of lines."""
PATH_OF_RUN = "a path, or None to write nothing"


class RunDirectory:
    """The files of one run; made by `create` or `open`."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = self.given = path
        """The path; in a training it is absolute, because an environment may change the working directory. `given` is
        the user's, for messages."""
        self.config = config
        self._outages: dict[str, ThrottledWarning] = {}
        self.awaited: int | None = None
        """The number of a checkpoint that is being evaluated, and is kept."""
        self._made: list[Path] | None = None
        """The folders that `create` has made, the deepest first; None for an existing run."""
        self._lock: FolderLock | None = None
        self._taken = ""
        """The error once another run has taken the folder; nothing is then written any more."""
        self._written: dict[str, dict[str, Any]] = {}
        """What `write` has written, by the file's name."""
        self._opened_at: Path | None = None
        """The folder of the checkpoint by which the run was opened; None if it was opened as a whole."""

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any]) -> "RunDirectory":
        """Make a run directory, locked until it is closed.

        Raises:
            TakenError: if the folder is not empty, or another process begins a run there; nothing is ever overwritten.
            RunDirectoryError: if it cannot be made.
        """
        given = require_path("run_dir", path, PATH_OF_RUN)
        directory = cls(given.absolute(), {"format_version": FORMAT_VERSION, **config})
        directory.given, path = given, directory.path
        try:
            made = [each for each in (path, *path.parents) if not each.exists()]
            if not path.is_file():
                path.mkdir(parents=True, exist_ok=True)
            _require_empty(path)
            directory._lock = FolderLock(path)
            _require_empty(path)  # another process may have begun and ended in between
            directory._made = made  # from here on, all files there are this process's
            files.remove_leftovers(path)
            directory._put(CONFIG, directory.config)
            (path / "checkpoints").mkdir()
        except OSError as error:
            directory.discard()
            raise RunDirectoryError(f"the run directory {directory.given} cannot be made: {error}") from error
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
        directory = cls.open(path)  # a folder that is no run directory gets no lock
        directory.given, directory.path = directory.path, directory.path.absolute()
        if directory._opened_at is not None:
            raise RunDirectoryError(
                f"{path} is a checkpoint, and a run continues from its newest one: name its run, {directory.given}; "
                "start_from=CHECKPOINT (--start-from) begins another run with the networks of a checkpoint"
            )
        _require_own_folders(directory.path)
        try:
            for name in (METRICS, EVALUATIONS):
                files.plain_file(directory.path / name)
            directory._lock = FolderLock(directory.path)
            directory.config = cls.open(path).config  # another process may have changed it before
        except OSError as error:
            raise RunDirectoryError(f"{directory.given} cannot be opened to train in it: {error}") from error
        except RunDirectoryError:
            directory.close()
            raise
        return directory

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Open an existing run directory.

        Args:
            path: of the folder, of the `config.json` in it, or of one of its checkpoints, which `load_checkpoint` then
                reads; `latest` in the folder is the path of the newest.

        Raises:
            RunDirectoryError: if it is no run directory, or of another format.
        """
        path = path_of(path)
        # os.path: below a folder that may not be entered, Path.is_file raises an error before Python 3.14.
        checkpoint = path if os.path.isfile(path / "state.json") else None
        if checkpoint is not None:
            path = path.absolute().parents[1]
        file = path if os.path.isfile(path) else path / CONFIG
        try:
            config = files.object_in(files.read_file(file), file)
        except OSError as error:
            missing = f"it has no {CONFIG}" if os.path.exists(path) else "it does not exist"
            why = missing if isinstance(error, FileNotFoundError) else error
            raise RunDirectoryError(f"{path} is no run directory: {why}") from error
        except RunDirectoryError as error:
            what = "is a file: pass a run's folder (load, evaluate, export and start_from take agents' files, too)"
            raise error if file.name == CONFIG else RunDirectoryError(f"{file} {what}") from error
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
        before, self.config = self.config, {"format_version": FORMAT_VERSION, **config}
        if json.loads(as_json(self.config)) == before:
            return
        try:
            self._put(CONFIG, self.config)
        except OSError as error:
            self.config = before
            raise RunDirectoryError(f"{self.path / CONFIG} cannot be written: {error}") from error

    def _put(self, name: str, value: dict[str, Any]) -> None:
        files.replace_synced(self.path / name, as_json(value).encode())

    def tolerating(self, work: str, consequence: str, *further: type[Exception]) -> AbstractContextManager[None]:
        """A context for some work, such as "writing FILE", in which disk errors and `further` ones are only logged."""
        outage = self._outages.setdefault(work, ThrottledWarning(work))
        return outage.tolerating((OSError, TakenError, *further), consequence)

    def hold(self) -> None:
        """Make the folder again if it was moved or deleted during the training, with its lock and its settings.

        Raises:
            TakenError: if another run has taken its place; from then on, always.
            OSError: if it cannot be made.
        """
        if self._taken:
            raise TakenError(self._taken)
        if self._lock is None or self._lock.is_held:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = self._lock.renewed()
            if (self.path / CONFIG).exists() and files.read_file(self.path / CONFIG) != as_json(self.config).encode():
                raise TakenError(f"{self.path} was moved or deleted, and another run is in its place")
        except TakenError as error:
            self._taken = str(error)
            raise
        logger.warning("%s was moved or deleted: it is made again, for what is saved from now on", self.path)
        self._put(CONFIG, self.config)
        for name, value in self._written.items():
            self._put(name, value)

    def log(self, line: dict[str, Any], name: str = METRICS) -> None:
        """Append a line to a file; numbers that are not finite become null. A disk error is only logged."""
        with self.tolerating(f"writing {self.path / name}", "training goes on; the lines meanwhile are lost"):
            self.hold()
            append(self.path / name, line)

    def log_again(self, iteration: int, metrics: dict[str, Any]) -> None:
        """Replace the line of the last iteration in `metrics.jsonl`. A disk error is only logged."""
        path = self.path / METRICS
        with self.tolerating(f"writing {path}", "training goes on; the line may be lost"):
            self.hold()
            truncate_after(path, iteration - 1)
            append(path, metrics)

    def judge(self, number: int, return_mean: float) -> None:
        """Write the mean return of an evaluation into a checkpoint, if it exists."""
        folder = self.checkpoint(number)
        if folder.exists() and not folder.is_symlink() and math.isfinite(return_mean):
            consequence = "training goes on; the best checkpoint is chosen without it"
            with self.tolerating(f"writing an evaluation into {folder}", consequence, CheckpointError):
                self.hold()
                checkpoints.judge(folder, return_mean)

    def checkpoint(self, number: int) -> Path:
        """The folder of a checkpoint, which need not exist."""
        return self.path / "checkpoints" / f"{number:012d}"

    def save_checkpoint(
        self, number: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int, *, score: float | None = None
    ) -> bool:
        """Write a checkpoint; delete all but the newest `keep`, the best, and the `awaited`.

        Returns:
            Whether it is new; False if it was there already, as when a run is interrupted just after it.

        Raises:
            OSError: if it cannot be written.
        """
        folder = self.checkpoint(number)
        if folder.exists():
            return False
        for name in (METRICS, EVALUATIONS):
            files.sync_file(self.path / name)  # the lines that the checkpoint counts
        checkpoints.save(folder, tensors, state, score=score)
        with self.tolerating(f"writing {self.path / LATEST}", "it names an older checkpoint"):
            files.replace_synced(self.path / LATEST, f"checkpoints/{folder.name}\n".encode())
        with self.tolerating(f"removing old checkpoints of {self.path}", "they stay for now"):
            checkpoints.remove_old(folder.parent, keep, self.awaited)
        return True

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
    def has_saved_nothing(self) -> bool:
        """Whether the run was stopped, or its disk was full, before it had a checkpoint, whole or damaged."""
        folder = self.path / "checkpoints"
        has_checkpoints = folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir())
        return not has_checkpoints and not (self.path / "result.json").exists()

    def rewind(self, iteration: int, env_steps: int, evaluated: int = 0) -> None:
        """Remove what was written after the checkpoint of `iteration`, at `env_steps`; a resumed run writes it again.

        Evaluations up to iteration `evaluated` stay. Newer checkpoints, which are damaged, are renamed, and temporary
        files of a killed process are deleted.

        Raises:
            RunDirectoryError: if the disk refuses.
        """
        try:
            kept = truncate_after(self.path / METRICS, iteration)
            truncate_after(self.path / EVALUATIONS, evaluated)
            checkpoints.set_aside(self.path / "checkpoints", env_steps)
            files.remove_leftovers(self.path)
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be made ready to go on: {error}") from error
        if kept < iteration:
            logger.warning("%s", missing_lines(self.path, iteration, kept))

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write `placements.json` or `result.json`. A disk error is only logged."""
        with self.tolerating(f"writing {self.path / name}", "it is not kept"):
            self.hold()
            self._put(name, value)
            self._written[name] = value

    def remove_result(self) -> None:
        """Remove the `result.json` of a run that trains on. A disk error is only logged."""
        path = self.path / "result.json"
        with self.tolerating(f"removing {path}", "the run seems finished until it has gone on"):
            self.hold()
            path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Close, and remove the files that `create` made, if the run has written no others."""
        files_of_run = self.path.glob(METRICS), self.path.glob("checkpoints/*")
        if self._made is not None and self._lock is not None and self._lock.is_held and not any(map(any, files_of_run)):
            for folder in ("checkpoints", "snapshots"):  # the latter is self-play's
                shutil.rmtree(self.path / folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                for name in ("config.json", "placements.json"):
                    (self.path / name).unlink(missing_ok=True)
            self._lock.remove()
            with contextlib.suppress(OSError):
                for made in self._made:
                    made.rmdir()
        self.close()

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def missing_lines(path: Path, iterations: int, found: int) -> str:
    """The warning about a run whose metrics lack iterations."""
    return f"{path / METRICS} has lines of {found:,} of the first {iterations:,} iterations: the others are lost"


def _require_own_folders(path: Path) -> None:
    """Refuse a run whose folders are links to those of another, in which files would then be deleted."""
    for name in ("checkpoints", "replay", "snapshots"):
        there = (path / name).resolve().parent
        if there != path.resolve() and (there / CONFIG).exists():
            raise RunDirectoryError(f"{path / name} is a link into another run, {there}: put a copy in its place")


def _require_empty(path: Path) -> None:
    """Refuse a folder that has files, except those of a process that was killed at its start."""
    found = [path] if path.is_file() else path.iterdir()
    if any(each.name not in (LOCK, HOLDER) and not files.is_leftover(each) for each in found):
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
    path = require_path("run_dir", path, PATH_OF_RUN)
    with contextlib.suppress(OSError):  # there is no folder yet; `create` says what else is wrong
        _require_empty(path)


def path_of(given: Any) -> Path:
    """The path of a run directory or of an agent's file.

    Raises:
        RunDirectoryError: if it is no path.
    """
    try:
        path = require_path("a run directory, or an agent's file,", given)
        if path.name == LATEST and os.path.isfile(path) and path.stat().st_size < 100:  # an agent's file is larger
            name = files.read_file(path).decode(errors="replace").strip().rpartition("/")[2]
            return path.parent / "checkpoints" / name
        return path
    except ConfigurationError as error:
        raise RunDirectoryError(
            f"{error}: let train have a run_dir, or save an agent with agent.save(FILE), and pass FILE; evaluate_agent "
            "takes the agent itself"
        ) from None


def fresh_path(env_id: str, seed: int) -> Path:
    """A path under `runs/` that does not exist yet, named after the environment, the time and the seed."""
    stem = f"{env_id.replace('/', '-').replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    candidates = (Path("runs") / (stem if attempt == 0 else f"{stem}-{attempt}") for attempt in range(10_000))
    return next(path for path in candidates if not path.exists())
