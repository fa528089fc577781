"""An update of PPO by several learners, each with the rows of its shards.

Learners exchange the gradient of every minibatch, and once in an update a few numbers for each shard and minibatch:
moments of observations and rewards, sums that normalise advantages, and numbers of rows. Every learner joins them in
the order of the shards, so the result depends on the number of shards, but not on their division among learners.
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
    """Sums the gradients of all shards, each weighted by its share of the minibatch's steps.

    Args:
        parameters: the agent's.
        wire: to the other learners.
        first: the number of this learner's first shard.
    """

    is_alone = False

    def __init__(self, parameters: FlatParameters, wire: Wire, first: int) -> None:
        self._parameters, self.wire, self.first = parameters, wire, first

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """As in the base, for all shards."""
        shape, size = own[0][0].shape, own[0][0].numel()
        rows = [torch.cat((m.flatten(), v.flatten(), m.new_full((1,), float(number)))) for m, v, number in own]
        means, variances, numbers = self.wire.gather(torch.stack(rows)).tensor_split([size, 2 * size], 1)
        return joint_moments(means.reshape(-1, *shape), variances.reshape(-1, *shape), numbers[:, 0])

    def batch(self, own: Sequence[Any]) -> "ShardedBatch":
        """This learner's shards, and the numbers of rows of all shards (with a memory, of sequences)."""
        lengths = self.wire.gather(torch.tensor([[len(part)] for part in own]))
        return ShardedBatch(own, lengths.flatten().tolist(), self)

    def mean(self, batch: "ShardedBatch", measure: Callable[[Any], Tensor]) -> Tensor:
        """As in the base, for the rows of all shards."""
        known = {i: measure(part) for i, part in enumerate(batch.own) if len(part)}
        like = torch.zeros_like(next(iter(known.values())))
        return self.moments("", [(known.get(i, like), like, len(part)) for i, part in enumerate(batch.own)])[0]

    def minibatches(
        self, backend: Backend, batch: "ShardedBatch", order: Sequence[Tensor], sizes: Sequence[int]
    ) -> Iterator[Any]:
        """This learner's shards of each minibatch, with their weights; None for a shard without rows."""
        shards: list[Any] = []
        for part, rows in zip(batch.own, order, strict=True):
            own = _sizes(len(part), len(sizes))
            found = backend.minibatches(part, rows, own) if len(part) else repeat(None)
            shards.append(minibatch if size else None for minibatch, size in zip(found, own, strict=False))
        for minibatch, weights in zip(zip(*shards, strict=True), batch.weights.unbind(1), strict=True):
            yield list(zip(minibatch, weights.unbind(), strict=True))

    def gradient(self, backend: Backend, minibatch: Any, clip_range: float | Tensor) -> Tensor:
        """As in the base: the weighted sum of the shards' means is the mean over the minibatch."""
        gradient, extras = self._parameters.gradient, backend.extras
        rows: Any = None
        size = len(gradient)
        for i, (shard, weight) in enumerate(minibatch):
            if shard is not None:
                statistics = torch.as_tensor(backend.gradient(shard, clip_range))
            if rows is None:  # the first loss says how many metrics of its own it has
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
    """The batches of a learner's shards, with the methods of `Batch` that an update needs.

    Args:
        own: the batch of each shard.
        lengths: rows (with a memory, sequences) of every learner's shards.
        update: with the other learners.
        weights: of an epoch, `[own, M]`, the shares of these shards in each minibatch.
    """

    def __init__(
        self, own: Sequence[Any], lengths: Sequence[int], update: ShardedUpdate, weights: Tensor | None = None
    ) -> None:
        self.own, self._lengths, self._update = own, lengths, update
        self.weights: Any = weights

    def __len__(self) -> int:
        return max(self._lengths)

    def most_minibatches(self, normalizes: bool) -> int:
        """The rows of the longest shard."""
        return len(self)

    def orders(self, generator: np.random.Generator, epochs: int) -> list[list[Tensor]]:
        """The order of each shard's rows in each epoch, which depends on the shard's number."""
        seeds = generator.integers(2**63, size=epochs).tolist()
        return [[self._order(seed, self._update.first + i, part) for i, part in enumerate(self.own)] for seed in seeds]

    @staticmethod
    def _order(seed: int, shard: int, part: Any) -> Tensor:
        (order,) = part.orders(np.random.default_rng([seed, shard]), 1)
        found: Tensor = order
        return found

    def weighed(self, orders: Sequence[Sequence[Tensor]], sizes: Sequence[int], normalizes: bool) -> Any:
        """As `Batch.weighed`, normalised over the whole minibatch."""
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
        """At least this many rows of one shard, repeated if necessary."""
        return next(part for part in self.own if len(part)).some(least)

    def explained_variance(self) -> Tensor:
        """As `Batch.explained_variance`, for all shards."""
        own = []
        for part in self.own:
            rows = part.steps()
            own.append(moments_of(torch.stack((rows.returns, rows.returns - rows.values), -1)))
        _, variances, number = self._update.moments("", own)
        whole, left = variances.unbind()
        return torch.where((whole > 0) & (number > 1), 1.0 - left / whole, torch.nan)


def _sizes(length: int, count: int) -> list[int]:
    """The sizes of this many minibatches, which differ by at most one."""
    return [(i + 1) * length // count - i * length // count for i in range(count)]
