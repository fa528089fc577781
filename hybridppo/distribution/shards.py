"""An update of PPO that several learners make together: each has the rows of its own shards.

What crosses is the gradient of every minibatch, and a few numbers for each shard and minibatch once an update: moments
of observations and rewards, sums by which advantages are normalised, and how many rows there are. Every learner puts
them together in the order of the shards, so the result depends on how many shards there are, and not on who has which.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents.common.loop import Exchange
from hybridppo.agents.ppo.backend import Backend
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.distribution.wires import Wire
from hybridppo.networks.normalization import Moments, joint_moments, moments_of
from hybridppo.networks.parameters import FlatParameters

_MEASURED = len(STATISTICS) - 1


class ShardedUpdate(Exchange):
    """A gradient that is the sum over shards, each weighed by how many steps of the minibatch it has.

    Args:
        parameters: whose gradient it is.
        wire: to the other learners.
        first: the number of the first of this learner's shards.
    """

    is_alone = False

    def __init__(self, parameters: FlatParameters, wire: Wire, first: int) -> None:
        self._parameters, self.wire, self.first = parameters, wire, first

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """As in the base, from those of all shards."""
        shape, size = own[0][0].shape, own[0][0].numel()
        rows = [torch.cat((m.flatten(), v.flatten(), m.new_full((1,), float(number)))) for m, v, number in own]
        means, variances, numbers = self.wire.gather(torch.stack(rows)).tensor_split([size, 2 * size], 1)
        return joint_moments(means.reshape(-1, *shape), variances.reshape(-1, *shape), numbers[:, 0])

    def batch(self, own: Sequence[Any]) -> "ShardedBatch":
        """The shards of this learner, and how many rows (with a memory, sequences) all others have."""
        lengths = self.wire.gather(torch.tensor([[len(part)] for part in own]))
        return ShardedBatch(own, lengths.flatten().tolist(), self)

    def mean(self, batch: "ShardedBatch", measure: Callable[[Any], Tensor]) -> Tensor:
        """As in the base, over the rows of all shards."""
        known = {i: measure(part) for i, part in enumerate(batch.own) if len(part)}
        like = torch.zeros_like(next(iter(known.values())))
        return self.moments("", [(known.get(i, like), like, len(part)) for i, part in enumerate(batch.own)])[0]

    def minibatches(
        self, backend: Backend, batch: "ShardedBatch", order: Sequence[Tensor], sizes: Sequence[int]
    ) -> Iterator[Any]:
        """Of each minibatch this learner's shards, each with its weight; None for a shard without rows."""
        shards: list[Any] = []
        for part, rows in zip(batch.own, order, strict=True):
            own = _sizes(len(part), len(sizes))
            found = backend.minibatches(part, rows, own) if len(part) else repeat(None)
            shards.append(minibatch if size else None for minibatch, size in zip(found, own, strict=False))
        for minibatch, weights in zip(zip(*shards, strict=True), batch.weights.unbind(1), strict=True):
            yield list(zip(minibatch, weights.unbind(), strict=True))

    def gradient(self, backend: Backend, minibatch: Any, clip_range: float | Tensor) -> Tensor:
        """As in the base; weights make of means over shards that over the minibatch."""
        gradient, extras = self._parameters.gradient, backend.extras
        rows: Any = None
        size = len(gradient)
        for i, (shard, weight) in enumerate(minibatch):
            if shard is not None:
                statistics = torch.as_tensor(backend.gradient(shard, clip_range))
            if rows is None:  # only now it is known how many numbers a loss of one's own measures
                rows = self.wire.rows(gradient, size + _MEASURED + len(extras.names))
            if shard is None:
                rows[i].zero_()
                continue
            torch.mul(gradient, weight, out=rows[i][:size])
            torch.mul(statistics, weight, out=rows[i][size : size + _MEASURED])
            rows[i][size + _MEASURED :] = extras.pop(gradient) * weight
        total = self.wire.total()
        gradient.copy_(total[:size])
        if extras.names:
            extras.put(total[size + _MEASURED :].clone())
        return total[size : size + _MEASURED].clone()


