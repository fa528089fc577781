"""Rollouts in parts: a part has some of the columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """One rollout with the columns of several, in their order; copied.

    If agents take turns, parts may differ in length: the others then go on like the columns of `steps_by_turns`.
    """
    if len(parts) == 1:
        return parts[0]
    parts = _of_one_length(parts)
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


def _of_one_length(parts: Sequence[Rollout]) -> Sequence[Rollout]:
    """The parts with rows that are not steps at the ends of the shorter ones, whose open episodes are truncated."""
    if len({len(part.rewards) for part in parts}) == 1:
        return parts
    lengths = {
        name: max(len(part.tensors()[name]) for part in parts) for name in parts[0].tensors() if name not in _OF_ROWS
    }
    return [part if len(part.rewards) == lengths["rewards"] else _lengthened(part, lengths) for part in parts]


def _lengthened(part: Rollout, lengths: Mapping[str, int]) -> Rollout:
    tensors: dict[str, Any] = {}
    for name, length in lengths.items():
        tensor = part.tensors()[name]
        tensors[name] = torch.cat((tensor, tensor.new_zeros(length - len(tensor), *tensor.shape[1:])))
    last = len(part.rewards) - 1
    ends = (part.terminated | part.truncated).flatten()
    is_last = part.valid_rows >= last * part.rewards.shape[1]
    open_rows = part.valid_rows[is_last & ~ends[part.valid_rows]]
    columns = open_rows % part.rewards.shape[1]
    tensors["truncated"][last, columns] = True
    finals = torch.cat((part.final_observations, part.observations[last + 1, columns]))
    return replace(part, **tensors, final_rows=torch.cat((part.final_rows, open_rows)), final_observations=finals)


def in_parts(rollout: Rollout, number: int) -> Any:
    """A rollout cut into `number` parts with equally many columns; the rollout itself for one part."""
    if number == 1:
        return rollout
    width = rollout.rewards.shape[1]
    columns = torch.arange(width, device=rollout.rewards.device).chunk(number)
    return RolloutParts([rollout.of_agents(own, width) for own in columns])
