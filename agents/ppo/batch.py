"""The batch that PPO learns from, and how epochs shuffle it and cut it into minibatches."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.loss import advantage_sums, explained_variance, normalize
from hybridppo.networks.recurrent import Segments
from hybridppo.rollouts.rollout import Columns
from hybridppo.system.devices import sent

STATES = ("actor_states", "critic_states")
"""Columns without an axis of time."""
FLAGS = ("starts", "valid")
"""Arrays on the host, by which sequences are cut."""


class Batch(Columns):
    """The steps of one or more rollouts, `[B, ...]`: columns by name, and more that a subclass of PPO adds.

    For recurrent networks, columns have an axis of time: they are `S` sequences of `L` consecutive steps, `[L, S,
    ...]`. Minibatches then have sequences in place of rows. The last sequences of a rollout may be shorter. For the
    NumPy backend, minibatches have arrays in place of tensors.
    """

    observations: Any
    """`[B, *row]`."""
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
    raw_observations: Tensor | None = None
    """For a custom loss, `[B, *row]`: the observations before they were normalised, if they are."""
    counted: Tensor | None = None
    """In a padded minibatch, `[B]` bool: which rows count."""
    actor_states: Any = None
    """With an axis of time, `[S, state]`: the actor's states before the sequences."""
    critic_states: Any = None
    """The critic's, `[S, state]`."""
    starts: NDArray[np.bool_] | None = None
    """With an axis of time, `[L, S]` on the host: whether an observation is the first of its episode."""
    valid: NDArray[np.bool_] | None = None
    """With an axis of time, `[L, S]` on the host: which rows are steps."""

    def __init__(self, **columns: Any) -> None:
        vars(self).update(columns)

    @classmethod
    def joined(cls, parts: "Sequence[Batch]") -> "Batch":
        """The rows of several batches in one."""
        of_each = [part.columns() for part in parts]
        return cls(**{name: torch.cat([columns[name] for columns in of_each]) for name in of_each[0]})

    def columns(self) -> dict[str, Any]:
        """The columns by name, without the arrays on the host."""
        return {name: column for name, column in super().columns().items() if name not in FLAGS}

    def __len__(self) -> int:
        return int(self.log_probs.shape[-1])

    @property
    def device(self) -> torch.device:
        """The device of all columns."""
        return self.log_probs.device

    def axis_of(self, name: str) -> int:
        """The axis of a column along which minibatches are cut."""
        return 0 if self.valid is None or name in STATES else 1

    def most_minibatches(self, normalizes: bool) -> int:
        """The largest number of minibatches: a single row has no standard deviation to normalise by."""
        return min(len(self), max(1, len(self) // 2)) if normalizes and self.valid is None else len(self)

    def outputs(self, network: nn.Module, states: Any) -> Tensor:
        """The outputs of a network, `[B, outputs]`, or `[L, S, outputs]`; gradients reach back to the states."""
        of_sequences: Any = None if self.valid is None else network.of_sequences
        found: Tensor
        if of_sequences is None:
            found = network(self.observations)
        else:
            found = of_sequences(self.observations, states, self._segments)
        return found

    def clip_range(self, clip_range: Any) -> Any:
        """The clip range of the rows: a number, or `[B]` with a pool."""
        return clip_range if self.shares is None else clip_range * self.shares / self.weights

    def steps(self) -> "Batch":
        """The rows that are steps, `[B, ...]`."""
        if self.valid is None:
            return self
        columns = {name: column for name, column in self.columns().items() if name not in STATES}
        return Batch(**{name: self.only_steps(column) for name, column in columns.items()})

    def only_steps(self, tensor: Tensor) -> Tensor:
        """The rows of a column that are steps, `[B, ...]`."""
        if self.valid is None:
            return tensor
        flat = tensor.flatten(0, 1)
        return flat if self.valid.all() else flat.index_select(0, self._places_of_steps)

    @cached_property
    def _places_of_steps(self) -> Tensor:
        assert self.valid is not None
        return sent(np.flatnonzero(self.valid), self.device)

    @cached_property
    def _valid_there(self) -> Tensor:
        """`valid` on the device of all columns."""
        assert self.valid is not None
        return sent(self.valid, self.device)

    @cached_property
    def _segments(self) -> Segments:
        """The sequences cut at episode starts."""
        assert self.starts is not None
        return Segments(self.starts, self.device)

    def explained_variance(self) -> Tensor:
        """The explained variance of the returns by the values."""
        return explained_variance(values=self.only_steps(self.values), returns=self.only_steps(self.returns))

    def gather(self, order: Tensor) -> "Batch":
        """The rows, or sequences, at indices `[M]`, copied."""
        taken = {name: column.index_select(self.axis_of(name), order) for name, column in self.columns().items()}
        if self.valid is not None:
            on_host = order.tolist()  # waits for the device
            taken |= {name: getattr(self, name)[:, on_host] for name in FLAGS}
        return self.with_columns(**taken)

    def split(self, sizes: Sequence[int]) -> "Iterator[Batch]":
        """Parts of these sizes, as views."""
        parts = {name: column.split(list(sizes), self.axis_of(name)) for name, column in self.columns().items()}
        if self.valid is not None:
            parts |= {name: np.split(getattr(self, name), np.cumsum(sizes)[:-1], 1) for name in FLAGS}
        cut = zip(*parts.values(), strict=True)
        return (Batch(**dict(zip(parts, part, strict=True))) for part in cut)

    def some(self, least: int) -> "Batch":
        """A batch of `least` rows, or sequences, which repeat."""
        return self.gather(torch.arange(least, device=self.device) % len(self))

    def padded(self, size: int) -> "Batch":
        """A batch of `size` rows, of which only those of this one count."""
        return self.some(size).with_columns(counted=torch.arange(size, device=self.device) < len(self))

    def orders(self, generator: np.random.Generator, epochs: int) -> Tensor:
        """A shuffle of the rows, or sequences, for each epoch, `[E, B]`, copied to the device without a wait."""
        return sent(np.stack([generator.permutation(len(self)) for _ in range(epochs)]), self.device)

    def sums(self, orders: Tensor, sizes: Sequence[int]) -> Tensor:
        """`advantage_sums` of every minibatch, `[E, M, 4]`; arguments as of `epochs`."""
        if len(self._at_once(orders)) > 1:
            return torch.cat([self.sums(some, sizes) for some in self._at_once(orders)])
        columns: dict[int, Tensor] = {}
        for numbers, advantages in self._advantages(orders, sizes):
            parts = advantage_sums(**advantages)
            like = parts[1].squeeze(-1)
            found = [part.squeeze(-1) if isinstance(part, Tensor) else torch.full_like(like, part) for part in parts]
            columns |= dict(zip(numbers, torch.stack(found, -1).unbind(1), strict=True))
        return torch.stack([columns[number] for number in range(len(sizes))], 1)

    def _at_once(self, orders: Tensor) -> Sequence[Tensor]:
        """The epochs that are normalised at once: of sequences each alone, because sums over time round differently."""
        return [orders] if self.valid is None else torch.split(orders, 1)

    def epochs(
        self, orders: Tensor, sizes: Sequence[int], normalizes: bool, sums: Tensor | None = None
    ) -> "Iterator[Batch]":
        """For each epoch, the batch in its order, with the advantages to learn from.

        Args:
            orders: order of the rows, or sequences, in each epoch, `[E, B]`.
            sizes: sizes of the minibatches.
            normalizes: whether advantages are normalised within each minibatch.
            sums: `sums` of whole minibatches, if these are shards of them.
        """
        weighed = self.advantages if self.weights is None else self.weights * self.advantages
        if not normalizes:
            yield from (self.with_columns(advantages=weighed).gather(order) for order in orders)
            return
        others = self.with_columns(advantages=None)
        parts = self._at_once(orders)
        for some, of_some in zip(parts, repeat(None) if sums is None else sums.chunk(len(parts)), strict=False):
            for order, advantages in zip(some, self._normalized(some, sizes, of_some), strict=True):
                yield others.gather(order).with_columns(advantages=advantages)

    def _normalized(self, orders: Tensor, sizes: Sequence[int], sums: Tensor | None) -> Tensor:
        """The advantages in these orders, normalised within each minibatch, `[E, B]`; with time, `[E, L, S]`."""
        parts: dict[int, Tensor] = {}
        for numbers, advantages in self._advantages(orders, sizes):
            whole = None if sums is None else torch.stack([sums[:, number] for number in numbers], 1)
            found = normalize(**advantages, sums=None if whole is None else whole.unsqueeze(-2).unbind(-1))
            if self.valid is not None:
                found = found.view(*found.shape[:2], len(self.valid), -1)  # [E, M, L * b] -> [E, M, L, b]
            parts |= dict(zip(numbers, found.unbind(1), strict=True))
        return torch.cat([parts[number] for number in range(len(sizes))], -1)

    def _advantages(self, orders: Tensor, sizes: Sequence[int]) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
        """For each size of minibatches, their numbers (`M`), and the arguments of `normalize`, `[E, M, b]` each."""
        columns = {
            "advantages": self.advantages,
            "weights": self.weights,
            "counted": None if self.valid is None else self._valid_there,
        }
        for numbers, rows in _minibatches_of(orders, sizes):
            yield (
                numbers,
                {
                    name: None if column is None else self._in_minibatches(column, rows)
                    for name, column in columns.items()
                },
            )

    def _in_minibatches(self, column: Tensor, rows: Tensor) -> Tensor:
        """A column at indices `[E, M, b]`; with an axis of time, `[E, M, L * b]`."""
        return column[rows] if self.valid is None else column[:, rows].movedim(0, -2).flatten(-2)


def _minibatches_of(orders: Tensor, sizes: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
    """For each size of minibatches, their numbers (`M`), and the indices of their rows `[E, M, b]`."""
    if len(set(sizes)) == 1:
        yield range(len(sizes)), orders.view(len(orders), len(sizes), -1)
        return
    parts = torch.split(orders, list(sizes), -1)
    for size in sorted(set(sizes)):
        numbers = [number for number, each in enumerate(sizes) if each == size]
        yield numbers, torch.stack([parts[number] for number in numbers], -2)