class ShardedBatch:
    """The batches of a learner's shards, and a few numbers of those of all; as `Batch`, to whoever makes an update.

    Args:
        own: each shard's.
        lengths: rows of each shard of all, or with a memory its sequences.
        update: with the other learners.
        weights: of an epoch, `[own, M]`: the shares that these shards have of each minibatch.
    """

    def __init__(
        self, own: Sequence[Any], lengths: Sequence[int], update: ShardedUpdate, weights: Tensor | None = None
    ) -> None:
        self.own, self._lengths, self._update = own, lengths, update
        self.weights: Any = weights

    def __len__(self) -> int:
        return max(self._lengths)

    def most_minibatches(self, normalizes: bool) -> int:
        """As many as the longest shard has rows."""
        return len(self)

    def orders(self, generator: np.random.Generator, epochs: int) -> list[list[Tensor]]:
        """Of each epoch the order of each shard's rows, which follows from the shard's number."""
        seeds = generator.integers(2**63, size=epochs).tolist()
        return [[self._order(seed, self._update.first + i, part) for i, part in enumerate(self.own)] for seed in seeds]

    @staticmethod
    def _order(seed: int, shard: int, part: Any) -> Tensor:
        (order,) = part.orders(np.random.default_rng([seed, shard]), 1)
        found: Tensor = order
        return found

    def weighed(self, orders: Sequence[Sequence[Tensor]], sizes: Sequence[int], normalizes: bool) -> Any:
        """As `Batch.weighed`: the whole minibatch is normalised."""
        count = len(sizes)
        of_shards = [torch.stack(each) for each in zip(*orders, strict=True)]
        own = [
            part.sums(order, _sizes(len(part), count)) if len(part) else order.new_zeros(1)
            for part, order in zip(self.own, of_shards, strict=True)
        ]
        like = next((each for each in own if each.ndim == 4), None)
        if like is None:
            like = self._update._parameters.gradient.new_zeros((len(orders), count, 4))
        own = [each if each.ndim == 3 else torch.zeros_like(like) for each in own]
        everything = self._update.wire.gather(torch.stack(own))
        number, total, squares, of_weights = everything.unbind(-1)  # [S, E, M] each
        numbers, totals = number.sum(0), total.sum(0)
        apart = total / number.clamp(min=1.0) - totals / numbers
        whole = torch.stack((numbers, totals, (squares + number * apart.square()).sum(0), of_weights.sum(0)), -1)
        weights = torch.stack(own)[..., 0] / numbers  # [own, E, M]
        parts = [
            part.weighed(order, _sizes(len(part), count), normalizes, whole) if len(part) else [part] * len(orders)
            for part, order in zip(self.own, of_shards, strict=True)
        ]
        of_epochs = zip(zip(*parts, strict=True), weights.unbind(1), strict=True)
        return [ShardedBatch(each, self._lengths, self._update, of_epoch) for each, of_epoch in of_epochs]

    def steps(self) -> Batch:
        """The rows of this learner."""
        return Batch.joined([part.steps() for part in self.own])

    def some(self, least: int) -> Any:
        """So many rows of one of this learner's shards, over and over."""
        return next(part for part in self.own if len(part)).some(least)

    def explained_variance(self) -> Tensor:
        """As `Batch.explained_variance`, of all shards."""
        own = []
        for part in self.own:
            rows = part.steps()
            own.append(moments_of(torch.stack((rows.returns, rows.returns - rows.values), -1)))
        _, variances, number = self._update.moments("", own)
        whole, left = variances.unbind()
        return torch.where((whole > 0) & (number > 1), 1.0 - left / whole, torch.nan)


def _sizes(length: int, count: int) -> list[int]:
    """The sizes of so many minibatches, which differ by at most one."""
    return [(i + 1) * length // count - i * length // count for i in range(count)]
