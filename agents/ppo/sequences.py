"""How a rollout is learned from: row by row, or, where there is a memory, in sequences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch, minibatches_of, of_minibatches, orders_on, sums_among
from hybridppo.agents.ppo.loss import advantage_sums, normalize
from hybridppo.agents.ppo.stacked_rows import StackedRows
from hybridppo.networks.recurrent import Segments
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.system.accelerator import sent

Flags = NDArray[np.bool_]

EVERY = slice(None)
STACKS_AT_ONCE = 256
"""Stacks of frames that are made for a pass without a gradient."""


class Rows(nn.Module):
    """Each row by itself, in any order."""

    def fit(self, num_columns: int) -> None:
        """Nothing is carried from rollout to rollout."""

    def values(
        self, backend: Any, observations: Any, finals: Tensor, rollout: Rollout, columns: slice = EVERY
    ) -> tuple[Tensor, Tensor]:
        """The critic's values, without a gradient: `[T + 1, N]` and `[K]`, in one batched pass.

        Args:
            backend: has the critic.
            observations: `[T + 1, N, *row]`, or as many `StackedRows`.
            finals: `[K, *row]`, the final observations.
            rollout: that they are of.
            columns: which it has, of those of all parts.
        """
        num_steps, num_envs = observations.shape[:2]
        if isinstance(observations, StackedRows):
            stacks = observations.flatten(0, 1)
            *starts, last = range(0, len(stacks), STACKS_AT_ONCE)
            parts = [backend.values(stacks[start : start + STACKS_AT_ONCE].made()) for start in starts]
            parts.append(backend.values(torch.cat((stacks[last:].made(), finals))))
            values, final_values = torch.cat(parts).tensor_split([num_steps * num_envs])
            return values.view(num_steps, num_envs), final_values
        # [T + 1, N, obs] and [K, obs] -> [(T + 1) * N + K, obs]
        seen = torch.cat((observations.flatten(0, 1), finals))
        values, final_values = backend.values(seen).tensor_split([num_steps * num_envs])
        return values.view(num_steps, num_envs), final_values

    def batch(self, rows: Batch, rollout: Rollout) -> Batch:
        """What epochs go over, of all rows `[T * N, ...]` of a rollout: those that are steps."""
        return rows if len(rollout.valid_rows) == len(rows.returns) else rows.gather(rollout.valid_rows)

    def learned(self) -> None:
        """The update of the rollout is over: nothing is carried on."""


@dataclass(frozen=True)
class SequenceBatch:
    """`S` sequences of `L` steps in a row, time-major, and the states before their first steps.

    The last sequences of a rollout may be shorter; what is missing of them, and rows that are no steps, are not valid.
    """

    rows: Batch
    """`[L, S, ...]` each."""
    actor_states: Tensor
    """`[S, state]`."""
    critic_states: Tensor
    """`[S, state]`."""
    starts: Flags
    """`[L, S]`, whether an observation is the first of its episode. On the host, like the next."""
    valid: Flags
    """`[L, S]`, which rows count."""

    def __len__(self) -> int:
        return len(self.actor_states)

    def most_minibatches(self, normalizes: bool) -> int:
        """Into how many it may be cut."""
        return len(self)

    def gather(self, order: Tensor) -> "SequenceBatch":
        """The sequences at `[M]` indices, copied."""
        on_host = order.tolist()  # waits for the device
        return SequenceBatch(
            self.rows.map(lambda tensor: tensor.index_select(1, order)),
            self.actor_states.index_select(0, order),
            self.critic_states.index_select(0, order),
            self.starts[:, on_host],
            self.valid[:, on_host],
        )

    @property
    def num_steps(self) -> int:
        """How many of its rows count."""
        return int(self.valid.sum())

    def orders(self, generator: np.random.Generator, epochs: int) -> Tensor:
        """As `Batch.orders`, of the sequences."""
        return orders_on(self.actor_states.device, generator, len(self), epochs)

    def explained_variance(self) -> Tensor:
        """As `Batch.explained_variance`."""
        return self.steps().explained_variance()

    def sums(self, orders: Tensor, sizes: Sequence[int]) -> Tensor:
        """As `Batch.sums`, of the rows that count."""
        valid = sent(self.valid, orders.device)
        return torch.cat([of_minibatches(order[None], sizes, partial(self._sums, valid)) for order in orders])

    def _sums(self, valid: Tensor, sequences: Tensor) -> Sequence[Any]:
        advantages, counted = self._in_minibatches(valid, sequences[0])
        return [part[None] for part in advantage_sums(advantages, counted=counted)]

    def _in_minibatches(self, valid: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """The advantages of `[M, B]` sequences, `[M, L * B]`, and which count."""
        # [L, M, B] -> [M, L * B]
        advantages, counted = (
            table[:, sequences].transpose(0, 1).flatten(1) for table in (self.rows.advantages, valid)
        )
        return advantages, counted

    def weighed(
        self, orders: Tensor, sizes: Sequence[int], normalizes: bool, sums: Tensor | None = None
    ) -> "Sequence[SequenceBatch]":
        """As `Batch.weighed`. Only rows that count are normalised."""
        parts = [None] * len(orders) if sums is None else sums.tensor_split(len(orders))
        pairs = zip(orders, parts, strict=True)
        return [self._normalized(order, sizes, part) if normalizes else self for order, part in pairs]

    def _normalized(self, order: Tensor, sizes: Sequence[int], sums: Tensor | None) -> "SequenceBatch":
        advantages = torch.empty_like(self.rows.advantages)
        valid = sent(self.valid, order.device)
        for numbers, sequences in minibatches_of(order, sizes):
            of_rows, counted = self._in_minibatches(valid, sequences)
            whole = sums_among(sums, numbers)
            found = normalize(of_rows, counted=counted, sums=whole and [part[0] for part in whole])
            advantages[:, sequences] = found.view(len(found), len(advantages), -1).transpose(0, 1)
        return replace(self, rows=replace(self.rows, advantages=advantages))

    def with_columns(self, log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor) -> "SequenceBatch":
        """The same steps with other numbers beside them, `[B]` each."""
        columns = [torch.zeros_like(self.rows.returns) for _ in range(4)]
        for column, of_steps in zip(columns, (log_probs, values, advantages, returns), strict=True):
            column.view(-1)[self._places_of_steps] = of_steps
        return replace(self, rows=Batch(self.rows.observations, self.rows.actions, *columns))

    def with_old_outputs(self, outputs: Tensor) -> "SequenceBatch":
        """As `Batch.with_old_outputs`."""
        return replace(self, rows=replace(self.rows, old_outputs=outputs))

    def split(self, sizes: Sequence[int]) -> "Iterator[SequenceBatch]":
        """Cut into parts of so many sequences, as views."""
        end = 0
        for size in sizes:
            part = slice(end, end + size)
            end += size
            yield SequenceBatch(
                self.rows.map(_columns(part)),
                self.actor_states[part],
                self.critic_states[part],
                self.starts[:, part],
                self.valid[:, part],
            )

    def made(self) -> "SequenceBatch":
        """As `Batch.made`: rows with a memory are no stacks."""
        return self

    def some(self, least: int) -> "SequenceBatch":
        """As `Batch.some`, so many sequences."""
        return self.gather(torch.arange(least, device=self.actor_states.device) % len(self))

    def map(self, function: Callable[[Tensor], Tensor]) -> "SequenceBatch":
        """As `Batch.map`, of rows and states."""
        states = function(self.actor_states), function(self.critic_states)
        return SequenceBatch(self.rows.map(function), *states, self.starts, self.valid)

    def steps(self) -> Batch:
        """The rows that count, `[B, ...]`."""
        return self.rows.map(self.only_steps)

    def only_steps(self, tensor: Tensor) -> Tensor:
        """Of `[L, S, ...]` the rows that count, `[B, ...]`."""
        flat = tensor.flatten(0, 1)
        return flat if self.valid.all() else flat.index_select(0, self._places_of_steps)

    @cached_property
    def _places_of_steps(self) -> Tensor:
        return sent(np.flatnonzero(self.valid), self.actor_states.device)

    @cached_property
    def segments(self) -> Segments:
        """The sequences cut at episode starts."""
        return Segments(self.starts, self.actor_states.device)


def _columns(part: slice) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor[:, part]


class Sequences(nn.Module):
    """Sequences of steps in a row, in any order; the critic's state is carried from rollout to rollout.

    Before each sequence, the actor's state is that which acted. The critic's is from its pass over the rollout, which
    begins where the pass over the last one ended.
    """

    critic_state: Tensor

    def __init__(self, memory: MemoryLayout) -> None:
        super().__init__()
        self._length, self._memory = memory.sequence_length, memory
        # A buffer: it is moved and saved as others are.
        self.register_buffer("critic_state", torch.zeros(0, memory.state_size))
        self._critic_states = self._next = self.critic_state

    def fit(self, num_columns: int) -> None:
        """Make room for the states of `N` columns, where there is none yet."""
        if len(self.critic_state) != num_columns:
            self.critic_state = self.critic_state.new_zeros((num_columns, self._memory.state_size))
        self._next = self.critic_state.clone()

    def values(
        self, backend: Any, observations: Tensor, finals: Tensor, rollout: Rollout, columns: slice = EVERY
    ) -> tuple[Tensor, Tensor]:
        """As `Rows.values`, sequence by sequence, in the order of time; `batch` of the same rollout comes next."""
        starts, num_rows, state = _starts(rollout), len(observations), self.critic_state[columns]
        # What followed the last step is seen with what is remembered then; where it begins an episode, nobody asks.
        starts = torch.cat((starts, torch.zeros_like(starts[:1])))
        values, after, firsts = [], [], []
        for first in range(0, num_rows, self._length):
            part = slice(first, first + self._length)
            firsts.append(state)
            of_part, states = backend.recurrent_values(observations[part], state, starts[part])
            values.append(of_part)
            after.append(states)
            state = states[-1]
        states = torch.cat(after)
        self._critic_states = torch.cat(firsts[: self._memory.num_sequences(num_rows - 1)])
        self._next[columns] = states[num_rows - 2]
        return torch.cat(values), self._final_values(backend, finals, states, rollout)

    def _final_values(self, backend: Any, finals: Tensor, states: Tensor, rollout: Rollout) -> Tensor:
        if not len(finals):
            return finals.new_zeros(0, dtype=torch.float32)
        before = states.flatten(0, 1).index_select(0, rollout.final_rows)
        goes_on = torch.zeros((1, len(finals)), dtype=torch.bool, device=finals.device)
        values: Tensor = backend.recurrent_values(finals.unsqueeze(0), before, goes_on)[0][0]
        return values

    def batch(self, rows: Batch, rollout: Rollout) -> SequenceBatch:
        """Every column of the rollout cut into sequences, without those that have no step."""
        num_steps, num_envs = rollout.rewards.shape
        assert rollout.states is not None  # of a sampler that was told of the memory
        missing = -num_steps % self._length

        def cut(tensor: Tensor) -> Tensor:
            """`[T * N, ...] -> [L, S, ...]`, where `S` is `T / L * N`."""
            if missing:
                tensor = torch.cat((tensor, tensor.new_zeros((missing * num_envs, *tensor.shape[1:]))))
            tensor = tensor.view(-1, self._length, num_envs, *tensor.shape[1:])
            return tensor.transpose(0, 1).flatten(1, 2)

        valid = _starts(rollout).new_zeros(num_steps * num_envs).index_fill_(0, rollout.valid_rows, True)
        # Waits for the device; minibatches then need not.
        starts, valid = torch.tensor(torch.stack((_starts(rollout).flatten(), valid)).tolist())
        sequences = SequenceBatch(
            rows.map(cut),
            rollout.states.flatten(0, 1),
            self._critic_states,
            cut(starts).numpy(),
            cut(valid).numpy(),
        )
        # A minibatch of sequences without a step would have no mean.
        with_steps = np.flatnonzero(sequences.valid.any(0))
        if len(with_steps) == len(sequences):
            return sequences
        return sequences.gather(sent(with_steps, rows.returns.device))

    def learned(self) -> None:
        """The next rollout goes on where this one ended."""
        self.critic_state.copy_(self._next)


def _starts(rollout: Rollout) -> Tensor:
    assert rollout.starts is not None  # of a sampler that was told of the memory
    return rollout.starts


def cut_for(memory: MemoryLayout | None) -> Rows | Sequences:
    """How rollouts are learned from."""
    return Rows() if memory is None else Sequences(memory)
