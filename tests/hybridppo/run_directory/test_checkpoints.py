"""Checkpoints: complete or absent, checked when read, and free of code."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridppo.errors import CheckpointError
from hybridppo.run_directory import checkpoints

TENSORS = {"actor.weight": torch.arange(6.0).view(2, 3), "optimizer.step": torch.tensor(3.0)}
STATE = {"iteration": 7, "order": {"state": 2**100}, "mean": 0.1}


def save(folder: Path, step: int = 1) -> Path:
    path = folder / f"{step:012d}"
    checkpoints.save(path, TENSORS, STATE)
    return path


def test_what_is_saved_comes_back_to_the_bit(tmp_path: Path) -> None:
    loaded = checkpoints.load(save(tmp_path))
    assert loaded.state == STATE
    assert loaded.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_a_part_that_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="its state has no runner"):
        checkpoints.load(save(tmp_path)).part("runner")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_every_type_of_number_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "scalar": torch.tensor(1).to(dtype),
        "some": torch.arange(3).to(dtype),
        "none": torch.zeros(0, 4).to(dtype),
    }
    checkpoints.save(tmp_path / "1", tensors, {})
    loaded = checkpoints.load(tmp_path / "1").tensors
    assert all(torch.equal(loaded[name], tensor) and loaded[name].dtype == dtype for name, tensor in tensors.items())


def test_what_is_not_a_number_is_kept(tmp_path: Path) -> None:
    state = {"best": -math.inf, "all": [{"means": (math.inf, 1.5)}]}
    checkpoints.save(tmp_path / "1", {"a": torch.tensor([math.nan, -math.inf, -0.0])}, state)
    json.loads((tmp_path / "1" / "state.json").read_bytes(), parse_constant=pytest.fail)  # JSON by the standard
    loaded = checkpoints.load(tmp_path / "1")
    assert [str(x) for x in loaded.tensors["a"].tolist()] == ["nan", "-inf", "-0.0"]
    assert loaded.state == {"best": -math.inf, "all": [{"means": [math.inf, 1.5]}]}


def test_views_of_one_buffer_can_be_saved(tmp_path: Path) -> None:
    buffer = torch.arange(10.0)
    checkpoints.save(tmp_path / "1", {"a": buffer[:4], "b": buffer[4:].view(2, 3).T}, {})
    loaded = checkpoints.load(tmp_path / "1").tensors
    assert torch.equal(loaded["a"], buffer[:4])
    assert torch.equal(loaded["b"], buffer[4:].view(2, 3).T)


def test_a_changed_state_is_found_though_it_is_valid_json(tmp_path: Path) -> None:
    path = save(tmp_path) / "state.json"
    header = json.loads(path.read_text())
    header["state"]["iteration"] = 8
    path.write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match=r"state\.json is truncated or altered"):
        checkpoints.load(path.parent)


def test_the_newest_is_taken(tmp_path: Path) -> None:
    for step in (5, 1000, 20):
        save(tmp_path, step)
    assert checkpoints.load_latest(tmp_path)[0].name == "000000001000"


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_write_cut_short_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    save(tmp_path, 1)
    write = checkpoints.write_synced

    def cut_short(path: Path, data: bytes) -> None:
        if path.name == file:
            path.write_bytes(data[: len(data) // 2])
            raise OSError("No space left on device")
        write(path, data)

    monkeypatch.setattr(checkpoints, "write_synced", cut_short)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001"]
    assert checkpoints.load_latest(tmp_path)[1].state == STATE


def test_rubbish_of_a_killed_writer_is_never_taken(tmp_path: Path) -> None:
    save(tmp_path, 2).rename(tmp_path / ".000000000002.4711.tmp")  # killed before it could rename
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoints.load_latest(tmp_path)
    whole = save(tmp_path, 1)
    assert checkpoints.folders(tmp_path) == [whole]
    assert checkpoints.load_latest(tmp_path)[0] == whole


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in range(5):
        save(tmp_path, step)
    checkpoints.remove_old(tmp_path, keep=2)
    assert [path.name for path in checkpoints.folders(tmp_path)] == ["000000000003", "000000000004"]
    checkpoints.remove_old(tmp_path, keep=5)
    assert len(checkpoints.folders(tmp_path)) == 2


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_state_that_is_nested_too_deeply_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = checkpoints.MOST_NESTED
    checkpoints.save(tmp_path / "1", {}, {"a": nested(most - 1)})
    assert checkpoints.load(tmp_path / "1").state == {"a": nested(most - 1)}
    with pytest.raises(CheckpointError, match=rf"state\.a\[\].* is nested in more than {most} lists and objects"):
        checkpoints.save(tmp_path / "2", {}, {"a": nested(most)})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "MOST_NESTED", 10 * most)
        checkpoints.save(tmp_path / "3", {}, {"a": nested(most)})
    with pytest.raises(CheckpointError, match=rf"altered: it is nested in more than {most} lists and objects"):
        checkpoints.load(tmp_path / "3")


@pytest.mark.parametrize("state", [{}, {"sampler": []}, {"sampler": {}}, {"sampler": {"env_steps": -1}}])
def test_a_number_of_steps_that_cannot_be_read_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint was altered"):
        _ = checkpoints.Checkpoint({}, state).env_steps
