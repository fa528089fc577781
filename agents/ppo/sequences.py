"""How a rollout becomes a batch: row by row, or in sequences for recurrent networks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch, minibatches_of, of_minibatches, orders_on, sums_among
from hybridppo.agents.ppo.loss import advantage_sums, normalize
from hybridppo.agents.ppo.stacked_rows import StackedRows
from hybridppo.networks.recurrent import RecurrentNetwork, Segments
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.system.devices import sent

Flags = NDArray[np.bool_]

EVERY = slice(None)
STACKS_AT_ONCE = 256
"""Stacks of frames in a pass without gradient."""


class Rows(nn.Module):
    """Learns from single rows, in any order."""

    def fit(self, num_columns: int) -> None:
        """Do nothing: no state is kept between rollouts."""

    def values(
        self, backend: Any, observations: Any, finals: Tensor, rollout: Rollout, columns: slice = EVERY
    ) -> tuple[Tensor, Tensor]:
        """The critic's values `[T + 1, N]` and `[K]`, without gradient, in one batched pass.

        Args:
            backend: the backend with the critic.
            observations: `[T + 1, N, *row]`, or `StackedRows` of that shape.
            finals: `[K, *row]`, the final observations.
            rollout: the rollout.
            columns: its columns among those of all parts.
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
        """The rows that are steps, from all rows `[T * N, ...]` of a rollout."""
        return rows if len(rollout.valid_rows) == len(rows.returns) else rows.gather(rollout.valid_rows)

    def learned(self) -> None:
        """Do nothing: no state is kept between rollouts."""


