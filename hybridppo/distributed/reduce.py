"""An update by several learners, each with the rows of its shards.

Learners exchange the gradient of every minibatch, and once in an update a few numbers for each shard and minibatch:
moments of observations and rewards, sums that normalise advantages, and numbers of rows. Every learner joins them in
the order of the shards, so the result depends on the number of shards, but not on their division among learners.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents.agent import Exchange
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.networks.actors import Moments, joint_moments, moments_of
from hybridppo.networks.parameters import FlatParameters
from hybridppo.runners.process_group import SingleProcess


class ShardedUpdate(Exchange):
    """Sums the gradients of all shards, each weighted by its share of the minibatch's steps.

    Args:
        parameters: the parameters of the agent.
        group: the learners.
        first: the number of this learner's first shard.
        in_order: whether the shards' gradients are summed in their order, for which all gradients go to all learners;
            else each learner's sum is reduced, which sends less and rounds differently.
    """

    is_alone = False

    def __init__(self, parameters: FlatParameters, group: SingleProcess, *, first: int, in_order: bool) -> None:
        self._parameters, self._group, self.first, self._in_order = parameters, group, first, in_order
        self._kept: Tensor | None = None
        """The rows of this learner's shards; None before the first minibatch."""

    def gather(self, own: Tensor) -> Tensor:
        """Gather the numbers of this learner's shards, `[own, ...]`, to those of all shards, `[shards, ...]`."""
        return self._group.gather_rows(own.contiguous()).flatten(0, 1)

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """As in the base, for all shards."""
        shape, size = own[0][0].shape, own[0][0].numel()
        rows = [torch.cat((m.flatten(), v.flatten(), m.new_full((1,), float(number)))) for m, v, number in own]
        means, variances, numbers = self.gather(torch.stack(rows)).tensor_split([size, 2 * size], 1)
        return joint_moments(means.reshape(-1, *shape), variances.reshape(-1, *shape), numbers[:, 0])

    def batch(self, own: Sequence[Any]) -> "ShardedBatch":
        """This learner's shards, and the numbers of rows of all shards (with a memory, of sequences)."""
        lengths = self.gather(torch.tensor([[len(part)] for part in own]))
        return ShardedBatch(own, lengths.flatten().tolist(), self)

    def mean(self, batch: "ShardedBatch", measure: Callable[[Any], Tensor], count: int) -> Tensor:
        """As in the base, for the rows of all shards."""
        nothing = self._parameters.gradient.new_zeros(count)
        own = [(measure(part) if len(part) else nothing, nothing, len(part)) for part in batch.own]
        return self.moments("", own)[0]

    def minibatches(self, backend: Backend, epoch: "ShardedBatch", sizes: Sequence[int]) -> Iterator[Any]:
        """This learner's shards of each minibatch, with their weights; None for a shard without rows."""
        shards: list[Any] = []
        for part in epoch.own:
            own = _sizes(len(part), len(sizes))
            found = backend.minibatches(part, own) if len(part) else repeat(None)
            shards.append(minibatch if size else None for minibatch, size in zip(found, own, strict=False))
        for minibatch, weights in zip(zip(*shards, strict=True), epoch.weights.unbind(1), strict=True):
            yield list(zip(minibatch, weights.unbind(), strict=True))

    def gradient_by(self, backend: Any) -> Callable[[Any, Any], Tensor]:
        """As in the base."""
        return partial(self._gradient, backend)

    def _gradient(self, backend: Any, minibatch: Any, setting: Any) -> Tensor:
        """The weighted sum of the shards' means is the mean over the minibatch."""
        gradient, statistics = self._parameters.gradient, torch.empty(0)
        size, rows = len(gradient), None
        # Shards with rows come first: they show how many statistics there are.
        for i in sorted(range(len(minibatch)), key=lambda i: minibatch[i][0] is None):
            shard, weight = minibatch[i]
            if shard is not None:
                statistics = torch.as_tensor(backend.gradient(shard, setting))
            if rows is None:
                rows = self._rows(len(statistics), minibatch)
            if shard is None:
                rows[i].zero_()
                continue
            torch.mul(gradient, weight, out=rows[i][:size])
            torch.mul(statistics, weight, out=rows[i][size:])
        assert rows is not None
        if self._in_order:
            total = reduce(torch.add, self.gather(rows))  # from the first to the last
        else:
            total = reduce(torch.add, rows)
            self._group.all_reduce(total)
        gradient.copy_(total[:size])
        return total[size:].clone()

    def _rows(self, measured: int, minibatch: Any) -> Tensor:
        """`[own, ...]`, for the gradient and the statistics of each shard. Its memory is kept.

        A learner without rows in the first minibatch learns the number of statistics from the others.
        """
        if self._kept is None:
            of_shards = [[0 if shard is None else measured] for shard, _ in minibatch]
            width = len(self._parameters.gradient) + int(self.gather(torch.tensor(of_shards)).max())
            self._kept = self._parameters.gradient.new_zeros(len(of_shards), width)
        return self._kept


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
        seeds, first = generator.integers(2**63, size=epochs).tolist(), self._update.first
        return [
            [part.orders(np.random.default_rng([seed, shard]), 1)[0] for shard, part in enumerate(self.own, first)]
            for seed in seeds
        ]

    def epochs(self, orders: Sequence[Sequence[Tensor]], sizes: Sequence[int], normalizes: bool) -> Any:
        """As `Batch.epochs`, normalised over the whole minibatch."""
        count = len(sizes)
        of_shards = [torch.stack(each) for each in zip(*orders, strict=True)]
        nothing = self._update._parameters.gradient.new_zeros((len(orders), count, 4))
        own = [
            part.sums(order, _sizes(len(part), count)) if len(part) else nothing
            for part, order in zip(self.own, of_shards, strict=True)
        ]
        number, total, squares, of_weights = self._update.gather(torch.stack(own)).unbind(-1)  # [S, E, M] each
        numbers, totals = number.sum(0), total.sum(0)
        apart = total / number.clamp(min=1.0) - totals / numbers
        whole = torch.stack((numbers, totals, (squares + number * apart.square()).sum(0), of_weights.sum(0)), -1)
        weights = torch.stack(own)[..., 0] / numbers  # [own, E, M]
        parts = [
            part.epochs(order, _sizes(len(part), count), normalizes, whole) if len(part) else [part] * len(orders)
            for part, order in zip(self.own, of_shards, strict=True)
        ]
        of_epochs = zip(zip(*parts, strict=True), weights.unbind(1), strict=True)
        return (ShardedBatch(each, self._lengths, self._update, of_epoch) for each, of_epoch in of_epochs)

    def steps(self) -> Batch:
        """The rows of this learner."""
        return Batch.joined([part.steps() for part in self.own])

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
