"""Optimizer steps on shards that stay where they were sampled: of a minibatch, each learner has its own shards' rows.

What is not a gradient, and must be of all, is exchanged as a few numbers for each row: values, returns and advantages,
of which the whole minibatch's are normalised, and the explained variance is made; and the moments of observations.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch, minibatches_of
from hybridppo.agents.ppo.losses import normalize
from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.optimizer_steps import STATISTICS, AutogradSteps
from hybridppo.agents.ppo.pool import Newest
from hybridppo.networks.modes import require_same_everywhere
from hybridppo.rollouts.rollout import Rollout

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO

Exchange = Callable[[Tensor], Tensor]
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

    def minibatch(self, order: Tensor) -> list[Batch]:
        """This learner's part of a minibatch, by shard, of the rows at `[m]` places of an order."""
        places = (order + self._starts) % self._num_rows  # [shards, m]
        return [part.gather(places[self.first + i]) for i, part in enumerate(self.own)]


class ShardedExperience(Newest):
    """The newest rollout, whose shards are prepared each by itself.

    Args:
        first: the number of the first of this learner's shards.
        exchange: with the others.
    """

    def __init__(self, first: int, exchange: Exchange) -> None:
        super().__init__()
        self._first, self._exchange = first, exchange

    @torch.no_grad()
    def batch(self, agent: "PPO", rollout: Rollout, steps: Any) -> ShardedBatch:
        """What the epochs go over."""
        assert isinstance(rollout, ShardedRollout)
        own = [cast(Batch, agent.prepared(part, steps)) for part in rollout.parts]
        columns = torch.stack([torch.stack((part.values, part.returns, part.advantages)) for part in own])
        return ShardedBatch(own, self._first, self._exchange(columns))


class DeviceShardedSteps:
    """Steps whose gradient is the sum over the shards of all learners, in their order, by autograd.

    An update that has begun is ended: nobody is asked to stop within it.

    Args:
        agent: whose steps they are.
        num_own: shards of this learner.
        exchange: with the others.
    """

    written_in: str | None = None

    def __init__(self, agent: "PPO", num_own: int, exchange: Exchange) -> None:
        require_same_everywhere(agent.actor_network, agent.critic_network)
        self._agent, self._form, self._exchange = agent, AutogradSteps(agent), exchange
        self._gradient = agent.parameters.gradient
        self._rows = self._gradient.new_zeros((num_own, len(self._gradient) + len(STATISTICS) - 1))

    def threads(self) -> AbstractContextManager[None]:
        """Those of autograd."""
        return self._form.threads()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        return self._form.values(observations)

    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """By autograd."""
        return self._form.log_probs_of(batch, sizes)

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def epoch(self, batch: ShardedBatch, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """As in `OptimizerSteps`; sizes are those of a shard's part."""
        placed = torch.as_tensor(order, device=self._gradient.device)
        return torch.stack([self._step(batch, part, clip_range) for part in torch.split(placed, list(sizes))])

    def _step(self, batch: ShardedBatch, order: Tensor, clip_range: float) -> Tensor:
        for row, shard in zip(self._rows, batch.minibatch(order), strict=True):
            statistics = self._form.gradient(shard, clip_range)
            torch.cat((self._gradient, statistics), out=row)
        everything = self._exchange(self._rows)
        total = everything[0].clone()
        for row in everything[1:]:  # in their order, whatever torch would do
            total.add_(row)
        total.div_(batch.num_shards)  # of means over shards of one size, that over the minibatch
        self._gradient.copy_(total[: len(self._gradient)])
        return torch.cat((total[len(self._gradient) :], self._form.descend()))


def moments_of_all(
    num_own: int, num_columns: int, exchange: Exchange
) -> Callable[[Tensor], tuple[Tensor, Tensor, int]]:
    """Mean, variance and number of the rows of all shards, for `RunningMoments.of_all`.

    Args:
        num_own: shards of this learner, whose columns are beside each other.
        num_columns: of each.
        exchange: with the others.
    """

    def of_all(values: Tensor) -> tuple[Tensor, Tensor, int]:
        # [T * mine * columns, ...] -> [T, mine, columns, ...], and a shard's own rows, whoever else's are beside them
        table = values.reshape(-1, num_own, num_columns, *values.shape[1:])
        rows = [table[:, i].flatten(0, 1) for i in range(num_own)]
        own = [torch.stack((each.mean(0), (each - each.mean(0)).square_().mean(0))) for each in rows]
        means, variances = exchange(torch.stack(own)).unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square_().mean(0)
        return mean, variance, len(rows[0]) * len(means)

    return of_all
