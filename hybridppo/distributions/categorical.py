"""Actions that are choices: one, or several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybridppo.distributions.base import Backward, Distribution, as_dtype, namespace_of
from hybridppo.spaces.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor

ROW_OF_A_VECTOR, FEW = 16, 512
"""Rows of at least the first size are vectorised without transposing. Up to the second number of logits in all,
transposing costs more than it gains."""


class Run(NamedTuple):
    """Neighbouring choices with equally many options, which one operation handles together."""

    num: int
    n: int
    logits: slice
    actions: slice


class Categorical(Distribution):
    """A choice for `Discrete` spaces, or several independent ones, for `MultiDiscrete` and `MultiBinary`.

    Outputs are the logits of all choices in turn, `[..., sum(sizes)]`. A binary choice has two logits, although one
    would do, so that a mask can forbid either value as it does for any other choice.

    Args:
        sizes: number of options; of several choices, an array in the shape of an action.
        start: number of the first option, likewise.
        dtype: type of the space.
    """

    action_dtype = np.int64
    words_per_number = 1

    def __init__(self, sizes: Any, start: Any = 0, dtype: Any = np.int64) -> None:
        self.shape, self.dtype = np.shape(sizes), np.dtype(dtype)
        self.sizes: list[int] = np.ravel(sizes).tolist()
        self.start: Any = np.asarray(start, np.int64)
        self._starts_at_zero = not self.start.any()
        self._is_one = not self.shape
        self._axes = -1 if self._is_one else (-1, -2)
        self.action_shape: tuple[int, ...] = () if self._is_one else (len(self.sizes),)
        self.output_size = self.noise_size = self.mask_size = sum(self.sizes)
        self.runs = runs(self.sizes)
        self._options = [np.arange(run.n)[:, None] for run in self.runs]

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard Gumbel noise, `[*shape, sum(sizes)]`."""
        exponential = generator.standard_exponential((*shape, self.output_size), dtype=np.float32)
        # An exact zero would be an infinite Gumbel: not wrong, but its logarithm would warn.
        return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))

    def noise_of(self, first: Tensor, second: Tensor) -> Tensor:
        """Standard Gumbel noise, each from one uniform number."""
        return -(-first.log()).log()

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Gumbel-max for each choice: `argmax(logits + gumbel)` is distributed as `softmax(logits)`."""
        return self.mode(outputs + noise)

    def mode(self, outputs: Any) -> Any:
        """The largest logit of each choice."""
        if self._is_one:
            return outputs.argmax(-1)
        # [..., num * n] -> [..., num, n] -> [..., num]
        tables = [outputs[..., run.logits].reshape(*outputs.shape[:-1], run.num, run.n) for run in self.runs]
        return namespace_of(outputs).concatenate([table.argmax(-1) for table in tables], -1)

    def to_env(self, actions: Any) -> Any:
        """Count from the space's `start`, in the shape and type of the space."""
        found = actions if self._is_one else actions.reshape(actions.shape[:-1] + self.shape)
        if not self._starts_at_zero:
            found = found + self.start
        return found if found.dtype is self.dtype else as_dtype(found, self.dtype)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`log p[a]` and `-sum_a p[a] log p[a]`, summed over the choices, which are independent."""
        log_probs, entropies = [], []
        for run, table in zip(self.runs, self._tables(outputs), strict=True):
            log_prob = _of_chosen(table, actions if self._is_one else actions[..., run.actions])
            log_probs.append(log_prob if self._is_one else log_prob.sum(-1))
            entropies.append(-(table.exp() * table).sum(self._axes))
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])

    def kl(self, old_outputs: Tensor, new_outputs: Tensor) -> Tensor:
        """`sum_a p_old[a] * (log p_old[a] - log p_new[a])`, summed over the choices."""
        pairs = zip(self._tables(old_outputs), self._tables(new_outputs), strict=True)
        found = [(old.exp() * (old - new)).sum(self._axes) for old, new in pairs]
        return sum(found[1:], found[0])

    def _tables(self, outputs: Tensor) -> Iterator[Tensor]:
        """The log-probabilities of each run, `[..., num, n]`; of one choice, `[..., n]`."""
        if self._is_one:
            yield _log_softmax(outputs)
            return
        for num, n, logits, _ in self.runs:
            yield _log_softmax(outputs[..., logits].reshape(*outputs.shape[:-1], num, n))

    def gradient(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array, Backward]:
        """As in the base; the softmaxes of a run are computed along one axis."""
        if self._is_one:
            log_prob, entropy, backward = _softmax_gradient(outputs, actions, self._options[0])
            return log_prob, entropy, lambda d_log_prob, d_entropy, _: backward(d_log_prob, d_entropy)
        found = []
        for (num, n, logits, chosen), options in zip(self.runs, self._options, strict=True):
            # [num * n, B] -> [n, num, B]
            table = outputs[logits].reshape(num, n, -1).swapaxes(0, 1)
            found.append(_softmax_gradient(table, actions[chosen], options[:, None]))

        def backward_of_runs(d_log_prob: Array, d_entropy: Any, d_free: Array) -> Array:
            d_logits = np.empty((self.output_size, len(d_log_prob)), np.float32)
            for (num, n, logits, _), (_, _, backward) in zip(self.runs, found, strict=True):
                d_logits[logits] = backward(d_log_prob, d_entropy).swapaxes(0, 1).reshape(num * n, -1)
            return d_logits

        log_prob, entropy = np.zeros(outputs.shape[1], np.float32), np.zeros(outputs.shape[1], np.float32)
        for log_probs, entropies, _ in found:
            log_prob += log_probs.sum(0)
            entropy += entropies.sum(0)
        return log_prob, entropy, backward_of_runs


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
        num = len(list(group))
        found.append(Run(num, n, slice(logit, logit + num * n), slice(action, action + num)))
        logit, action = logit + num * n, action + num
    return found


def _softmax_gradient(
    logits: Array, actions: Array, options: Array
) -> tuple[Array, Array, Callable[[Array, Any], Array]]:
    """Log-probabilities of the chosen options `[..., B]`, entropies, and a function for the gradient of the logits.

    Args:
        logits: `[n, ..., B]`; overwritten.
        actions: `[..., B]`.
        options: the numbers of the options, `[n, ..., 1]`.
    """
    logits -= np.maximum.reduce(logits)
    exponentials = np.exp(logits)
    totals = np.add.reduce(exponentials)
    log_probs, probs = logits - np.log(totals), exponentials / totals
    chosen = options == actions
    entropy: Array = -np.add.reduce(probs * log_probs)

    def backward(d_log_prob: Array, d_entropy: Any) -> Array:
        # d log p[a] / d logit[k] = [k = a] - p[k];  d H / d logit[k] = -p[k] * (log p[k] + H)
        d_logits: Array = d_log_prob * (chosen - probs)
        if d_entropy.ndim or d_entropy:
            d_logits -= d_entropy * probs * (log_probs + entropy)
        return d_logits

    return np.add.reduce(chosen * log_probs), entropy, backward
