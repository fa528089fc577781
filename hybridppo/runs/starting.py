"""The networks of another training to start from: the policy alone, and the values that belong to it."""

from pathlib import Path
from typing import Any

from torch import Tensor

from hybridppo.agents.registry import AnyAgent
from hybridppo.environments.checks import require_spaces_of
from hybridppo.errors import CheckpointError
from hybridppo.run_directory.agent_file import read_agent_file
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runs.loading import fitting, spaces_in, tensors_of_agent
from hybridppo.runs.settings import Settings

PARTS = ("actor", "critic")
"""What is taken; the optimizer, generators and counters are the new run's."""


def start_from(agent: AnyAgent, path: str | Path) -> None:
    """Give an agent that has yet to begin the networks of another.

    Args:
        agent: fresh, on the CPU.
        path: a run directory, of which the newest checkpoint is taken, or a file written by `agent.save`.

    Raises:
        CheckpointError: where the spaces or the networks are others, or there are none.
    """
    path = Path(path)
    if path.is_dir():
        directory = RunDirectory.open(path)
        before: Any = Settings.read(directory)
        found = tensors_of_agent(directory.load_checkpoint())
    else:
        found, description = read_agent_file(path)
        with fitting(f"what {path} says of it"):
            before = spaces_in(description)
    try:
        require_spaces_of(before, agent, error=CheckpointError)
    except CheckpointError as error:
        raise CheckpointError(f"a training cannot start from {path}: {error}") from None
    mine, state = agent.state()
    theirs = {name: tensor for name, tensor in found.items() if _is_of_network(name)}
    ours = {name: tensor for name, tensor in mine.items() if _is_of_network(name)}
    differences = [
        f"{name} is {_shape(theirs, name)} there and {_shape(ours, name)} here"
        for name in sorted(theirs.keys() | ours.keys())
        if _shape(theirs, name) != _shape(ours, name)
    ]
    if differences:
        raise CheckpointError(
            f"a training cannot start from {path}, whose networks are others: {'; '.join(differences[:4])}: train with "
            "the same environment, hidden_sizes and networks"
        )
    agent.load_state(theirs, state)


def _is_of_network(name: str) -> bool:
    """Whether a tensor of an agent is of its networks. Of several policies, names begin with `policies.NAME.`."""
    parts = name.split(".")
    return parts[2 if parts[0] == "policies" else 0] in PARTS


def _shape(tensors: dict[str, Tensor], name: str) -> str:
    return str(list(tensors[name].shape)) if name in tensors else "nothing"
