"""Checkpoints: a folder each, of tensors (safetensors) and everything else (JSON), written whole or not at all.

    checkpoints/000000100352/tensors.safetensors
    checkpoints/000000100352/state.json

`state.json` holds checksums of both. A checkpoint is written under another name, flushed to the disk and then
renamed, so that a crash in between leaves the one before. Nothing is loaded by unpickling.
"""

import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from hybridppo.errors import CheckpointError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, on the CPU, and what JSON can hold."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint to `folder`, which must not exist; whatever happens, it appears whole or not at all."""
    # safetensors writes from the host, one tensor per memory block
    host = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    data = safetensors.torch.save(host)
    header = {
        "format_version": FORMAT_VERSION,
        "tensors_sha256": hashlib.sha256(data).hexdigest(),
        "state": state,
    }
    header["sha256"] = _checksum(header)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write_synced(temporary / "tensors.safetensors", data)
        write_synced(temporary / "state.json", json.dumps(header, indent=1).encode())
        temporary.rename(folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: where a file is missing, truncated or altered, or of a newer format.
    """
    header = _read_header(folder)
    path = folder / "tensors.safetensors"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != header["tensors_sha256"]:
        raise CheckpointError(f"{path} is truncated or altered: its checksum is not the one written with it")
    try:
        return Checkpoint(safetensors.torch.load(data), header["state"])
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} holds no tensors: {error}") from error


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / "state.json"
    try:
        header = json.loads(path.read_bytes())
        found = header["format_version"]
        if type(found) is not int or found < 1:
            raise ValueError(f"its format version is {found!r}")
        if found > FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format version {found}, but this version of hybridppo reads up to {FORMAT_VERSION}: "
                "update hybridppo"
            )
        expected = header.pop("sha256")
        if _checksum(header) != expected:
            raise ValueError("its checksum is not the one written with it")
        return {"tensors_sha256": header["tensors_sha256"], "state": header["state"]}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is truncated or altered: {error}") from error


def load_latest(folder: Path) -> tuple[Path, Checkpoint]:
    """The newest whole checkpoint under `folder`, and where it lies. Damaged ones are passed over, aloud.

    Raises:
        CheckpointError: where none is whole.
    """
    found = folders(folder)
    problems: list[str] = []
    for candidate in reversed(found):
        try:
            checkpoint = load(candidate)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            logger.warning("%s; going on from the checkpoint before, %s", problem, candidate)
        return candidate, checkpoint
    raise CheckpointError("; ".join(problems) if problems else f"there is no checkpoint in {folder}")


def folders(folder: Path) -> list[Path]:
    """The checkpoints under `folder`, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


def remove_old(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for old in folders(folder)[:-keep]:
        shutil.rmtree(old)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, data: bytes) -> None:
    """Write a file in place of another, which stays until the new one is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_synced(temporary, data)
    temporary.replace(path)


def _checksum(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # Windows has no handle on a folder to flush
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
