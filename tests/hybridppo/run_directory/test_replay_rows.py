"""Files of rows: only appended to. Torn, altered or missing rows are reported, and so is a full disk."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import on_a_full_disk
from torch import Tensor

from hybridppo import CheckpointError
from hybridppo.run_directory.replay_rows import ReplayRows, require_whole


def rows(start: int, end: int) -> dict[str, Tensor]:
    return {"numbers": torch.arange(start, end, dtype=torch.float32).reshape(-1, 1), "flags": torch.ones(end - start)}


def read(appended: ReplayRows) -> list[float]:
    found: list[float] = []
    for first, tensors in appended.read():
        assert first == (found[-1] + 1 if found else first)
        found += tensors["numbers"].flatten().tolist()
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def appended_of(folder: Path, *ends: int) -> ReplayRows:
    appended, start = ReplayRows(folder), 0
    for end in ends:
        appended.append(start, end, rows, 8)
        start = end
    return appended


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    appended = appended_of(tmp_path / "replay", 10, 11, 40)
    assert appended.end == 40
    assert read(appended) == [float(i) for i in range(40)]


def test_what_is_there_is_never_written_again(tmp_path: Path) -> None:
    appended = appended_of(tmp_path / "replay", 10)
    before = contents(tmp_path / "replay")
    appended.append(10, 20, rows, 8)
    after = contents(tmp_path / "replay")
    assert before.items() < after.items()


def test_large_appends_are_made_of_pieces(tmp_path: Path) -> None:
    appended = ReplayRows(tmp_path / "replay")
    appended.append(0, 7, rows, 2**25)  # two rows are a piece
    assert [piece["rows"] for piece in appended.pieces] == [2, 2, 2, 1]
    assert read(appended) == [float(i) for i in range(7)]


def test_old_files_go_once_nobody_needs_them(tmp_path: Path) -> None:
    appended = appended_of(tmp_path / "replay", *range(10, 61, 10))
    assert len(contents(tmp_path / "replay")) == 6
    appended.pieces = appended.needed_since(20)
    assert len(contents(tmp_path / "replay")) == 6  # until they are told to go
    appended.remove_others()
    assert sorted(contents(tmp_path / "replay")) == [f"{first:012d}.safetensors" for first in (20, 30, 40, 50)]
    assert read(appended) == [float(i) for i in range(20, 60)]
    assert appended.needed_since(29) == appended.pieces  # of the oldest piece, a row is needed still
    assert [first for first, _ in appended.read(27)] == list(range(20, 60, 10))


def test_later_files_are_cut_back_to_what_the_checkpoint_says(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    appended = appended_of(folder, 10, 20)
    before, pieces = contents(folder), list(appended.pieces)
    appended.append(20, 30, rows, 8)
    others = {"000000000040.safetensors": b"a network of somebody's", "mine.safetensors": b""}
    for name, data in others.items():
        (folder / name).write_bytes(data)
    again = ReplayRows(folder)
    again.cut_back(pieces)
    assert contents(folder) == before | others
    assert read(again) == [float(i) for i in range(20)]
    again.append(20, 25, rows, 8)
    assert read(again) == [float(i) for i in range(25)]


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "replay"
    appended = appended_of(folder, 10, 20)
    require_whole(folder, appended.pieces)
    path = next(folder.iterdir())
    data = path.read_bytes()
    if damage == "altered":
        path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    elif damage == "truncated":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
    message = "cannot be read" if damage == "missing" else "is truncated or altered: its checksum is not"
    for check in (lambda: require_whole(folder, appended.pieces), lambda: read(appended)):
        with pytest.raises(CheckpointError, match=message) as raised:
            check()
        assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    "piece", [None, {}, {"first": "../../etc/passwd", "rows": 1, "sha256": ""}, {"first": 0, "rows": -1}]
)
def test_what_is_no_piece_is_refused(tmp_path: Path, piece: Any) -> None:
    with pytest.raises(CheckpointError, match="is no list of pieces of rows"):
        ReplayRows(tmp_path).cut_back([piece])
    with pytest.raises(CheckpointError, match="no list of pieces"):
        require_whole(tmp_path, [piece])
    with pytest.raises(CheckpointError, match="no list of pieces"):
        require_whole(tmp_path, piece)


@pytest.mark.parametrize("how", ["write fails", "the disk fails"])
def test_a_full_disk_loses_nothing_that_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    folder = tmp_path / "replay"
    appended = appended_of(folder, 10)
    before, pieces = contents(folder), list(appended.pieces)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing, on_a_full_disk(20) if how == "write fails" else nullcontext():
        if how == "the disk fails":
            failing.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match=r"File too large|Input/output error"):
            appended.append(10, 20, rows, 8)
    assert contents(folder) == before
    assert appended.pieces == pieces
    appended.append(10, 30, rows, 8)  # once there is room again
    assert read(appended) == [float(i) for i in range(30)]
