"""An agent in one file: its tensors as safetensors, and its settings as JSON in their header.

Nothing is loaded by unpickling.
"""

import json
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from hybridppo.errors import CheckpointError
from hybridppo.run_directory.checkpoints import serialized
from hybridppo.run_directory.files import making, other_format, replace_synced

FORMAT_VERSION = 1
_KEY = "hybridppo"


def write_agent_file(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write a file, and replace an existing one.

    Raises:
        RunDirectoryError: if it cannot be written; an existing file stays.
    """
    header = {_KEY: json.dumps({"format_version": FORMAT_VERSION, **description}, allow_nan=False)}
    with making(path):
        replace_synced(path, serialized(tensors, header))


def read_agent_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description in a file.

    Raises:
        CheckpointError: if it is no such file, damaged, or of another format.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        version = header["format_version"]
    except OSError as error:
        raise CheckpointError(f"{path} is neither a run directory nor an agent's file: {error}") from error
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no file that agent.save has written, or is damaged: {error}") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(other_format(path, version, FORMAT_VERSION))
    return tensors, header
