"""Actions that are choices: one, or several at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybridppo.spaces.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor

ROW_OF_A_VECTOR, FEW = 16, 512
"""Rows of at least the first size are vectorised without transposing. Up to the second number of logits in all,
transposing costs more than it gains."""


class Categorical:
    """`n` choices numbered from `start`, for `Discrete` spaces. Outputs are logits `[..., n]`.

    Args:
        n: number of choices.
        start: number of the first choice.
        dtype: type of the space.
    """

    action_shape: tuple[int, ...] = ()
    action_dtype = np.int64
    free_size = 0

    def __init__(self, n: int, start: int = 0, dtype: Any = np.int64) -> None:
        self.output_size = self.noise_size = self.mask_size = n
        self.start, self.dtype = start, np.dtype(dtype)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard Gumbel noise, `[*shape, n]`."""
        return gumbel(generator, (*shape, self.output_size))

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Gumbel-max: `argmax(logits + gumbel)` is distributed as `softmax(logits)`."""
        actions: Array = (outputs + noise).argmax(-1)
        return actions

    def mode(self, outputs: Array) -> Array:
        """The largest logit."""
        actions: Array = outputs.argmax(-1)
        return actions

    def to_env(self, actions: Array) -> Array:
        """Count from the space's `start`, in the type of the space."""
        found = actions + self.start if self.start else actions
        return found if found.dtype is self.dtype else found.astype(self.dtype)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """`log p[a]`."""
        return _of_chosen(_log_softmax(outputs), actions)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`log p[a]` and `-sum_a p[a] log p[a]`."""
        log_probs = _log_softmax(outputs)
        return _of_chosen(log_probs, actions), -(log_probs.exp() * log_probs).sum(-1)


class Run(NamedTuple):
    """Neighbouring choices with equally many options, which one operation handles together."""

    num: int
    n: int
    logits: slice
    actions: slice


class MultiCategorical:
    """Several independent choices: for `MultiDiscrete`, and for `MultiBinary`, whose choices have two options each.

    Outputs are the logits of all choices in turn, `[..., sum(sizes)]`. A binary choice has two logits, although one
    would do, so that a mask can forbid either value as it does for any other choice.

    Args:
        start: number of the first option of each choice, in the shape of an action.
        sizes: number of options of each choice, in the same shape.
        dtype: type of the space.
    """

    action_dtype = np.int64
    free_size = 0

    def __init__(self, sizes: Array, start: Array, dtype: Any) -> None:
        self.sizes: list[int] = sizes.ravel().tolist()
        self.start = start if start.any() else None
        self.shape, self.dtype = sizes.shape, dtype
        self.action_shape: tuple[int, ...] = (len(self.sizes),)
        self.output_size = self.noise_size = self.mask_size = sum(self.sizes)
        self.runs = runs(self.sizes)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard Gumbel noise, `[*shape, sum(sizes)]`."""
        return gumbel(generator, (*shape, self.output_size))

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Gumbel-max for each choice."""
        return self.mode(outputs + noise)

    def mode(self, outputs: Array) -> Array:
        """The largest logit of each choice."""
        leading = outputs.shape[:-1]
        actions = np.empty((*leading, len(self.sizes)), np.int64)
        for count, n, logits, chosen in self.runs:
            outputs[..., logits].reshape(*leading, count, n).argmax(-1, out=actions[..., chosen])
        return actions

    def to_env(self, actions: Array) -> Array:
        """Count from the space's `start`, in the shape and type of the space."""
        shaped = actions.reshape(actions.shape[:-1] + self.shape)
        return (shaped if self.start is None else shaped + self.start).astype(self.dtype, copy=False)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """A sum over the choices, which are independent."""
        found = [_of_chosen(table, chosen).sum(-1) for table, chosen in self._tables(outputs, actions)]
        return sum(found[1:], found[0])

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the choices."""
        log_probs, entropies = [], []
        for table, chosen in self._tables(outputs, actions):
            log_probs.append(_of_chosen(table, chosen).sum(-1))
            entropies.append(-(table.exp() * table).sum((-1, -2)))
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])

    def _tables(self, outputs: Tensor, actions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each run, the log-probabilities `[..., count, n]` and the chosen options `[..., count]`."""
        for count, n, logits, chosen in self.runs:
            table = outputs[..., logits].reshape(*outputs.shape[:-1], count, n)
            yield _log_softmax(table), actions[..., chosen]


def _log_softmax(logits: Tensor) -> Tensor:
    """`logits.log_softmax(-1)`. On a CPU, many short rows are several times as fast if they are transposed first."""
    if logits.is_cpu and logits.shape[-1] < ROW_OF_A_VECTOR and logits.numel() > FEW:
        return logits.movedim(-1, 0).contiguous().log_softmax(0).movedim(0, -1)
    return logits.log_softmax(-1)


def _of_chosen(log_probs: Tensor, actions: Tensor) -> Tensor:
    """Select from `[..., n]` the number of each action, `[...]`."""
    return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def runs(sizes: Sequence[int]) -> list[Run]:
    """The runs of equal sizes."""
    found, logit, action = [], 0, 0
    for n, group in groupby(sizes):
        count = len(list(group))
        found.append(Run(count, n, slice(logit, logit + count * n), slice(action, action + count)))
        logit, action = logit + count * n, action + count
    return found


def gumbel(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Standard Gumbel noise."""
    exponential = generator.standard_exponential(shape, dtype=np.float32)
    # An exact zero would be an infinite Gumbel: not wrong, but its logarithm would warn.
    return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))
