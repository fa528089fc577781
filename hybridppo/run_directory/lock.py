"""A lock for a folder that one process at a time writes to.

The operating system has the lock, which ends with its process in any case. A file beside it names the process, for the
error that another process gets.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from hybridppo.errors import RunDirectoryError
from hybridppo.run_directory.files import making

LOCK, HOLDER = "lock", "lock.json"
"""The names of both files."""


class FolderLock:
    """A lock that is held until it is released, or this process ends.

    Args:
        folder: the folder to lock; it must exist.

    Raises:
        RunDirectoryError: if another process holds the lock; the message names that process.
        OSError: if the files cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._holder = folder / LOCK, folder / HOLDER
        self._lock = filelock.FileLock(self._path, timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise RunDirectoryError(
                f"{folder} is in use by {self._described()}: wait until it has ended, or stop it, or name another "
                "folder"
            ) from None
        try:
            holder = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            self._holder.write_text(json.dumps(holder, allow_nan=False) + "\n", encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise

    def _described(self) -> str:
        try:
            holder = json.loads(self._holder.read_text(encoding="utf-8"))
            return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, KeyError, TypeError):  # it has only just begun
            return "another process"

    def release(self) -> None:
        """Release the folder; a second call does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._holder.unlink()
            self._lock.release()

    def remove(self) -> None:
        """Release the folder, and delete the files of the lock."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:  # Windows deletes no file that is open
            self.release()
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        self.release()


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
