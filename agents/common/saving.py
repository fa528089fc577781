"""An agent out of a training, into one file."""

from pathlib import Path
from typing import Any

from hybridppo.run_directory.agent_file import write_agent_file
from hybridppo.spaces.serialization import space_to_json


def save_agent(agent: Any, path: str | Path) -> Path:
    """Write an agent's networks, spaces and configuration to a file, which `hybridppo.load` takes.

    Raises:
        RunDirectoryError: where the disk will not take it.
    """
    tensors, state = agent.state()
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    description = {
        "agent": agent.name,
        "config": agent.config.to_json(),
        "observation_space": space_to_json(agent.observation_space),
        "action_space": space_to_json(agent.action_space),
        "own": {what: getattr(part, "__qualname__", type(part).__qualname__) for what, part in agent.own.items()},
        "state": state,
    }
    path = Path(path)
    write_agent_file(path, kept, description)
    return path
