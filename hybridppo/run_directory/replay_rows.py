"""The rows of a replay buffer, in files beside the checkpoints: a saved row is never written again.

    replay/000000000000.safetensors
    replay/000000250000.safetensors

Each file is a piece: some rows, one after the other, named after the first. The list `pieces` says which rows each
piece has, and its checksum. It is saved in the checkpoint. Files that it does not name belong to later checkpoints.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from hybridppo.errors import CheckpointError
from hybridppo.run_directory.checkpoints import read_whole, remove_numbered, serialized
from hybridppo.run_directory.files import replace_synced
from hybridppo.system.validation import whole

Piece = dict[str, Any]
"""`first`, the number of its first row, the number of its `rows`, and `sha256`."""

KEYS = ("first", "rows", "sha256")
MARK = "hybridppo rows"
"""A key that the header of each file has, so that no other file is deleted."""
BYTES_PER_PIECE = 2**26
"""The approximate size of a piece, which is in memory while it is written."""


class ReplayRows:
    """The files in one folder, made when the first row is appended.

    Args:
        folder: a folder for these files only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pieces: list[Piece] = []
        """All saved pieces, oldest first."""

    @property
    def end(self) -> int:
        """The row after the last saved one."""
        return int(self.pieces[-1]["first"] + self.pieces[-1]["rows"]) if self.pieces else 0

    def append(self, first: int, end: int, rows: Callable[[int, int], dict[str, Tensor]], bytes_per_row: int) -> None:
        """Append those of the rows `first` to `end` that are not saved, as `rows` gives them; wait for the disk.

        If a file is gone, as when the run's folder was deleted, all rows are written again.

        Raises:
            OSError: if they cannot be written; earlier rows stay saved, and some of the new ones may be.
        """
        if not all(_path(self._folder, piece).exists() for piece in self.pieces):
            self.pieces = []
        step = max(1, BYTES_PER_PIECE // max(1, bytes_per_row))
        self._folder.mkdir(exist_ok=True)
        for start in range(max(first, self.end), end, step):
            stop = min(end, start + step)
            data = serialized(rows(start, stop), {MARK: ""})
            piece = {"first": start, "rows": stop - start, "sha256": hashlib.sha256(data).hexdigest()}
            replace_synced(_path(self._folder, piece), data)
            self.pieces.append(piece)

    def needed_since(self, row: int) -> list[Piece]:
        """The pieces that have this row or later ones."""
        return _since(self.pieces, row)

    def remove_others(self) -> None:
        """Delete the files that have none of the `pieces`.

        Raises:
            OSError: if a file cannot be deleted.
        """
        needed = {_path(self._folder, piece).name for piece in self.pieces}
        remove_numbered(self._folder, needed, MARK, ".safetensors")

    def read(self, row: int = 0) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The pieces that have this row or later ones, each with the number of its first row.

        Raises:
            CheckpointError: if one is missing, truncated or altered.
        """
        for piece in _since(self.pieces, row):
            yield int(piece["first"]), safetensors.torch.load(read_whole(_path(self._folder, piece), piece["sha256"]))

    def cut_back(self, pieces: Any) -> None:
        """Keep only these pieces, and delete everything that was written after them.

        Raises:
            CheckpointError: if they are not valid pieces.
            OSError: if the files cannot be changed.
        """
        self.pieces = _checked(pieces)
        self.remove_others()


def require_whole(folder: Path, pieces: Any, row: int = 0) -> None:
    """Raise a `CheckpointError` that names the file if a piece is missing, truncated or altered.

    Args:
        folder: the folder of the files.
        pieces: the pieces in a checkpoint.
        row: the first row that is needed.
    """
    for piece in _since(_checked(pieces), row):
        read_whole(_path(folder, piece), piece["sha256"])


def _since(pieces: Sequence[Piece], row: int) -> list[Piece]:
    return [piece for piece in pieces if piece["first"] + piece["rows"] > row]


def _checked(pieces: Any) -> list[Piece]:
    try:
        if not isinstance(pieces, list):
            raise TypeError("it is of another type")
        return [{key: piece["sha256"] if key == "sha256" else whole(piece, key) for key in KEYS} for piece in pieces]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{pieces!r} is no list of pieces of rows: {error}") from error


def _path(folder: Path, piece: Piece) -> Path:
    return folder / f"{piece['first']:012d}.safetensors"
