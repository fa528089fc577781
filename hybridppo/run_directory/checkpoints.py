"""Checkpoints: each is a folder with tensors (safetensors) and everything else (JSON), written whole or not at all.

    checkpoints/000000100352/tensors.safetensors
    checkpoints/000000100352/state.json

`state.json` has checksums of both, and the number by which the best checkpoint is chosen: the mean return of an
evaluation if there was one, else the score, which is the training's mean return. A checkpoint is written under another
name, flushed to the disk and then renamed, so that a crash leaves the earlier ones whole. Nothing is loaded by
unpickling.
"""

import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from hybridppo.errors import CheckpointError
from hybridppo.run_directory.files import (
    is_plain,
    making,
    other_format,
    read_file,
    replace_synced,
    sync_folder,
    write_synced,
)
from hybridppo.system.validation import part_of, whole

logger = logging.getLogger(__name__)

TENSORS, STATE = "tensors.safetensors", "state.json"
_FILE = re.compile(r"tensors\.safetensors|state\.json|\.state\.json\.[0-9]+\.tmp")
_NAME, _LEFTOVER = re.compile("[0-9]{12,}"), re.compile(r"\.[0-9]{12,}\.([0-9]+|removed)\.tmp")
"""The names of a checkpoint, and of one that is being written or deleted."""

FORMAT_VERSION = 7
"""The format version of `config.json` and of checkpoints."""

AGENT_FILE_VERSION = 1
"""The format version of an agent's file."""
MARK = "hybridppo"
"""The key of the description in an agent's file."""

Header = dict[str, Any]