@dataclass(frozen=True)
class SequenceBatch:
    """`S` sequences of `L` consecutive steps, time-major, and the states before their first steps.

    The last sequences of a rollout may be shorter. Missing rows, and rows that are not steps, are not valid.
    """

    axis: ClassVar[int] = 1
    """As `Batch.axis`."""

    rows: Batch
    """`[L, S, ...]` each."""
    actor_states: Tensor
    """`[S, state]`."""
    critic_states: Tensor
    """`[S, state]`."""
    starts: Flags
    """`[L, S]`, whether an observation is the first of its episode. On the host, as `valid`."""
    valid: Flags
    """`[L, S]`, which rows are steps."""

    def __len__(self) -> int:
        return len(self.actor_states)

    def most_minibatches(self, normalizes: bool) -> int:
        """The largest number of minibatches."""
        return len(self)

    def gather(self, order: Tensor) -> "SequenceBatch":
        """The sequences at indices `[M]`, copied."""
        on_host = order.tolist()  # waits for the device
        return SequenceBatch(
            self.rows.map(lambda tensor: tensor.index_select(1, order)),
            self.actor_states.index_select(0, order),
            self.critic_states.index_select(0, order),
            self.starts[:, on_host],
            self.valid[:, on_host],
        )

    def orders(self, generator: np.random.Generator, epochs: int) -> Tensor:
        """As `Batch.orders`, of sequences."""
        return orders_on(self.actor_states.device, generator, len(self), epochs)

    def explained_variance(self) -> Tensor:
        """As `Batch.explained_variance`."""
        return self.steps().explained_variance()

    def sums(self, orders: Tensor, sizes: Sequence[int]) -> Tensor:
        """As `Batch.sums`, over the steps."""
        valid = sent(self.valid, orders.device)
        return torch.cat([of_minibatches(order[None], sizes, partial(self._sums, valid)) for order in orders])

    def _sums(self, valid: Tensor, sequences: Tensor) -> Sequence[Any]:
        advantages, counted = self._in_minibatches(valid, sequences[0])
        return [part[None] for part in advantage_sums(advantages, counted=counted)]

    def _in_minibatches(self, valid: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """The advantages of `[M, B]` sequences, `[M, L * B]`, and which are steps."""
        # [L, M, B] -> [M, L * B]
        advantages, counted = (
            table[:, sequences].transpose(0, 1).flatten(1) for table in (self.rows.advantages, valid)
        )
        return advantages, counted

    def weighed(
        self, orders: Tensor, sizes: Sequence[int], normalizes: bool, sums: Tensor | None = None
    ) -> "Sequence[SequenceBatch]":
        """As `Batch.weighed`; only steps are normalised."""
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
        """The same batch with other columns `[B]` of its steps."""
        # A batch of one sequence may be a transposed view, whose strides `view` below could not take.
        columns = [self.rows.returns.new_zeros(self.rows.returns.shape) for _ in range(4)]
        for column, of_steps in zip(columns, (log_probs, values, advantages, returns), strict=True):
            column.view(-1)[self._places_of_steps] = of_steps
        return replace(self, rows=Batch(self.rows.observations, self.rows.actions, *columns))

    def with_old_outputs(self, outputs: Tensor) -> "SequenceBatch":
        """As `Batch.with_old_outputs`."""
        return replace(self, rows=replace(self.rows, old_outputs=outputs))

    def split(self, sizes: Sequence[int]) -> "Iterator[SequenceBatch]":
        """Parts of so many sequences, as views."""
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

    @property
    def actions(self) -> Tensor:
        """`[L, S, *action]`."""
        return self.rows.actions

    def outputs(self, actor: RecurrentNetwork) -> Tensor:
        """As `Batch.outputs`, `[L, S, outputs]`; gradients reach back to the first step of each sequence."""
        return actor.of_sequences(self.rows.observations, self.actor_states, self.segments)

    def values_by(self, critic: RecurrentNetwork) -> Tensor:
        """As `Batch.values_by`, `[L, S]`."""
        return critic.of_sequences(self.rows.observations, self.critic_states, self.segments).squeeze(-1)

    def made(self) -> "SequenceBatch":
        """As `Batch.made`; there are no stacks of frames."""
        return self

    def some(self, least: int) -> "SequenceBatch":
        """As `Batch.some`, so many sequences."""
        return self.gather(torch.arange(least, device=self.actor_states.device) % len(self))

    def map(self, function: Callable[[Tensor], Tensor]) -> "SequenceBatch":
        """As `Batch.map`, of rows and states."""
        states = function(self.actor_states), function(self.critic_states)
        return SequenceBatch(self.rows.map(function), *states, self.starts, self.valid)

    def steps(self) -> Batch:
        """The steps, `[B, ...]`."""
        return self.rows.map(self.only_steps)

    def only_steps(self, tensor: Tensor) -> Tensor:
        """The steps of `[L, S, ...]`, `[B, ...]`."""
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
    """Learns from sequences of consecutive steps, in any order; the critic's state is kept between rollouts.

    Before each sequence, the actor's state is the one that acted. The critic's is from its pass over the rollout, which
    begins where the pass over the last rollout ended.
    """

    critic_state: Tensor

    def __init__(self, memory: MemoryLayout) -> None:
        super().__init__()
        self._length, self._memory = memory.sequence_length, memory
        # A buffer, so that it is moved and saved.
        self.register_buffer("critic_state", torch.zeros(0, memory.state_size))
        self._critic_states = self._next = self.critic_state

    def fit(self, num_columns: int) -> None:
        """Make room for the states of `N` columns, if there is none yet."""
        if len(self.critic_state) != num_columns:
            self.critic_state = self.critic_state.new_zeros((num_columns, self._memory.state_size))
        self._next = self.critic_state.clone()

    @torch.no_grad()
    def values(
        self, backend: Any, observations: Tensor, finals: Tensor, rollout: Rollout, columns: slice = EVERY
    ) -> tuple[Tensor, Tensor]:
        """As `Rows.values`, sequence by sequence in the order of time; call `batch` with the same rollout next."""
        starts, num_rows, state = _starts(rollout), len(observations), self.critic_state[columns]
        # The last observation is seen with the state after the last step; if it begins an episode, its value is not
        # used. If agents take turns, it may have been acted on.
        ended = (rollout.terminated | rollout.truncated)[-1:]
        starts = torch.cat((starts, torch.zeros_like(ended) if rollout.turns is None else ended))
        values, after, firsts = [], [], []
        critic = backend.critic
        for first in range(0, num_rows, self._length):
            part = slice(first, first + self._length)
            firsts.append(state)
            of_part, states = critic(observations[part], state, starts[part])  # [T, B, 1] and [T, B, state]
            values.append(of_part.squeeze(-1))
            after.append(states)
            state = states[-1]
        states = torch.cat(after)
        self._critic_states = torch.cat(firsts[: self._memory.num_sequences(num_rows - 1)])
        if rollout.turns is None:
            self._next[columns] = states[num_rows - 2]
        else:  # after the last turn of each column
            last = (rollout.turns - 1).clamp(min=0)[..., None].expand(1, *states.shape[1:])
            after_turns = states.gather(0, last)[0]
            self._next[columns] = torch.where(rollout.turns[0, :, None] > 0, after_turns, self.critic_state[columns])
        return torch.cat(values), self._final_values(critic, finals, states, rollout)

    def _final_values(self, critic: Any, finals: Tensor, states: Tensor, rollout: Rollout) -> Tensor:
        if not len(finals):
            return finals.new_zeros(0, dtype=torch.float32)
        before = states.flatten(0, 1).index_select(0, rollout.final_rows)
        goes_on = torch.zeros((1, len(finals)), dtype=torch.bool, device=finals.device)
        values: Tensor = critic(finals.unsqueeze(0), before, goes_on)[0]
        return values[0, :, 0]

    def batch(self, rows: Batch, rollout: Rollout) -> SequenceBatch:
        """Every column of the rollout cut into sequences; those without steps are left out."""
        num_steps, num_envs = rollout.rewards.shape
        assert rollout.states is not None  # from a sampler that knows the layout of the state
        missing = -num_steps % self._length

        def cut(tensor: Tensor) -> Tensor:
            """`[T * N, ...] -> [L, S, ...]` with `S = T / L * N`."""
            if missing:
                tensor = torch.cat((tensor, tensor.new_zeros((missing * num_envs, *tensor.shape[1:]))))
            tensor = tensor.view(-1, self._length, num_envs, *tensor.shape[1:])
            return tensor.transpose(0, 1).flatten(1, 2)

        valid = _starts(rollout).new_zeros(num_steps * num_envs).index_fill_(0, rollout.valid_rows, True)
        # Waits for the device, so that minibatches need not.
        starts, valid = torch.tensor(torch.stack((_starts(rollout).flatten(), valid)).tolist())
        sequences = SequenceBatch(
            rows.map(cut), rollout.states.flatten(0, 1), self._critic_states, cut(starts).numpy(), cut(valid).numpy()
        )
        # A minibatch without steps would have no mean.
        with_steps = np.flatnonzero(sequences.valid.any(0))
        if len(with_steps) == len(sequences):
            return sequences
        return sequences.gather(sent(with_steps, rows.returns.device))

    def learned(self) -> None:
        """Let the next rollout continue where this one ended."""
        self.critic_state.copy_(self._next)


def _starts(rollout: Rollout) -> Tensor:
    assert rollout.starts is not None  # from a sampler that knows the layout of the state
    return rollout.starts


def cut_for(memory: MemoryLayout | None) -> Rows | Sequences:
    """How rollouts become batches."""
    return Rows() if memory is None else Sequences(memory)
