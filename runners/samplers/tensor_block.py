"""The tensors of a rollout on a device, and the parts that are saved."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.samplers.under_way import require_like
from hybridppo.spaces.distributions import Distribution


@dataclass(frozen=True)
class Block:
    """The tensors of a rollout, time-major, as in `RolloutBuffer`."""

    observations: Tensor
    outputs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    finals: Tensor
    """`[T, N, *row]`, the observation after each step if it was truncated; `[0, N, *row]` if the environment returns
    none."""
    absent: Tensor | None = None
    starts: Tensor | None = None
    states: Tensor | None = None


def allocated(
    environments: TensorEnvironments,
    distribution: Distribution,
    action_dtype: torch.dtype,
    num_steps: int,
    memory: MemoryLayout | None,
) -> Block:
    """Tensors for rollouts of these environments, on their device."""
    leading = num_steps, environments.num_envs
    row, encoder = environments.encode.shape, environments.on_device

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=environments.device)

    more = {}
    if environments.agents:
        more["absent"] = zeros(*leading, dtype=torch.bool)
    if memory is not None:
        more["starts"] = zeros(*leading, dtype=torch.bool)
        more["states"] = zeros(memory.num_sequences(num_steps), leading[1], memory.state_size)
    return Block(
        observations=zeros(num_steps + 1, leading[1], *row, dtype=encoder.dtype),
        outputs=zeros(*leading, distribution.output_size),
        actions=zeros(*leading, *distribution.action_shape, dtype=action_dtype),
        rewards=zeros(*leading),
        terminated=zeros(*leading, dtype=torch.bool),
        truncated=zeros(*leading, dtype=torch.bool),
        finals=zeros(0, leading[1], *row, dtype=encoder.dtype),
        **more,
    )


def with_finals(block: Block) -> Block:
    """The block with room for final observations; earlier steps get the approximation."""
    return Block(**{**vars(block), "finals": block.observations[:-1].clone()})


def rows_that_matter(block: Any, filled: int, memory: MemoryLayout | None = None) -> dict[str, Tensor]:
    """The rows of a block that a checkpoint needs if `filled` are filled, as views."""
    parts = {name: tensor for name, tensor in vars(block).items() if tensor is not None and len(tensor)}
    lengths = {"observations": filled + 1, "states": memory.num_sequences(filled) if memory is not None else 0}
    return {name: tensor[: lengths.get(name, filled)] for name, tensor in parts.items()}


def load_into(name: str, mine: Tensor, tensors: dict[str, Tensor]) -> None:
    """Write a saved tensor into `mine`."""
    require_like(name, tensors.get(name), mine)
    mine.copy_(tensors[name])
