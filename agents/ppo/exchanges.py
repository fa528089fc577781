"""What learners exchange of an update if several share it, as arguments of the loop.

`MinibatchShards`: all have the whole batch, and each computes the gradients of its shards of every minibatch. What is
divided is a unit of the batch: a row, or with a memory a sequence of rows, and if a memory is carried through a
rollout, a column of it. `RolloutShards`: rollouts stay on the devices that sampled them, and each learner has the rows
of its own shards. `Served`: a server of parameters makes the steps.

Gradients of shards are summed in the order of the shards. So the result depends on how many shards there are, and not
on who computed which. All else, such as the advantages' normalisation, is of the whole minibatch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch, minibatches_of
from hybridppo.agents.ppo.loop import Backend, Exchange
from hybridppo.agents.ppo.loss import STATISTICS, normalize
from hybridppo.networks.parameters import FlatParameters
from hybridppo.rollouts.rollout import Rollout


class Rows(Protocol):
    """Brings the rows of all learners' shards together: of a shard its gradient, and what was measured."""

    def to_fill(self) -> Sequence[Tensor]:
        """Where the rows of this learner's shards are to be written, `[num_columns]` each."""
        ...

    def filled(self) -> Sequence[Tensor]:
        """Those of all shards in their order, when all are written.

        It may raise, and ask the agent to stop; then all learners are asked.
        """
        ...


def num_columns(parameters: FlatParameters) -> int:
    """Of the row of a shard."""
    return len(parameters.gradient) + len(STATISTICS) - 1


class SummedShards(Exchange):
    """A gradient that is the sum over shards; a minibatch is this learner's shards, each with its weight.

    Args:
        parameters: whose gradient it is.
        rows: those of all learners' shards.
    """

    def __init__(self, parameters: FlatParameters, rows: Rows) -> None:
        self._parameters, self._rows = parameters, rows

    def gradient(self, backend: Backend, minibatch: Any, clip_range: float | Tensor) -> Tensor:
        """As in the base; weights make of means over shards that over the minibatch."""
        gradient = self._parameters.gradient
        size = len(gradient)
        for row, (shard, weight) in zip(self._rows.to_fill(), minibatch, strict=True):
            if not weight:  # few steps are left of a rollout
                row.zero_()
                continue
            statistics = torch.as_tensor(backend.gradient(shard, clip_range))
            torch.mul(gradient, weight, out=row[:size])
            torch.mul(statistics, weight, out=row[size:])
        rows = self._rows.filled()
        _sum_in_order([row[:size] for row in rows], out=gradient)
        return _sum_in_order([row[size:] for row in rows], out=gradient.new_empty(len(STATISTICS) - 1))


