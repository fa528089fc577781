"""A rollout: the result of a sampler, and the data that an agent learns from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hybridppo.rollouts.buffer import Columns


@dataclass(frozen=True)
class Rollout(Columns):
    """`T` steps of `N` environments, time-major, on one device.

    Not every row is a step: environments that reset on the step after an episode's end (gymnasium's `NEXT_STEP`) ignore
    the action of that row. `valid_rows` lists the steps, and only they may count in a loss or a statistic.
    """

    observations: Tensor
    """`[T + 1, N, obs]`: the observation of each action, and the one after the last; for stacks, the newest frame."""
    actions: Tensor
    """`[T, N, *action]`, as drawn, before any clipping to the bounds of the space."""
    log_probs: Tensor
    """`[T, N]`, for the parameters that acted."""
    rewards: Tensor
    """`[T, N]`."""
    terminated: Tensor
    """`[T, N]` bool: the episode ended, so the return ends here."""
    truncated: Tensor
    """`[T, N]` bool: the episode was cut off, so the rest of the return is bootstrapped."""
    valid_rows: Tensor
    """`[M]` int64, ascending flat indices `t * N + n` of the rows that are steps."""
    final_rows: Tensor
    """`[K]` int64, flat indices of truncated steps whose final observation is not row `t + 1`."""
    final_observations: Tensor
    """`[K, obs]`, the final observations of these steps."""
    version: int
    """Version of the parameters that acted; the oldest, if `versions` differ."""
    starts: Tensor | None = None
    """`[T, N]` bool, whether each observation is the first of its episode; for recurrent actors only."""
    states: Tensor | None = None
    """`[S, N, state]`, the actor's state before each of `S` sequences; for recurrent actors only."""
    history: Tensor | None = None
    """`[K - 1, N, *frame]`, the older frames of the first stacks; for frame stacks only."""
    versions: Tensor | None = None
    """`[T, N]` int64, version that acted in each row; with `max_lag` above 1 only."""
    returns_so_far: Tensor | None = None
    """`[T, N]`, discounted return of the episode up to each step; with `max_lag` above 1, where columns change
    environments, and for agents that take turns. Else it follows from the rewards of the rows."""

    turns: Tensor | None = None
    """`[1, N]` int64, how often each agent has acted, also in steps that are open; for recurrent actors that take turns
    only. `starts` then also has the open step."""

    tensors = Columns.columns

    @property
    def parts(self) -> "tuple[Rollout, ...]":
        """The parts from which an update makes a batch each: the rollout itself. `RolloutParts` has several."""
        return (self,)

    def map_parts(self, function: "Callable[[Rollout], Rollout]") -> "Rollout":
        """The rollout with `function` applied to each part."""
        return function(self)

    def whole(self) -> "Rollout":
        """The rollout with all columns."""
        return self

    @property
    def are_steps(self) -> Tensor:
        """`[T, N]` bool: which rows are steps."""
        found = torch.zeros_like(self.truncated)
        found.view(-1).index_fill_(0, self.valid_rows, True)
        return found

    def steps(self, column: Tensor) -> Tensor:
        """The rows of a column that are steps, `[T, N, ...] -> [M, ...]`."""
        rows = column.flatten(0, 1)
        return rows if len(rows) == len(self.valid_rows) else rows.index_select(0, self.valid_rows)

    def of_agents(self, own: Tensor, num_agents: int) -> "Rollout":
        """A copy of the columns of some of the `A` agents of each environment; an environment's columns are neighbours.

        Args:
            own: `[a]` int64, indices of the agents.
            num_agents: `A`.
        """
        num_columns = self.rewards.shape[1]
        first = torch.arange(0, num_columns, num_agents, device=own.device)
        columns = (first[:, None] + own).flatten()
        place = torch.full((num_columns,), -1, dtype=torch.int64, device=own.device)
        place[columns] = torch.arange(len(columns), device=own.device)

        def moved(rows: Tensor) -> tuple[Tensor, Tensor]:
            """Positions in `rows` of flat indices within these columns, and their flat indices among these columns."""
            places = place[rows % num_columns]
            kept = places >= 0
            return kept, (rows // num_columns * len(columns) + places)[kept]

        _, valid_rows = moved(self.valid_rows)
        kept, final_rows = moved(self.final_rows)
        of_rows = ("valid_rows", "final_rows", "final_observations")
        changes: dict[str, Any] = {
            name: tensor.index_select(1, columns) for name, tensor in self.tensors().items() if name not in of_rows
        }
        finals = self.final_observations[kept]
        return replace(self, valid_rows=valid_rows, final_rows=final_rows, final_observations=finals, **changes)


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
