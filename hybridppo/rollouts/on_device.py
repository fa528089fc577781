"""The tensors of a rollout that stays on the actor's device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridppo.rollouts.memory import MemoryLayout

TensorLayout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type of each tensor, by name."""


@dataclass(frozen=True)
class DeviceRollout:
    """The tensors of one rollout, time-major, on one device, as in `RolloutBuffer`."""

    observations: Tensor
    """`[T + 1, N, *row]`."""
    outputs: Tensor
    actions: Tensor
    """`[T, N, *action]`, as drawn: int64, or float32."""
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    finals: Tensor
    """`[T, N, *row]`, the observation after each step if it was truncated; other sizes if none are kept."""
    absent: Tensor | None = None
    starts: Tensor | None = None
    states: Tensor | None = None

    @staticmethod
    def layout(
        num_steps: int,
        num_columns: int,
        *,
        row: tuple[tuple[int, ...], torch.dtype],
        action: tuple[tuple[int, ...], torch.dtype],
        num_outputs: int,
        finals: tuple[int, ...],
        can_be_absent: bool,
        memory: MemoryLayout | None = None,
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of every tensor, by name.

        Args:
            num_steps: `T`.
            num_columns: `N`.
            row: shape and type of an observation's row.
            action: shape and type of an action.
            num_outputs: the size of the actor's outputs.
            finals: shape of the final observations.
            can_be_absent: whether agents may be absent.
            memory: layout of the state of a recurrent actor.
        """
        leading, flag = (num_steps, num_columns), torch.bool
        layout = {
            "observations": ((num_steps + 1, num_columns, *row[0]), row[1]),
            "outputs": ((*leading, num_outputs), torch.float32),
            "actions": ((*leading, *action[0]), action[1]),
            "rewards": (leading, torch.float32),
            "terminated": (leading, flag),
            "truncated": (leading, flag),
            "finals": (finals, row[1]),
        }
        if can_be_absent:
            layout["absent"] = (leading, flag)
        if memory is not None:
            layout["starts"] = (leading, flag)
            layout["states"] = ((memory.num_sequences(num_steps), num_columns, memory.state_size), torch.float32)
        return layout

    @classmethod
    def zeros(cls, layout: TensorLayout, device: torch.device) -> "DeviceRollout":
        """A rollout of this layout."""
        return cls(**{name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in layout.items()})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that there are, by name."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def with_finals(self) -> "DeviceRollout":
        """The rollout with room for final observations; those of earlier steps are the observations before them."""
        return replace(self, finals=self.observations[:-1].clone())

    def rows_that_matter(self, filled: int, memory: MemoryLayout | None) -> dict[str, Tensor]:
        """The rows that a checkpoint needs if `filled` are filled, as views."""
        lengths = {"observations": filled + 1, "states": memory.num_sequences(filled) if memory is not None else 0}
        return {name: rows[: lengths.get(name, filled)] for name, rows in self.tensors.items() if len(rows)}
