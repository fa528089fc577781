"""Files that are written whole or not at all; JSON, files of JSON lines such as `metrics.jsonl`, and locks.

A run's folder may come from a stranger. What is written, cut or deleted in it is a plain file, and never one behind a
link; what is read is a plain file, too, since a pipe or a device would block or have no end.
"""

import contextlib
import errno
import io
import json
import math
import os
import platform
import re
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from hybridppo.errors import RunDirectoryError
from hybridppo.system.validation import is_number

LOCK, HOLDER = "lock", "lock.json"
"""The names of the files of a lock."""
_LEFTOVER = re.compile(r"\.(config|placements|result)\.json\.[0-9]+\.tmp")


@contextlib.contextmanager
def making(path: Path) -> Iterator[None]:
    """A context in which a file that the user named is written. Its folder is made before.

    Raises:
        RunDirectoryError: naming the file, if the folder or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be written: {error}") from error


def other_format(path: Path, version: object, own: int) -> str:
    """The message of the error about a file that another version of hybridppo has written."""
    return (
        f"{path} has format version {version}, but this version of hybridppo reads version {own}: use the version of "
        "hybridppo that has written it"
    )


def plain_file(path: Path, *, follow: bool = False) -> os.stat_result | None:
    """The state of the plain file at a path; None if there is nothing.

    Args:
        path: the path.
        follow: whether the path may be a link to a plain file, which is then only to be read.

    Raises:
        OSError: if there is something else: a link, a folder, a pipe or a device.
    """
    try:
        found = path.stat() if follow else path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "a folder, a pipe or a device"
        raise OSError(errno.EINVAL, f"it is {what}, and must be a plain file: put one in its place", str(path))
    return found


def is_plain(path: Path) -> bool:
    """Whether there is a plain file at a path, which is no link."""
    return stat.S_ISREG(path.lstat().st_mode) if os.path.lexists(path) else False


def read_file(path: Path, *, follow: bool = True) -> bytes:
    """The contents of a plain file; arguments are as for `plain_file`.

    Raises:
        OSError: if it does not exist, is something else, or cannot be read.
    """
    plain_file(path, follow=follow)
    return path.read_bytes()


def is_leftover(path: Path) -> bool:
    """Whether a path in a run directory is a temporary file of a process that was killed."""
    return _LEFTOVER.fullmatch(path.name) is not None and is_plain(path)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed processes have left in a run directory."""
    for path in folder.iterdir():
        if is_leftover(path):
            path.unlink()


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file in place of any other or a link, and wait until the disk has it."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, data: bytes) -> None:
    """Replace a file; the old one stays until the new one is whole."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"  # `with_name` refuses a folder such as "."
    try:
        write_synced(temporary, data)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until the disk has a file that others have written; nothing if there is none."""
    if plain_file(path):
        with path.open("ab") as file:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's list of files."""
    if os.name == "posix":  # Windows has no handle on a folder to flush
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Tail:
    """Reads a file of lines that grows, and that `resume` may cut.

    Args:
        path: the path of the file, which need not exist yet.
        most: the number of newest lines to keep; None for all.
        numbers: fields of every line that are finite numbers.
        optional: fields that are finite numbers, unless they are missing or null.
    """

    def __init__(
        self, path: Path, most: int | None = None, *, numbers: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> None:
        self.lines: deque[dict[str, Any]] = deque(maxlen=most)
        """The lines read so far, oldest first."""
        self._path, self._end, self._last = path, 0, b""
        self._numbers, self._optional = numbers, optional

    def read(self) -> bool:
        """Read the new complete lines; return whether there are any.

        Raises:
            RunDirectoryError: if the file cannot be read, or a line is no JSON object, or has another field.
        """
        try:
            if not plain_file(self._path, follow=True):
                return False
            with self._path.open("rb") as file:
                file.seek(self._end - len(self._last))
                if file.read(len(self._last)) != self._last:  # cut by `resume`, and perhaps longer again already
                    self.lines.clear()
                    self._end, self._last = 0, b""
                    file.seek(0)
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError as error:
            raise _unreadable(self._path, error) from error
        lines = complete.splitlines()
        self.lines.extend([object_in(line, self._path, self._numbers, self._optional) for line in lines])
        if newline:
            self._end += len(complete) + len(newline)
            self._last = complete.rpartition(b"\n")[2] + newline
        return bool(newline)


def read_lines(path: Path, *, numbers: Sequence[str] = (), optional: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All complete lines of a file; none if it does not exist. Arguments are as for `Tail`.

    Raises:
        RunDirectoryError: as `Tail.read`.
    """
    tail = Tail(path, numbers=numbers, optional=optional)
    tail.read()
    return list(tail.lines)


def read_object(path: Path, *, optional: Sequence[str] = ()) -> dict[str, Any] | None:
    """The JSON object in a file, which is no link; None if it does not exist. `optional` is as for `Tail`.

    Raises:
        RunDirectoryError: if the file cannot be read, or is damaged.
    """
    try:
        return object_in(read_file(path, follow=False), path, (), optional)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"{path} cannot be read: {error}")


def object_in(text: bytes, path: Path, numbers: Sequence[str] = (), optional: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object in the text of a file; other arguments are as for `Tail`.

    Raises:
        RunDirectoryError: if there is no object, or it has another field.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RunDirectoryError(f"{path} is damaged: no JSON object: {text[:80]!r}")
    for name in (*numbers, *optional):
        value = found.get(name)
        if not is_number(value) and (value is not None or name in numbers):
            rule = "must be a finite number" if name in found else "is missing"
            raise RunDirectoryError(f"{path} is damaged: {name} {rule}: {text[:80]!r}")
    return found


def append(path: Path, value: dict[str, Any]) -> None:
    """Append a line to a file, whole or not at all; numbers that are not finite become null.

    Raises:
        OSError: if the disk does not take it.
    """
    line = as_json(value, indent=None).encode()
    plain_file(path)
    with io.FileIO(path, "a") as file:  # unbuffered: the line is in the file at once
        end = file.seek(0, os.SEEK_END)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(end)  # no half of a line
            raise


def truncate_after(path: Path, iteration: int) -> int:
    """Truncate a file of lines after the last line of `iteration` or before; this works on a full disk.

    Lines are read from the end: the first ones of a long run would take seconds.

    Returns:
        How many lines are left.
    """
    found = plain_file(path)
    if found is None:
        return 0
    data = path.read_bytes()
    if found.st_nlink > 1:  # a hard link, as a backup may be, whose other names keep all lines
        replace_synced(path, data)
    end = data.rfind(b"\n") + 1  # the rest was cut short by a crash
    while end > 0:
        start = data.rfind(b"\n", 0, end - 1) + 1
        if _iteration_of(data[start:end]) <= iteration:
            break
        end = start
    if end < len(data):
        os.truncate(path, end)
    return data.count(b"\n", 0, end)


def _iteration_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["iteration"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # cut short by a crash, or altered
        return math.inf


def finite(value: Any) -> Any:
    """The value with None for numbers that are not finite, and Python's numbers for NumPy's."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return finite(value.tolist())
    return value


def with_nan(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics that `finite` has made, with NaN for None."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def as_json(value: Any, indent: int | None = 1) -> str:
    """JSON for files and other programs; numbers that are not finite become null.

    Args:
        value: a value that JSON can hold.
        indent: spaces of indentation; None for one line.
    """
    return json.dumps(finite(value), indent=indent, allow_nan=False) + "\n"


class TakenError(RunDirectoryError):
    """Another run has this folder."""


class FolderLock:
    """A lock for a folder that one process at a time writes to; held until it is released, or this process ends.

    The operating system has the lock, which ends with its process in any case. A file beside it names the process, for
    the error that another process gets.

    Args:
        folder: the folder to lock; it must exist.

    Raises:
        TakenError: if another process holds the lock; the message names that process.
        OSError: if the files cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._holder = folder / LOCK, folder / HOLDER
        found = plain_file(self._path)
        if found and found.st_nlink > 1 and found.st_size:  # older versions of filelock empty it
            raise OSError(errno.EINVAL, "it is another file's name, and no lock: delete it", str(self._path))
        self._lock = filelock.FileLock(self._path, timeout=0, thread_local=False)
        self._mine = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            self._lock.acquire()
        except filelock.Timeout:
            named, holder = self._named(), "another process"  # which has only just begun, if it is not named
            if named.keys() == self._mine.keys():
                holder = f"process {named['pid']} on {named['host']}, since {named['since']}"
            raise TakenError(
                f"{folder} is in use by {holder}: wait until it has ended, or stop it, or name another folder"
            ) from None
        try:
            self._locked = self._path.stat()
            self._holder.unlink(missing_ok=True)
            with self._holder.open("x", encoding="utf-8") as file:
                file.write(as_json(self._mine, indent=None))
        except BaseException:
            self._lock.release()
            raise

    def _named(self) -> dict[str, Any]:
        """The process that the file beside the lock names; empty if it names none."""
        try:
            return object_in(read_file(self._holder), self._holder)
        except (OSError, RunDirectoryError):
            return {}

    @property
    def is_held(self) -> bool:
        """Whether this lock is still that of the folder, which may have been deleted or moved."""
        try:
            return self._lock.is_locked and os.path.samestat(self._path.stat(), self._locked)
        except OSError:
            return False

    def renewed(self) -> "FolderLock":
        """A lock of the folder that is there now in place of the one that was deleted or moved.

        Raises:
            TakenError: if another process has it, or has had it.
            OSError: as when it is made.
        """
        if self._path.exists() and self._named() != self._mine:  # a copy of the folder names this process
            raise TakenError(f"{self._path.parent} was moved or deleted, and another run has taken its place")
        lock = FolderLock(self._path.parent)
        self.release()
        return lock

    def release(self) -> None:
        """Release the folder; a second call does nothing."""
        self._forget_holder()
        self._lock.release()

    def _forget_holder(self) -> None:
        if self.is_held:  # else the file names another process
            with contextlib.suppress(OSError):
                self._holder.unlink()

    def remove(self) -> None:
        """Release the folder, and delete the files of the lock."""
        self._forget_holder()
        if self.is_held:
            try:
                self._path.unlink()
            except OSError:  # Windows deletes no file that is open
                self._lock.release()
                with contextlib.suppress(OSError):
                    self._path.unlink()
        self._lock.release()


def wait_until_free(folder: Path, seconds: float) -> None:
    """Wait until a folder is free, for at most so many seconds."""
    with contextlib.suppress(filelock.Timeout), filelock.FileLock(folder / LOCK, timeout=seconds):
        pass


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, and make it if it does not exist.

    Raises:
        RunDirectoryError: if another process holds it, or it cannot be written to.
    """
    with making(folder / LOCK):
        lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()
