"""Optimizer steps whose gradient is a sum over shards of the minibatch, which several learners may share.

A step is cut in two: the gradient, and what is done with it (clipping, the optimizer). In between, the gradients of the
shards are exchanged, and summed in the order of the shards. So the result depends on how many shards there are, and not
on who computed which. All else, such as the advantages' normalisation, is of the whole minibatch, which all have.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import NormalizedBatch
from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.numpy_steps import NumpySteps
from hybridppo.agents.ppo.optimizer_steps import STATISTICS, AutogradSteps
from hybridppo.interruption import Stopped

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO

Exchange = Callable[[Tensor], Tensor]
"""The rows of one learner's shards, `[mine, K]`, to those of all, `[num_shards, K]`, in their order."""


class ShardedSteps:
    """Steps on shards.

    Args:
        agent: whose steps they are.
        form: the form that computes gradients, and steps.
        num_shards: of a minibatch.
        mine: those whose gradients are computed here.
        exchange: gives those of all. It may raise, and ask the agent to stop; then all learners are asked.
    """

    def __init__(
        self, agent: "PPO", form: AutogradSteps | NumpySteps, *, num_shards: int, mine: slice, exchange: Exchange
    ) -> None:
        self._agent, self._form, self._exchange = agent, form, exchange
        self.written_in: str | None = form.written_in
        self._num_shards, self._mine = num_shards, range(num_shards)[mine]
        self._gradient = agent.parameters.gradient
        self._rows = self._gradient.new_zeros((len(self._mine), len(self._gradient) + len(STATISTICS) - 1))

    def threads(self) -> AbstractContextManager[None]:
        """Those of the form."""
        return self._form.threads()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values, by the form."""
        return self._form.values(observations)

    def metrics(self) -> dict[str, float]:
        """Those of the form."""
        return self._form.metrics()

    def gradient(self, batch: Any, clip_range: float) -> Tensor:
        """That of a whole minibatch, by the form: what is compared with the loss as it is written."""
        return self._form.gradient(batch, clip_range)

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the epoch; minibatches and shards are views."""
        shuffled = batch.gather(torch.as_tensor(order, device=self._gradient.device))
        statistics: list[Tensor] = []
        for minibatch in shuffled.split(sizes):
            if self._agent.should_stop():
                raise Stopped
            statistics.append(self._step(minibatch, clip_range))
        return torch.stack(statistics)

    def _step(self, minibatch: Any, clip_range: float) -> Tensor:
        size, count = len(minibatch), self._num_shards
        bounds = [i * size // count for i in range(count + 1)]
        sizes = [end - start for start, end in pairwise(bounds)]
        shards = list(NormalizedBatch.of(minibatch, self._agent.config.normalize_advantage).split(sizes))
        for row, shard in zip(self._rows, self._mine, strict=True):
            row.zero_()
            if sizes[shard]:  # where few steps are left of a rollout
                statistics = self._form.gradient(shards[shard], clip_range)
                torch.cat((self._gradient, statistics), out=row)
                row.mul_(sizes[shard] / size)  # of means over shards, that over the minibatch
        total = _sum_in_order(self._exchange(self._rows))
        self._gradient.copy_(total[: len(self._gradient)])
        return torch.cat((total[len(self._gradient) :], self._form.descend()))


def _sum_in_order(rows: Tensor) -> Tensor:
    """The sum of rows, from the first to the last, whatever torch would do."""
    total = rows[0].clone()
    for row in rows[1:]:
        total.add_(row)
    return total