class MinibatchShards(SummedShards):
    """Shards of minibatches of which all learners have the whole.

    Args:
        parameters: whose gradient it is.
        rows: those of all learners' shards.
        num_shards: of a minibatch.
        mine: those whose gradients are computed here.
    """

    def __init__(self, parameters: FlatParameters, rows: Rows, *, num_shards: int, mine: slice) -> None:
        super().__init__(parameters, rows)
        self._num_shards, self._mine = num_shards, range(num_shards)[mine]

    def minibatches(self, backend: Backend, batch: Any, order: Tensor, sizes: Sequence[int]) -> Iterator[Any]:
        """One gather for the epoch, of the units of this learner's shards."""
        bounds = [self._bounds(size) for size in sizes]
        mine = [
            units[cuts[shard] : cuts[shard + 1]]
            for units, cuts in zip(torch.split(order, list(sizes)), bounds, strict=True)
            for shard in self._mine
        ]
        shards = iter(backend.minibatches(batch, torch.cat(mine), [len(units) for units in mine]))
        for num_steps in batch.steps_in(order, sizes):
            yield [(shard, shard.num_steps / num_steps) for shard in islice(shards, len(self._mine))]

    def divided(self, number: int, width: int, compute: Callable[[slice], Tensor]) -> Tensor:
        """As in the base; each learner computes those of its shards' part."""
        bounds = self._bounds(number)
        found = torch.empty(number, width)
        for shard in self._mine:
            start, end = bounds[shard : shard + 2]
            if start < end:
                found[start:end] = compute(slice(start, end))
        parts = [found[start:end].view(-1) for start, end in pairwise(bounds)]
        # In pieces, since they may be more than the gradient is.
        most = num_columns(self._parameters)
        for first in range(0, max(map(len, parts)), most):
            pieces = [part[first : first + most] for part in parts]
            for row, shard in zip(self._rows.to_fill(), self._mine, strict=True):
                row[: len(pieces[shard])] = pieces[shard]
            for row, piece in zip(self._rows.filled(), pieces, strict=True):
                piece.copy_(row[: len(piece)])
        return found

    def _bounds(self, size: int) -> list[int]:
        """Where the shards of so many units begin, and the last one ends."""
        return [i * size // self._num_shards for i in range(self._num_shards + 1)]


def _sum_in_order(rows: Sequence[Tensor], out: Tensor) -> Tensor:
    """The sum of rows, from the first to the last, whatever torch would do."""
    if len(rows) == 1:
        return out.copy_(rows[0])
    torch.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        out.add_(row)
    return out


class ParameterServer(Protocol):
    """What a learner asks of it."""

    def begin(self) -> None:
        """Wait until a gradient may be computed; the agent's parameters are then the server's."""
        ...

    def give(self, *, goes_on: bool) -> float:
        """The agent's gradient, for a step; its norm before it was clipped.

        The agent's parameters are then those after the step, or later ones. If it `goes_on`, the next gradient may be
        computed, as after `begin`.
        """
        ...


class Served(Exchange):
    """Each learner has minibatches of its own, and a server steps along its gradients, in turn with others'."""

    def __init__(self, server: ParameterServer) -> None:
        self._server, self._num_left = server, 0

    def minibatches(self, backend: Backend, batch: Any, order: Tensor, sizes: Sequence[int]) -> Any:
        """As in the base."""
        found = backend.minibatches(batch, order, sizes)
        self._num_left = len(sizes)
        self._server.begin()
        return found

    def descend(self, descend: Callable[[], Tensor | float]) -> float:
        """By the server."""
        self._num_left -= 1
        return self._server.give(goes_on=self._num_left > 0)


Gather = Callable[[Tensor], Tensor]
"""What one learner has of its shards, `[mine, ...]`, to that of all, `[shards, ...]` in their order, on its device."""


@dataclass(frozen=True)
class ShardedRollout(Rollout):
    """The rollouts of a learner's shards, beside each other as one; every row is a step."""

    parts: Sequence[Rollout] = field(default=())
    """Each by itself: what follows from one must not depend on how many there are beside it."""

    @classmethod
    def of(cls, parts: Sequence[Rollout]) -> "ShardedRollout":
        """Of rollouts of as many steps and columns each."""
        first = parts[0]
        joined = {
            name: torch.cat([getattr(part, name) for part in parts], 1)
            for name in ("observations", "actions", "log_probs", "rewards", "terminated", "truncated")
        }
        columns = first.rewards.shape[1]
        width = columns * len(parts)
        rows = [
            part.final_rows.div(columns, rounding_mode="floor") * width + i * columns + part.final_rows % columns
            for i, part in enumerate(parts)
        ]
        return cls(
            **joined,
            valid_rows=torch.arange(joined["rewards"].numel(), device=first.rewards.device),
            final_rows=torch.cat(rows),
            final_observations=torch.cat([part.final_observations for part in parts]),
            version=first.version,
            parts=parts,
        )


class ShardedBatch:
    """What the epochs go over: the rows of a learner's shards, and a few numbers of those of all.

    Its length is that of one shard, `n`: an order of so many rows is one of each shard's, begun at another place.

    Args:
        own: each shard's rows, `[n, ...]`.
        first: the number of the first.
        columns: of all shards, `[shards, 3, n]`: values, returns, advantages.
    """

    def __init__(self, own: Sequence[Batch], first: int, columns: Tensor) -> None:
        self.own, self.first, self._columns = own, first, columns
        self.num_shards, _, self._num_rows = columns.shape
        starts = torch.arange(self.num_shards, device=columns.device) * (self._num_rows // self.num_shards)
        self._starts = starts[:, None]

    def __len__(self) -> int:
        return self._num_rows

    def most_minibatches(self, normalizes: bool) -> int:
        """Into how many it may be cut."""
        return self._num_rows if self.num_shards > 1 or not normalizes else max(1, self._num_rows // 2)

    def steps(self) -> Batch:
        """The rows of this learner, with the values, returns and advantages of all."""
        values, returns, advantages = (column.flatten() for column in self._columns.unbind(1))
        parts = [
            torch.cat([getattr(part, name) for part in self.own]) for name in ("observations", "actions", "log_probs")
        ]
        return Batch(parts[0], parts[1], parts[2], values, advantages, returns)

    def some(self, least: int) -> Batch:
        """So many rows of this learner's first shard, over and over."""
        return self.own[0].some(least)

    def weighed(self, orders: Tensor, sizes: Sequence[int], normalizes: bool) -> "Sequence[ShardedBatch]":
        """As `Batch.weighed`: the whole minibatch is normalised."""
        return [self._weighed(order, sizes) if normalizes else self for order in orders]

    def _weighed(self, order: Tensor, sizes: Sequence[int]) -> "ShardedBatch":
        advantages = torch.empty_like(self._columns[:, 2])
        for rows in minibatches_of(order, sizes):
            places = (rows.unsqueeze(1) + self._starts) % self._num_rows  # [M, shards, B]
            shards = torch.arange(self.num_shards, device=advantages.device)[:, None]
            found = normalize(self._columns[shards, 2, places].flatten(1))
            advantages[shards, places] = found.view(places.shape)
        own = [replace(part, advantages=advantages[self.first + i]) for i, part in enumerate(self.own)]
        return ShardedBatch(own, self.first, self._columns)

    def parts(self, order: Tensor) -> list[tuple[Batch, Tensor]]:
        """The rows of each of this learner's shards, and the order in which an epoch goes through them."""
        places = (order + self._starts) % self._num_rows  # [shards, n]
        return [(part, places[self.first + i]) for i, part in enumerate(self.own)]


class RolloutShards(SummedShards):
    """Shards of rollouts that stay where they were sampled: each learner has the rows of its own.

    What is not a gradient, and must be of all, is exchanged as a few numbers for each row: values, returns and
    advantages, of which the whole minibatch's are normalised, and the explained variance is made.

    Args:
        parameters: whose gradient it is.
        first: the number of the first of this learner's shards.
        num_own: how many it has.
        gather: from the others.
    """

    may_stop = False

    def __init__(self, parameters: FlatParameters, first: int, num_own: int, gather: Gather) -> None:
        super().__init__(parameters, _GatheredRows(parameters, num_own, gather))
        self._first, self._gather = first, gather

    @torch.no_grad()
    def batch(self, rollout: Rollout, prepare: Callable[[Rollout], Any]) -> ShardedBatch:
        """The shards, each prepared by itself."""
        assert isinstance(rollout, ShardedRollout)
        own = [prepare(part) for part in rollout.parts]
        columns = torch.stack([torch.stack((part.values, part.returns, part.advantages)) for part in own])
        return ShardedBatch(own, self._first, self._gather(columns))

    def minibatches(self, backend: Backend, batch: Any, order: Tensor, sizes: Sequence[int]) -> Iterator[Any]:
        """One gather for the epoch of each shard; sizes are those of a shard's part."""
        parts = [backend.minibatches(own, places, sizes) for own, places in batch.parts(order)]
        for shards in zip(*parts, strict=True):
            yield [(shard, 1.0 / batch.num_shards) for shard in shards]


class _GatheredRows:
    """Rows on a device."""

    def __init__(self, parameters: FlatParameters, num_own: int, gather: Gather) -> None:
        self._own, self._gather = parameters.gradient.new_zeros((num_own, num_columns(parameters))), gather

    def to_fill(self) -> Sequence[Tensor]:
        return self._own.unbind()

    def filled(self) -> Sequence[Tensor]:
        return self._gather(self._own).unbind()


def moments_of_all(num_own: int, num_columns: int, gather: Gather) -> Callable[[Tensor], tuple[Tensor, Tensor, int]]:
    """Mean, variance and number of the rows of all shards, for `RunningMoments.of_all`.

    Args:
        num_own: shards of this learner, whose columns are beside each other.
        num_columns: of each.
        gather: from the others.
    """

    def of_all(values: Tensor) -> tuple[Tensor, Tensor, int]:
        # [T * mine * columns, ...] -> [T, mine, columns, ...], and a shard's own rows, whoever else's are beside them
        table = values.reshape(-1, num_own, num_columns, *values.shape[1:])
        rows = [table[:, i].flatten(0, 1) for i in range(num_own)]
        own = [torch.stack((each.mean(0), (each - each.mean(0)).square_().mean(0))) for each in rows]
        means, variances = gather(torch.stack(own)).unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square_().mean(0)
        return mean, variance, len(rows[0]) * len(means)

    return of_all
