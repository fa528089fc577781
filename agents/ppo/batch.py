"""The batch that PPO learns from, and how an epoch cuts it into minibatches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents.ppo.loss import advantage_sums, explained_variance, normalize
from hybridppo.agents.ppo.stacked_rows import StackedRows
from hybridppo.system.devices import sent


@dataclass
class Batch:
    """The steps of one or more rollouts, flattened to `[B, ...]`, with the numbers that PPO adds to them.

    For the NumPy backend, minibatches have arrays in place of tensors. The class is not frozen, because creating a
    minibatch would take twice as long.
    """

    axis: ClassVar[int] = 0
    """The axis along which minibatches are cut."""

    observations: Any
    """A tensor, or `StackedRows`, which become tensors in minibatches."""
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Tensor | None = None
    """With a pool or a decoupled correction of lag, `[B]`: the probability of each action before the update, divided by
    its probability when it was taken; at most 1 without a pool."""
    shares: Tensor | None = None
    """With a pool, `[B]`: by what the clip range is multiplied in this update; the same in every row."""
    old_outputs: Tensor | None = None
    """For a custom loss, `[B, outputs]`: the actor's outputs before the update."""
    counted: Tensor | None = None
    """In a padded minibatch, `[B]` bool: which rows count."""

    @classmethod
    def joined(cls, parts: "Sequence[Batch]") -> "Batch":
        """The rows of several batches in one, with whole stacks of frames."""
        of_each = [{**part.columns(), "observations": part.inputs} for part in parts]
        return cls(**{name: torch.cat([columns[name] for columns in of_each]) for name in of_each[0]})

    def __len__(self) -> int:
        return len(self.returns)

    def most_minibatches(self, normalizes: bool) -> int:
        """The largest number of minibatches: a single row has no standard deviation to normalise by."""
        return min(len(self), max(1, len(self) // 2)) if normalizes else len(self)

    @property
    def inputs(self) -> Tensor:
        """The observations as networks take them, `[B, *row]`."""
        found: Tensor = self.observations.made() if isinstance(self.observations, StackedRows) else self.observations
        return found

    def outputs(self, actor: Callable[[Tensor], Tensor]) -> Tensor:
        """The actor's outputs for all rows, `[B, outputs]`."""
        return actor(self.inputs)

    def values_by(self, critic: Callable[[Tensor], Tensor]) -> Tensor:
        """The critic's values for all rows, `[B]`."""
        return critic(self.inputs).squeeze(-1)

    def only_steps(self, tensor: Tensor) -> Tensor:
        """The rows of `[B, ...]` that are steps: all."""
        return tensor

    def made(self) -> "Batch":
        """The same batch with observations as a tensor."""
        return replace(self, observations=self.inputs) if isinstance(self.observations, StackedRows) else self

    def clip_range(self, clip_range: Any) -> Any:
        """The clip range of the rows: a number, or `[B]` with a pool."""
        return clip_range if self.shares is None else clip_range * self.shares / self.weights

    def orders(self, generator: np.random.Generator, epochs: int) -> Tensor:
        """The order of the rows in each epoch, `[E, B]`."""
        return orders_on(self.returns.device, generator, len(self), epochs)

    def sums(self, orders: Tensor, sizes: Sequence[int]) -> Tensor:
        """`advantage_sums` of every minibatch, `[E, M, 4]`; arguments as of `weighed`."""
        weights = self.weights
        return of_minibatches(
            orders,
            sizes,
            lambda rows: advantage_sums(self.advantages[rows], weights=None if weights is None else weights[rows]),
        )

    def weighed(
        self, orders: Tensor, sizes: Sequence[int], normalizes: bool, sums: Tensor | None = None
    ) -> "Sequence[Batch]":
        """For each epoch, the batch with the advantages to learn from.

        Args:
            orders: order of the rows in each epoch, `[E, B]`.
            sizes: sizes of the minibatches.
            normalizes: whether advantages are normalised within each minibatch.
            sums: `advantage_sums` of whole minibatches, if these are shards of them.
        """
        weights = self.weights
        if not normalizes:
            return [self if weights is None else replace(self, advantages=weights * self.advantages)] * len(orders)
        advantages = self.advantages.new_empty(orders.shape)
        for numbers, rows in minibatches_of(orders, sizes):
            own = None if weights is None else weights[rows]
            found = normalize(self.advantages[rows], weights=own, sums=sums_among(sums, numbers))
            advantages.scatter_(1, rows.flatten(1), found.flatten(1))
        return [replace(self, advantages=of_epoch) for of_epoch in advantages]

    def explained_variance(self) -> Tensor:
        """The explained variance of the returns by the values."""
        rows = self.steps()
        return explained_variance(values=rows.values, returns=rows.returns)

    def steps(self) -> "Batch":
        """The rows that are steps: all."""
        return self

    def some(self, least: int) -> "Batch":
        """A batch of `least` rows, which repeat."""
        return self.gather(torch.arange(least, device=self.returns.device) % len(self))

    def padded(self, size: int) -> "Batch":
        """A batch of `size` rows, of which only those of this one count."""
        counted = torch.arange(size, device=self.returns.device) < len(self)
        return replace(self.some(size), counted=counted)

    def with_columns(self, **columns: Tensor) -> "Batch":
        """The same batch with other columns `[B]`, by name."""
        return replace(self, **columns)

    def with_old_outputs(self, outputs: Tensor) -> "Batch":
        """The same batch with the actor's outputs before the update (`Backend.outputs_of`)."""
        return replace(self, old_outputs=outputs)

    def split(self, sizes: Sequence[int]) -> "Iterator[Batch]":
        """Parts of these sizes, as views."""
        columns = self.columns()
        parts = (column.split(list(sizes)) for column in columns.values())
        return (Batch(**dict(zip(columns, part, strict=True))) for part in zip(*parts, strict=True))

    def gather(self, rows: Tensor) -> "Batch":
        """The rows at indices `[M]`, copied."""
        return self.map(lambda column: column.index_select(0, rows))

    def map(self, function: Callable[[Any], Any]) -> "Batch":
        """The batch with `function` applied to each of its columns."""
        mapped: list[Any] = [None if column is None else function(column) for column in vars(self).values()]
        return Batch(*mapped)

    def columns(self) -> dict[str, Any]:
        """The columns that are not None, by name."""
        return {name: column for name, column in vars(self).items() if column is not None}


def orders_on(device: torch.device, generator: np.random.Generator, size: int, epochs: int) -> Tensor:
    """A shuffle of `size` rows for each epoch, `[epochs, size]`, copied to the device without a wait."""
    return sent(np.stack([generator.permutation(size) for _ in range(epochs)]), device)


def of_minibatches(orders: Tensor, sizes: Sequence[int], sums_of: Callable[[Tensor], Sequence[Any]]) -> Tensor:
    """`[E, M, 4]`: the results of `sums_of` for the indices `[E, m, B]` of all minibatches of each size."""
    columns: dict[int, Tensor] = {}
    for numbers, rows in minibatches_of(orders, sizes):
        parts = sums_of(rows)
        like = parts[1].squeeze(-1)
        found = torch.stack(
            [part.squeeze(-1) if isinstance(part, Tensor) else like.new_full(like.shape, part) for part in parts], -1
        )
        columns |= dict(zip(numbers, found.unbind(1), strict=True))
    return torch.stack([columns[number] for number in range(len(sizes))], 1)


def sums_among(sums: Tensor | None, numbers: Sequence[int]) -> Sequence[Tensor] | None:
    """The sums of some minibatches, from `[E, M, 4]`, as `normalize` takes them."""
    if sums is None:
        return None
    return torch.stack([sums[:, number] for number in numbers], 1).unsqueeze(-2).unbind(-1)


def minibatches_of(orders: Tensor, sizes: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
    """For each size of minibatches, their numbers (`M`), and the indices of their rows `[..., M, B]`."""
    if len(set(sizes)) == 1:
        yield range(len(sizes)), orders.view(*orders.shape[:-1], len(sizes), -1)
        return
    parts = torch.split(orders, list(sizes), -1)
    for size in sorted(set(sizes)):
        numbers = [number for number, each in enumerate(sizes) if each == size]
        yield numbers, torch.stack([parts[number] for number in numbers], -2)