MOST_NESTED = 100
"""Lists and objects in one another in a state: Python reads deeper nesting than it can write again."""
_NUMBER = "not finite"
"""The only key of a JSON object that stands for a number that JSON lacks: its value is "nan", "inf" or "-inf"."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: tensors by name, on the CPU, and JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    score: float | None = None
    """The training's mean return; None if there was none yet."""
    evaluation: float | None = None
    """The mean return of its evaluation, if there was one, which then replaces the score."""

    def part(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the state of a part: `agent`, `sampler`, `placement` or `runner`.

        The names of tensors begin with their part, except those of the agent.

        Raises:
            CheckpointError: if there is no such part.
        """
        if name not in self.state:
            raise CheckpointError(f"the checkpoint was altered: its state has no {name}")
        if name != "agent":
            return part_of(self.tensors, f"{name}."), self.state[name]
        own = {name: tensor for name, tensor in self.tensors.items() if name.partition(".")[0] not in self.state}
        return own, self.state["agent"]

    @property
    def env_steps(self) -> int:
        """The environment steps that were sampled before it.

        Raises:
            CheckpointError: if they are not there, or no whole number.
        """
        try:
            return whole(self.part("sampler")[1], "env_steps")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint was altered: its number of steps cannot be read: {error}") from error


def save(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any], *, score: float | None = None) -> None:
    """Write a checkpoint to `folder`, which must not exist. The folder always appears whole or not at all.

    Raises:
        CheckpointError: if the state has values that JSON cannot hold.
        OSError: if it cannot be written; then no file of it is left.
    """
    data = serialized(tensors)
    state = _as_json_has_it(state, "state")
    header: Header = {
        "format_version": FORMAT_VERSION,
        "tensors_sha256": hashlib.sha256(data).hexdigest(),
        "score": score,
        "evaluation": None,
        "state": state,
    }
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    _remove(temporary)
    try:
        temporary.mkdir(parents=True)
        write_synced(temporary / TENSORS, data)
        write_synced(temporary / STATE, _written(header))
        sync_folder(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    finally:
        _remove(temporary)


def serialized(tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these tensors, of any device, and this header."""
    # safetensors writes from the host, one tensor per memory block
    host = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(host, header)


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: if a file is missing, truncated or altered, or of another format.
    """
    header = _read_header(folder)
    path = folder / TENSORS
    data = read_whole(path, header["tensors_sha256"])
    try:
        tensors = safetensors.torch.load(data)
        return Checkpoint(tensors, header["state"], header["score"], header["evaluation"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} holds no tensors: {error}") from error


def read_whole(path: Path, sha256: str) -> bytes:
    """The contents of a file with this checksum.

    Raises:
        CheckpointError: if it is missing, truncated or altered.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CheckpointError(f"{path} is truncated or altered: its checksum is not the one written with it")
    return data


def judge(folder: Path, return_mean: float) -> None:
    """Write the mean return of an evaluation into the header of an existing checkpoint.

    Raises:
        CheckpointError: if the checkpoint is damaged.
        OSError: if it cannot be written; the checkpoint is unchanged.
    """
    _read_header(folder)
    path = folder / STATE
    header = {name: value for name, value in json.loads(read_file(path)).items() if name != "sha256"}
    header["evaluation"] = return_mean
    replace_synced(path, _written(header))


def _written(header: Header) -> bytes:
    """The header with its checksum, as JSON on one line: with indentation, a large state takes ten times as long."""
    return json.dumps({**header, "sha256": _checksum(header)}, allow_nan=False).encode()


def _read_header(folder: Path) -> Header:
    path = folder / STATE
    try:
        header = json.loads(read_file(path))
        found = header["format_version"]
        if type(found) is not int:
            raise ValueError("its format version is no number")
        if found != FORMAT_VERSION:
            raise CheckpointError(other_format(path, found, FORMAT_VERSION))
        expected = header.pop("sha256")
        if _checksum(header) != expected:
            raise ValueError("its checksum is not the one written with it")
        header = _as_it_was(header)
        if not isinstance(header["state"], dict):
            raise TypeError("its state is no object")
        for name in ("score", "evaluation"):
            if not (header[name] is None or math.isfinite(header[name])):
                raise ValueError(f"its {name} is no number")
        return {name: header[name] for name in ("tensors_sha256", "score", "evaluation", "state")}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{path} is truncated or altered: {what}") from error


def load_latest(
    folder: Path, require: Callable[[Checkpoint], object] = lambda checkpoint: None
) -> tuple[Path, Checkpoint]:
    """The newest whole checkpoint under `folder`, and its path. Damaged ones are skipped with a warning.

    Args:
        folder: the folder of the checkpoints.
        require: raises a `CheckpointError` if other files that the checkpoint needs are damaged.

    Raises:
        CheckpointError: if no checkpoint is whole.
    """
    return _first_whole(reversed(folders(folder)), folder, require)


def load_best(folder: Path) -> tuple[Path, Checkpoint]:
    """The best whole checkpoint under `folder`, or the newest if none was judged; else as `load_latest`.

    Evaluated checkpoints come first, by the evaluation's mean return; the others follow, by their score.

    Raises:
        CheckpointError: if none is whole.
    """
    return _first_whole(sorted(folders(folder), key=_rank, reverse=True), folder)


def _first_whole(
    candidates: Iterable[Path], folder: Path, require: Callable[[Checkpoint], object] = lambda checkpoint: None
) -> tuple[Path, Checkpoint]:
    problems: list[str] = []
    for candidate in candidates:
        try:
            checkpoint = load(candidate)
            require(checkpoint)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            logger.warning("%s; going on from the next best, %s", problem, candidate)
        return candidate, checkpoint
    raise CheckpointError("; ".join(problems) if problems else f"there is no checkpoint in {folder}")


_UNREADABLE = 3.0


def _rank(folder: Path) -> tuple[float, float, str]:
    """A key that sorts checkpoints from worst to best. An unreadable one is the best, so that a warning names it."""
    try:
        header = _read_header(folder)
    except CheckpointError:
        return _UNREADABLE, 0.0, folder.name
    if header["evaluation"] is not None:
        return 2, header["evaluation"], folder.name
    return (0, 0.0, folder.name) if header["score"] is None else (1, header["score"], folder.name)


def folders(folder: Path) -> list[Path]:
    """The checkpoints under `folder`, oldest first: folders with their names, and with a file of theirs or none."""
    found = sorted(path for path in folder.glob("[0-9]*") if _NAME.fullmatch(path.name) and path.is_dir())
    return [path for path in found if not (names := os.listdir(path)) or TENSORS in names or STATE in names]


def _is_whole_own(folder: Path) -> bool:
    """Whether a folder and all that is in it was written here: it is no link, and has no files of somebody else."""
    is_folder = folder.is_dir() and not folder.is_symlink()
    return is_folder and all(_FILE.fullmatch(path.name) and is_plain(path) for path in folder.iterdir())


def _remove(folder: Path) -> None:
    """Delete the folder of a checkpoint, unless it has files of somebody else."""
    if _is_whole_own(folder):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def iteration_of_newest(folder: Path) -> int:
    """The iteration of the newest checkpoint under `folder`; 0 if there is none, or it is damaged."""
    try:
        return whole(_read_header(folders(folder)[-1])["state"]["runner"], "iteration")
    except (IndexError, KeyError, TypeError, ValueError, CheckpointError):
        return 0


def set_aside(folder: Path, number: int) -> None:
    """Rename the checkpoints after `number`, which are damaged; delete what killed processes have left.

    Raises:
        OSError: if one cannot be renamed, or has files of somebody else.
    """
    for path in folders(folder):
        if int(path.name) > number:
            if not _is_whole_own(path):
                raise OSError(f"{path} is damaged, and is a link or has files of somebody else: move it away")
            path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns()}"))
    for path in folder.glob(".*"):
        if _LEFTOVER.fullmatch(path.name):
            _remove(path)


