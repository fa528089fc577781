"""Rollouts in parts: a part has some of the columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridppo.rollouts.rollout import Rollout

_OF_ROWS = ("valid_rows", "final_rows", "final_observations")


@dataclass(frozen=True)
class RolloutParts:
    """Rollouts with equally many steps, by parameters of one version; each part is handled independently."""

    parts: Sequence[Rollout]

    @property
    def version(self) -> int:
        """Version of the parameters that acted; the oldest, if versions differ."""
        return min(part.version for part in self.parts)

    @property
    def observations(self) -> Tensor:
        """Some of the observations, whose device is that of all tensors."""
        return self.parts[0].observations

    @property
    def num_bytes(self) -> int:
        """The size of all tensors together."""
        return sum(part.num_bytes for part in self.parts)

    def map(self, function: Callable[[Tensor], Tensor]) -> "RolloutParts":
        """The same with `function` applied to each tensor."""
        return self.map_parts(lambda part: part.map(function))

    def map_parts(self, function: Callable[[Rollout], Rollout]) -> "RolloutParts":
        """The parts with `function` applied to each."""
        return RolloutParts([function(part) for part in self.parts])

    def whole(self) -> Rollout:
        """The rollout with all columns."""
        return joined(self.parts)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the whole, by name."""
        return self.whole().tensors()


def joined(parts: Sequence[Rollout]) -> Rollout:
    """One rollout with the columns of several, in their order; copied."""
    if len(parts) == 1:
        return parts[0]
    tensors: dict[str, Any] = {
        name: torch.cat([part.tensors()[name] for part in parts], 1)
        for name in parts[0].tensors()
        if name not in _OF_ROWS
    }
    width, first = tensors["rewards"].shape[1], 0
    valid_rows: list[Tensor] = []
    final_rows: list[Tensor] = []
    for part in parts:
        size = part.rewards.shape[1]
        for rows, into in ((part.valid_rows, valid_rows), (part.final_rows, final_rows)):
            into.append(rows.div(size, rounding_mode="floor") * width + first + rows % size)
        first += size
    finals, order = torch.cat(final_rows).sort()
    return Rollout(
        **tensors,
        valid_rows=torch.cat(valid_rows).sort().values,
        final_rows=finals,
        final_observations=torch.cat([part.final_observations for part in parts]).index_select(0, order),
        version=parts[0].version,
    )


def in_parts(rollout: Rollout, number: int) -> Any:
    """A rollout cut into `number` parts with equally many columns; the rollout itself for one part."""
    if number == 1:
        return rollout
    width = rollout.rewards.shape[1]
    columns = torch.arange(width, device=rollout.rewards.device).chunk(number)
    return RolloutParts([rollout.of_agents(own, width) for own in columns])
