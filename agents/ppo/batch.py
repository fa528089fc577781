"""The batch that PPO learns from."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
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

    is_weighed: bool = field(default=False, kw_only=True)
    """Whether the advantages are those that are learned from: of a part of a minibatch, they follow from the whole."""

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def num_steps(self) -> int:
        """How many of its rows count."""
        return len(self)

    @property
    def most_minibatches(self) -> int:
        """Into how many it may be cut: one of a single row would have advantages without a deviation."""
        return len(self) // 2

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

    def weighed_advantages(self, normalizes: bool) -> Tensor:
        """The advantages that are learned from, `[B]`."""
        return normalize(self.advantages) if normalizes and not self.is_weighed else self.advantages

    def weighed_by_minibatch(
        self, order: Tensor, sizes: Sequence[int], normalizes: bool
    ) -> "Iterator[tuple[Tensor, int]]":
        """Of the minibatches of an epoch, each as a whole: the advantages that are learned from, and how many steps.

        Args:
            order: of the epoch.
            sizes: of its minibatches.
            normalizes: whether advantages are normalised.
        """
        for advantages in torch.split(self.advantages.index_select(0, order), list(sizes)):
            if normalizes:
                normalize_in_place(advantages.numpy())
            yield advantages, len(advantages)

    def weighed(self, advantages: Tensor) -> "Batch":
        """A part of a minibatch with its part of what `weighed_by_minibatch` gave."""
        return replace(self, advantages=advantages, is_weighed=True)

    def packed(self) -> "PackedBatch":
        """The same as arrays, on the CPU."""
        return PackedBatch(*self._as_arrays(), batch=self)

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
        return (type(self)(*parts, is_weighed=self.is_weighed) for parts in zip(*columns, strict=True))

    def gather(self, rows: Tensor) -> "Batch":
        """The rows at `[M]` indices, copied."""
        return self.map(lambda tensor: tensor.index_select(0, rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with `function` applied to each of its tensors."""
        tensors = (function(getattr(self, name)) for name in columns_of(type(self)))
        return type(self)(*tensors, is_weighed=self.is_weighed)


def columns_of(kind: type[Batch]) -> tuple[str, ...]:
    """The names of what a batch has for each row, in order."""
    return tuple(each.name for each in fields(kind) if not each.kw_only)


class PackedBatch:
    """A batch in two arrays and its actions, so that a shuffle is few gathers.

    Args:
        observations: `[B, obs]`; or stacks of frames, of which a gather makes arrays.
        actions: `[B, *action]`.
        columns: `[4, B]`: log-probabilities, values, advantages, returns.
        batch: what was packed, if it was a whole batch.
        is_weighed: as `Batch.is_weighed`.
    """

    def __init__(
        self, observations: Any, actions: Array, columns: Array, batch: Batch | None = None, is_weighed: bool = False
    ) -> None:
        self.observations, self.actions, self.batch = observations, actions, batch
        self.is_weighed = is_weighed or (batch is not None and batch.is_weighed)
        self._columns = columns
        self.log_probs, self.values, self.advantages, self.returns = columns[:4]
        self.input_gradients: Array | None = None
        """Where the gradients of the observations are wanted, `[n, B, obs]`."""

    def clip_range(self, clip_range: float) -> Any:
        """As `Batch.clip_range`."""
        return clip_range

    def weigh_advantages(self, normalizes: bool) -> None:
        """Make the advantages those that are learned from, in place."""
        if normalizes and not self.is_weighed:
            normalize_in_place(self.advantages)

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


def normalize_in_place(advantages: Array) -> None:
    """To mean 0 and deviation 1."""
    size = len(advantages)
    advantages -= np.add.reduce(advantages) / np.float32(size)
    if size > 1:
        deviation = math.sqrt(np.dot(advantages, advantages) / (size - 1))
        advantages /= np.float32(deviation + 1e-8)