def remove_old(folder: Path, keep: int, also: int | None = None) -> None:
    """Delete all checkpoints but the newest `keep`, the best, the one with the number `also`, and annotated ones.

    The latter have files that were not written here.
    """
    found = folders(folder)
    if len(found) <= keep:
        return
    whole = [(rank, path) for path in found if (rank := _rank(path))[0] < _UNREADABLE]
    best = max(whole)[1] if whole else None
    for old in found[:-keep]:
        if old != best and int(old.name) != also and _is_whole_own(old):
            # Renamed in one step: a crash while it is deleted leaves no half of a checkpoint.
            _remove(old.rename(old.with_name(f".{old.name}.removed.tmp")))


def remove_numbered(folder: Path, needed: Collection[str], mark: str = MARK, suffix: str = "") -> None:
    """Delete files of tensors named by a number and a suffix, except the `needed` ones and any without the mark.

    Raises:
        OSError: if one cannot be deleted.
    """
    for path in folder.glob(f"[0-9]*{suffix}"):
        if path.name not in needed and _NAME.fullmatch(path.name.removesuffix(suffix)) and is_plain(path):
            try:
                with safetensors.safe_open(path, framework="pt") as file:
                    is_own = mark in (file.metadata() or {})
            except safetensors.SafetensorError:
                is_own = False
            if is_own:
                path.unlink()


def numbers_named(folder: Path) -> set[str]:
    """The numbers that the checkpoints under `folder` name, such as those of snapshots.

    Raises:
        OSError: if one cannot be read.
    """
    found = [re.findall(rb'"([0-9]{12,})"', read_file(each / STATE)) for each in folders(folder)]
    return {name.decode() for names in found for name in names}


def _checksum(header: Header) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _as_json_has_it(value: Any, name: str, depth: int = 0) -> Any:
    """The value, with an object in place of each number that is not finite.

    Raises:
        CheckpointError: for values that JSON refuses, keys that are no text, and deeper nesting than is read back.
    """
    if depth > MOST_NESTED:
        raise CheckpointError(f"{name} is nested in more than {MOST_NESTED} lists and objects: flatten it")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise CheckpointError(f"{name} has the key {key!r}: a checkpoint's keys must be text, as in JSON")
        return {key: _as_json_has_it(item, f"{name}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json_has_it(item, f"{name}[]", depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_NUMBER: str(float(value))}
    if not (value is None or isinstance(value, (bool, int, float, str))):
        raise CheckpointError(f"{name} is a {type(value).__name__}: a checkpoint's state must be such as JSON can hold")
    return value


def _as_it_was(value: Any, depth: int = -1) -> Any:
    """The inverse of `_as_json_has_it`, for a header, which has the state at depth 0."""
    if depth > MOST_NESTED:
        raise ValueError(f"it is nested in more than {MOST_NESTED} lists and objects")
    if isinstance(value, dict):
        if value.keys() == {_NUMBER}:
            return float(value[_NUMBER])
        return {key: _as_it_was(item, depth + 1) for key, item in value.items()}
    return [_as_it_was(item, depth + 1) for item in value] if isinstance(value, list) else value


def write_agent_file(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write a file, and replace an existing one.

    Raises:
        RunDirectoryError: if it cannot be written; an existing file stays.
    """
    header = {MARK: json.dumps({"format_version": AGENT_FILE_VERSION, **description}, allow_nan=False)}
    with making(path):
        replace_synced(path, serialized(tensors, header))


def read_agent_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description in a file.

    Raises:
        CheckpointError: if it is no such file, damaged, or of another format.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[MARK])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        version = header["format_version"]
    except OSError as error:
        raise CheckpointError(f"{path} is neither a run directory nor an agent's file: {error}") from error
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no file that agent.save has written, or is damaged: {error}") from error
    if version != AGENT_FILE_VERSION:
        raise CheckpointError(other_format(path, version, AGENT_FILE_VERSION))
    return tensors, header
