"""An agent in one file, and the parts of an agent's state."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hybridppo.errors import CheckpointError, shown_name
from hybridppo.networks.adam import FlatAdam
from hybridppo.networks.parameters import FlatParameters
from hybridppo.run_directory.checkpoints import write_agent_file
from hybridppo.spaces.serialization import space_to_json
from hybridppo.system.validation import require_path


def save_agent(agent: Any, path: str | Path) -> Path:
    """Write an agent's networks, spaces and configuration to a file for `hybridppo.load`.

    Raises:
        ConfigurationError: if it is no path.
        RunDirectoryError: if the disk refuses it.
    """
    path = require_path("path", path)
    tensors, state = agent.state()
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    description = {
        "agent": agent.name,
        "config": agent.config.to_json(),
        "observation_space": space_to_json(agent.observation_space),
        "action_space": space_to_json(agent.action_space),
        "own": {what: shown_name(part) for what, part in agent.own.items()},
        "state": state,
    }
    write_agent_file(path, kept, description)
    return path


def tensors_by_part(tensors: Mapping[str, Tensor], parts: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    """Tensors named `part.name` by their parts.

    Raises:
        CheckpointError: if there is a tensor of another part.
    """
    found: dict[str, dict[str, Tensor]] = {part: {} for part in parts}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part not in found:
            raise CheckpointError(f"it has a tensor {name!r}: the parts of an agent are {', '.join(found)}")
        found[part][rest] = tensor
    return found


def load_optimizer(optimizer: FlatAdam, parameters: FlatParameters, tensors: Mapping[str, Tensor]) -> None:
    """Restore an optimizer's state from dense tensors.

    Raises:
        RuntimeError: if a tensor has another shape.
    """
    for name, slot in optimizer.state[parameters.values].items():
        saved = parameters.spread(tensors[name])
        if saved.shape != slot.shape:  # which `copy_` might broadcast
            raise RuntimeError(f"optimizer.{name} is of shape {list(saved.shape)}, not {list(slot.shape)}")
        slot.copy_(saved)
