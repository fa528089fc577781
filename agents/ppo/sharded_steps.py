"""Optimizer steps whose gradient is a sum over shards of the minibatch, which several learners may share.

A step is cut in two: the gradient, and what is done with it (clipping, the optimizer). In between, the gradients of the
shards are exchanged, and summed in the order of the shards. So the result depends on how many shards there are, and not
on who computed which. All else, such as the advantages' normalisation, is of the whole minibatch, which all have.

What is divided is a unit of the batch: a row, or, of an agent with a memory, a sequence of them; and where a memory is
carried through a rollout, a column of it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.numpy_steps import NumpySteps
from hybridppo.agents.ppo.optimizer_steps import STATISTICS, AutogradSteps
from hybridppo.agents.ppo.recurrent_steps import RecurrentSteps
from hybridppo.networks.modes import require_same_everywhere
from hybridppo.system.interruption import Stopped

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


class Exchange(Protocol):
    """Brings the rows of all learners' shards together."""

    def to_fill(self) -> Sequence[Tensor]:
        """Where the rows of this learner's shards are to be written, `[num_columns]` each."""
        ...

    def filled(self) -> Sequence[Tensor]:
        """Those of all shards in their order, when all are written.

        It may raise, and ask the agent to stop; then all learners are asked.
        """
        ...


def num_columns(agent: "PPO") -> int:
    """Of the row of a shard: its gradient, and what was measured."""
    return len(agent.parameters.gradient) + len(STATISTICS) - 1


class ShardedSteps:
    """Steps on shards.

    Args:
        agent: whose steps they are.
        form: the form that computes gradients, and steps.
        num_shards: of a minibatch.
        mine: those whose gradients are computed here.
        exchange: gives those of all.
    """

    def __init__(
        self, agent: "PPO", form: AutogradSteps | NumpySteps, *, num_shards: int, mine: slice, exchange: Exchange
    ) -> None:
        require_same_everywhere(agent.actor_network, agent.critic_network)
        self._agent, self._form, self._exchange = agent, form, exchange
        self.written_in: str | None = form.written_in
        self._num_shards, self._mine = num_shards, range(num_shards)[mine]
        self._gradient = agent.parameters.gradient

    def threads(self) -> AbstractContextManager[None]:
        """Those of the form."""
        return self._form.threads()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values, by the form; each learner computes those of its shards' part of the rows."""
        return self._of_all(len(observations), 1, lambda rows: self._form.values(observations[rows])[:, None])[:, 0]

    def log_probs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Likewise, as `AutogradSteps.log_probs`."""

        def compute(rows: slice) -> Tensor:
            return self._form.log_probs(observations[rows], actions[rows])[:, None]

        return self._of_all(len(observations), 1, compute)[:, 0]

    def recurrent_values(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """As `RecurrentSteps.recurrent_values`; each learner computes those of its shards' part of the columns."""
        num_steps, num_columns = starts.shape

        def compute(columns: slice) -> Tensor:
            own = observations[:, columns], state[columns], starts[:, columns]
            values, states = cast(RecurrentSteps, self._form).recurrent_values(*own)
            return torch.cat((values[..., None], states), -1).transpose(0, 1).flatten(1)  # [n, L * (1 + state)]

        found = self._of_all(num_columns, num_steps * (1 + state.shape[1]), compute)
        values, states = found.view(num_columns, num_steps, -1).transpose(0, 1).tensor_split([1], -1)
        return values[..., 0].contiguous(), states.contiguous()

    def _of_all(self, num_units: int, width: int, compute: Callable[[slice], Tensor]) -> Tensor:
        """So many numbers of each unit, `[units, width]`, of which each learner computes those of its shards' part."""
        bounds = self._bounds(num_units)
        found = torch.empty(num_units, width)
        for shard in self._mine:
            start, end = bounds[shard : shard + 2]
            if start < end:
                found[start:end] = compute(slice(start, end))
        parts = [found[start:end].view(-1) for start, end in pairwise(bounds)]
        # In pieces, since they may be more than the gradient is.
        most = num_columns(self._agent)
        for first in range(0, max(map(len, parts)), most):
            pieces = [part[first : first + most] for part in parts]
            for row, shard in zip(self._exchange.to_fill(), self._mine, strict=True):
                row[: len(pieces[shard])] = pieces[shard]
            for row, piece in zip(self._exchange.filled(), pieces, strict=True):
                piece.copy_(row[: len(piece)])
        return found

    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """By the form; every learner computes all of them."""
        return self._form.log_probs_of(batch, sizes)

    def metrics(self) -> dict[str, float]:
        """Those of the form."""
        return self._form.metrics()

    def gradient(self, batch: Any, clip_range: float) -> Tensor:
        """That of a whole minibatch, by the form: what is compared with the loss as it is written."""
        return self._form.gradient(batch, clip_range)

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the epoch, of the units of this learner's shards; shards are views."""
        order = torch.as_tensor(order)
        bounds = [self._bounds(size) for size in sizes]
        mine = [
            units[cuts[shard] : cuts[shard + 1]]
            for units, cuts in zip(torch.split(order, list(sizes)), bounds, strict=True)
            for shard in self._mine
        ]
        shards = batch.gather(torch.cat(mine)).split([len(units) for units in mine])
        statistics: list[Tensor] = []
        for num_steps in batch.steps_in(order, sizes):
            if self._agent.should_stop():
                raise Stopped
            for row, own in zip(self._exchange.to_fill(), shards, strict=False):
                self._fill(row, own, own.num_steps / num_steps, clip_range)
            statistics.append(self._descend(self._exchange.filled()))
        return torch.stack(statistics)

    def _bounds(self, size: int) -> list[int]:
        """Where the shards of so many units begin, and the last one ends."""
        return [i * size // self._num_shards for i in range(self._num_shards + 1)]

    def _fill(self, row: Tensor, shard: Any, weight: float, clip_range: float) -> None:
        """Gradient and statistics of a shard; `weight` makes of means over shards that over the minibatch."""
        if not weight:  # where few steps are left of a rollout
            row.zero_()
            return
        statistics = self._form.gradient(shard, clip_range)
        size = len(self._gradient)
        torch.mul(self._gradient, weight, out=row[:size])
        torch.mul(statistics, weight, out=row[size:])

    def _descend(self, rows: Sequence[Tensor]) -> Tensor:
        """The step along the sum of the shards' gradients; `STATISTICS`."""
        size = len(self._gradient)
        _sum_in_order([row[:size] for row in rows], out=self._gradient)
        statistics = _sum_in_order([row[size:] for row in rows], out=rows[0].new_empty(len(STATISTICS) - 1))
        return torch.cat((statistics, self._form.descend()))


def _sum_in_order(rows: Sequence[Tensor], out: Tensor) -> Tensor:
    """The sum of rows, from the first to the last, whatever torch would do."""
    if len(rows) == 1:
        return out.copy_(rows[0])
    torch.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        out.add_(row)
    return out
