"""Files that are written whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hybridppo.errors import RunDirectoryError


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


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that killed processes have left in `folder`."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
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
    if path.exists():
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
