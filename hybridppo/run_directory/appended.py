"""Rows in files that are only appended to: a saved row is never written again.

    replay/000000000000.rows        # pieces of rows, one after the other
    replay/000000250000.rows

A piece is a safetensors file within a file. The list `pieces` says where each piece begins and ends, and its checksum.
It is saved in the checkpoint, which is written whole or not at all. Bytes after the last piece of a file belong to a
write that was broken off, or to a later checkpoint.
"""

import contextlib
import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from hybridppo.errors import CheckpointError
from hybridppo.run_directory.checkpoints import serialized
from hybridppo.run_directory.files import sync_folder
from hybridppo.system.validation import whole

Piece = dict[str, Any]
"""`file`, its `start` and `end` there in bytes, `sha256`, and its `first` row and the number of its `rows`."""

BYTES_PER_PIECE = 2**26
"""The approximate size of a piece, which is in memory while it is written."""


class AppendedRows:
    """The files in one folder, made when the first row is appended.

    Args:
        folder: a folder for these files only.
        capacity: the most rows that are needed; each file has a quarter of them.
    """

    def __init__(self, folder: Path, capacity: int) -> None:
        self._folder = folder
        self._rows_per_file = max(1, capacity // 4)
        self.pieces: list[Piece] = []
        """All saved pieces, oldest first."""

    @property
    def end(self) -> int:
        """The row after the last saved one."""
        return int(self.pieces[-1]["first"] + self.pieces[-1]["rows"]) if self.pieces else 0

    def append(self, first: int, end: int, rows: Callable[[int, int], dict[str, Tensor]], bytes_per_row: int) -> None:
        """Append rows `first` to `end`, as `rows` gives them, and wait until the disk has them.

        Raises:
            OSError: if they cannot be written; earlier rows stay saved, and some of the new ones may be.
        """
        step = max(1, BYTES_PER_PIECE // max(1, bytes_per_row))
        for start in range(first, end, step):
            stop = min(end, start + step)
            self._append(start, stop - start, serialized(rows(start, stop)))

    def _append(self, first: int, num_rows: int, data: bytes) -> None:
        name, start = self._file_for(first)
        path = self._folder / name
        self._folder.mkdir(exist_ok=True)
        is_new = not path.exists()
        with io.FileIO(path, "w" if is_new else "r+") as file:  # unbuffered: `close` does not repeat a failed write
            try:
                file.truncate(start)  # remove the rest of a failed write
                file.seek(start)
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(start)
                raise
        if is_new:
            sync_folder(self._folder)
        digest = hashlib.sha256(data).hexdigest()
        self.pieces.append(
            {"file": name, "start": start, "end": start + len(data), "sha256": digest, "first": first, "rows": num_rows}
        )

    def _file_for(self, first: int) -> tuple[str, int]:
        """The file of the next piece, and where it starts there."""
        if self.pieces:
            last = self.pieces[-1]
            rows = sum(piece["rows"] for piece in self.pieces if piece["file"] == last["file"])
            if rows < self._rows_per_file:
                return last["file"], last["end"]
        return f"{first:012d}.rows", 0

    def needed_since(self, row: int) -> list[Piece]:
        """The pieces of all files that have this row or later ones."""
        names = {piece["file"] for piece in since(self.pieces, row)}
        return [piece for piece in self.pieces if piece["file"] in names]

    def remove_others(self) -> None:
        """Delete the files that have none of the `pieces`.

        Raises:
            OSError: if a file cannot be deleted.
        """
        needed = {piece["file"] for piece in self.pieces}
        for path in self._folder.glob("*.rows"):
            if path.name not in needed:
                path.unlink()

    def read(self, row: int = 0) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The pieces that have this row or later ones, each with the number of its first row.

        Raises:
            CheckpointError: if one is missing, truncated or altered.
        """
        for piece in since(self.pieces, row):
            yield int(piece["first"]), load(self._folder, piece)

    def cut_back(self, pieces: Sequence[Piece]) -> None:
        """Keep only these pieces, and delete everything that was written after them.

        Raises:
            CheckpointError: if they are not valid pieces.
            OSError: if the files cannot be changed.
        """
        self.pieces = [checked(piece) for piece in pieces]
        ends = {piece["file"]: piece["end"] for piece in self.pieces}  # of a file's pieces, the last one's
        self.remove_others()
        for path in self._folder.glob("*.rows"):
            truncate(path, ends[path.name])


def since(pieces: Sequence[Piece], row: int) -> list[Piece]:
    """The pieces that have this row or later ones."""
    return [piece for piece in pieces if piece["first"] + piece["rows"] > row]


def checked(piece: Any) -> Piece:
    """A piece from a checkpoint, checked.

    Raises:
        CheckpointError: if it is invalid.
    """
    try:
        name, digest = piece["file"], piece["sha256"]
        if not (isinstance(name, str) and name.endswith(".rows") and name[:-5].isdigit() and isinstance(digest, str)):
            raise ValueError("it names no file of rows")
        numbers = {key: whole(piece, key) for key in ("start", "end", "first", "rows")}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{piece!r} describes no piece of rows: {error}") from error
    return {"file": name, "sha256": digest, **numbers}


def load(folder: Path, piece: Piece) -> dict[str, Tensor]:
    """The tensors of a piece.

    Raises:
        CheckpointError: if it is missing, truncated or altered.
    """
    try:
        return safetensors.torch.load(_read(folder, piece))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / piece['file']} holds no tensors: {error}") from error


def require_whole(folder: Path, pieces: Any, row: int = 0) -> None:
    """Raise a `CheckpointError` that names the file if a piece is missing, truncated or altered.

    Args:
        folder: the folder of the files.
        pieces: the pieces in a checkpoint.
        row: the first row that is needed.
    """
    if not isinstance(pieces, list):
        raise CheckpointError(f"{pieces!r} is no list of pieces of rows")
    for piece in since([checked(piece) for piece in pieces], row):
        _read(folder, piece)


def _read(folder: Path, piece: Piece) -> bytes:
    path = folder / piece["file"]
    try:
        with path.open("rb") as file:
            file.seek(piece["start"])
            data: bytes = file.read(max(0, piece["end"] - piece["start"]))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != piece["sha256"]:
        raise CheckpointError(
            f"{path} is truncated or altered: the checksum of its rows from {piece['first']} on is not the one written "
            "with them"
        )
    return data


def truncate(path: Path, end: int) -> None:
    """Truncate a file to at most `end` bytes."""
    if path.stat().st_size > end:
        os.truncate(path, end)
