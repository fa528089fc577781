"""The batch that PPO learns from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.agents.ppo.losses import normalize
from hybridppo.agents.ppo.stacked_rows import StackedRows

Array = NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """The steps of a rollout, flattened to `[B, ...]`, with what PPO adds to them."""

    observations: Any
    """A tensor, or `StackedRows` of which minibatches are made."""
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def num_steps(self) -> int:
        """How many of its rows count."""
        return len(self)

    def most_minibatches(self, normalizes: bool) -> int:
        """Into how many it may be cut: a single row has no deviation, if advantages are normalised."""
        return min(len(self), max(1, len(self) // 2)) if normalizes else len(self)

    @property
    def inputs(self) -> Tensor:
        """The observations as networks take them, `[B, *row]`."""
        found: Tensor = self.observations.made() if isinstance(self.observations, StackedRows) else self.observations
        return found

    def made(self) -> "Batch":
        """The same with observations that are a tensor."""
        return replace(self, observations=self.inputs) if isinstance(self.observations, StackedRows) else self

    def clip_range(self, clip_range: Any) -> Any:
        """The clip range of its rows: a number, or `[B]`."""
        return clip_range

    @property
    def advantage_weights(self) -> Tensor | None:
        """`[B]`, what advantages are multiplied by; None for 1."""
        return None

    def weighed(self, orders: Tensor, sizes: Sequence[int], normalizes: bool) -> "Sequence[Batch]":
        """For each epoch, the batch with the advantages that it learns from.

        Args:
            orders: of the epochs, `[E, B]`.
            sizes: of the minibatches of each.
            normalizes: whether advantages are normalised within each minibatch.
        """
        weights = self.advantage_weights
        if not normalizes:
            return [self if weights is None else replace(self, advantages=weights * self.advantages)] * len(orders)
        advantages = self.advantages.new_empty(orders.shape)
        for rows in minibatches_of(orders, sizes):
            found = normalize(self.advantages[rows], weights=None if weights is None else weights[rows])
            advantages.scatter_(1, rows.flatten(1), found.flatten(1))
        return [replace(self, advantages=of_epoch) for of_epoch in advantages]

    def steps_in(self, order: Tensor, sizes: Sequence[int]) -> Sequence[int]:
        """How many steps each minibatch of an epoch has."""
        return sizes

    def packed(self) -> "PackedBatch":
        """The same as arrays, on the CPU."""
        return PackedBatch(*self._as_arrays())

    def _as_arrays(self) -> tuple[Any, Array, Array]:
        """Observations, actions `[B, *action]`, and all that is beside them, `[n, B]`."""
        beside = [getattr(self, name).numpy() for name in columns_of(type(self))[2:]]
        stacked = isinstance(self.observations, StackedRows)
        return self.observations if stacked else self.observations.numpy(), self.actions.numpy(), np.stack(beside)

    def steps(self) -> "Batch":
        """Its rows, of which each is a step."""
        return self

    def some(self, least: int) -> "Batch":
        """So many rows, over and over."""
        return self.gather(torch.arange(least, device=self.returns.device) % len(self))

    def with_columns(self, log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor) -> "Batch":
        """The same steps with other numbers beside them, `[B]` each."""
        return Batch(self.observations, self.actions, log_probs, values, advantages, returns)

    def split(self, sizes: Sequence[int]) -> "Iterator[Batch]":
        """The batch cut into parts of these sizes, as views."""
        columns = (getattr(self, name).split(list(sizes)) for name in columns_of(type(self)))
        return (type(self)(*parts) for parts in zip(*columns, strict=True))

    def gather(self, rows: Tensor) -> "Batch":
        """The rows at `[M]` indices, copied."""
        return self.map(lambda tensor: tensor.index_select(0, rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with `function` applied to each of its tensors."""
        tensors = (function(getattr(self, name)) for name in columns_of(type(self)))
        return type(self)(*tensors)


def columns_of(kind: type[Batch]) -> tuple[str, ...]:
    """The names of what a batch has for each row, in order."""
    return tuple(each.name for each in fields(kind))


def minibatches_of(orders: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """What each minibatch of epochs has, by size: `[..., M, B]` indices of the `M` minibatches that have `B`."""
    if len(set(sizes)) == 1:
        yield orders.view(*orders.shape[:-1], len(sizes), -1)
        return
    parts = torch.split(orders, list(sizes), -1)
    for size in sorted(set(sizes)):
        yield torch.stack([part for part in parts if part.shape[-1] == size], -2)


class PackedBatch:
    """A batch in two arrays and its actions, so that a shuffle is few gathers.

    Args:
        observations: `[B, obs]`; or stacks of frames, of which a gather makes arrays.
        actions: `[B, *action]`.
        columns: `[4, B]`: log-probabilities, values, advantages, returns.
    """

    def __init__(self, observations: Any, actions: Array, columns: Array) -> None:
        self.observations, self.actions = observations, actions
        self._columns = columns
        self.log_probs, self.values, self.advantages, self.returns = columns[:4]
        self.input_gradients: Array | None = None
        """Where the gradients of the observations are wanted, `[n, B, obs]`."""

    def clip_range(self, clip_range: float) -> Any:
        """As `Batch.clip_range`."""
        return clip_range

    def mask(self, size: int) -> Array:
        """The last `size` numbers of each observation, `[size, B]`."""
        rows: Array = self.observations.T[-size:]
        return rows

    def gather(self, order: Array) -> "PackedBatch":
        """The rows at `[M]` indices, copied."""
        observations, actions = self.observations.take(order, axis=0), self.actions.take(order, axis=0)
        return type(self)(observations, actions, self._columns.take(order, axis=1))

    def rows(self, start: int, end: int) -> "PackedBatch":
        """Neighbouring rows, as views."""
        return type(self)(self.observations[start:end], self.actions[start:end], self._columns[:, start:end])
