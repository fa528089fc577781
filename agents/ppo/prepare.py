"""How the steps of a rollout become a batch: values, stacks of frames, and rows or sequences."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch, FrameStacks
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.errors import ConfigurationError
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.frames import FrameLayout
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.system.devices import sent

EVERY = slice(None)
STACKS_AT_ONCE = 256
"""Stacks of frames in a pass without gradient."""


def values_of_rows(
    backend: Any, observations: Tensor, finals: Tensor, stacks: FrameStacks | None
) -> tuple[Tensor, Tensor]:
    """The critic's values `[T + 1, N]` and `[K]`, without gradient, in one batched pass.

    Args:
        backend: the backend with the critic.
        observations: `[T + 1, N, *row]`; with `stacks`, the numbers of frames.
        finals: `[K, *row]`, the final observations.
        stacks: makes stacks of frames.
    """
    # [T + 1, N, obs] and [K, obs] -> [(T + 1) * N + K, obs]
    shape, rows = observations.shape[:2], observations.flatten(0, 1)
    if stacks is None:
        seen = [torch.cat((rows, finals))]
    else:
        *parts, last = torch.split(rows, STACKS_AT_ONCE)
        seen = [*map(stacks.made, parts), torch.cat((stacks.made(last), finals))]
    values, final_values = torch.cat([backend.values(part) for part in seen]).tensor_split([len(rows)])
    return values.view(shape), final_values


def rows_of(steps: Batch, rollout: Rollout) -> Batch:
    """The rows `[B, ...]` of a rollout that are steps; columns of `steps` are `[T, N, ...]`."""
    rows = steps.map(lambda column: column.flatten(0, 1))
    return rows if len(rollout.valid_rows) == len(rows) else rows.gather(rollout.valid_rows)


class CriticMemory(nn.Module):
    """The state of a recurrent critic, which is kept between rollouts.

    Before each sequence of a batch, the actor's state is the one that acted. The critic's is from its pass over the
    rollout, which begins where the pass over the last rollout ended.
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
        self, critic: Any, observations: Tensor, finals: Tensor, rollout: Rollout, columns: slice = EVERY
    ) -> tuple[Tensor, Tensor]:
        """As `values_of_rows`, sequence by sequence in the order of time; call `sequences` with the same rollout next.

        Args:
            critic: the recurrent critic.
            observations: `[T + 1, N, *row]`.
            finals: `[K, *row]`, the final observations.
            rollout: the rollout.
            columns: its columns among those of all parts.
        """
        starts, num_rows, state = _starts(rollout), len(observations), self.critic_state[columns]
        # The last observation is seen with the state after the last step; if it begins an episode, its value is not
        # used. If agents take turns, it may have been acted on.
        ended = (rollout.terminated | rollout.truncated)[-1:]
        starts = torch.cat((starts, torch.zeros_like(ended) if rollout.turns is None else ended))
        values, after, firsts = [], [], []
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
        if not len(finals):
            return torch.cat(values), finals.new_zeros(0, dtype=torch.float32)
        before = states.flatten(0, 1).index_select(0, rollout.final_rows)
        goes_on = torch.zeros((1, len(finals)), dtype=torch.bool, device=finals.device)
        return torch.cat(values), critic(finals.unsqueeze(0), before, goes_on)[0][0, :, 0]

    def sequences(self, steps: Batch, rollout: Rollout) -> Batch:
        """Every column of the rollout cut into sequences; those without steps are left out."""
        assert rollout.states is not None  # from a sampler that knows the layout of the state
        missing = -len(rollout.rewards) % self._length

        def cut(column: Tensor) -> Tensor:
            """`[T, N, ...] -> [L, S, ...]` with `S = T / L * N`."""
            if missing:
                column = torch.cat((column, column.new_zeros((missing, *column.shape[1:]))))
            # A view, whose order in memory gradients depend on.
            return column.view(-1, self._length, *column.shape[1:]).transpose(0, 1).flatten(1, 2)

        are_steps = torch.zeros_like(_starts(rollout))
        are_steps.view(-1).index_fill_(0, rollout.valid_rows, True)
        flags = torch.stack((_starts(rollout), are_steps))
        # Waits for the device, so that minibatches need not.
        starts, valid = (cut(flags).numpy() for flags in torch.tensor(flags.tolist()))
        states = {"actor_states": rollout.states.flatten(0, 1), "critic_states": self._critic_states}
        sequences = steps.map(cut).with_columns(**states, starts=starts, valid=valid)
        # A minibatch without steps would have no mean.
        with_steps = np.flatnonzero(valid.any(0))
        if len(with_steps) == len(sequences):
            return sequences
        return sequences.gather(sent(with_steps, sequences.device))

    def learned(self) -> None:
        """Let the next rollout continue where this one ended."""
        self.critic_state.copy_(self._next)


def _starts(rollout: Rollout) -> Tensor:
    assert rollout.starts is not None  # from a sampler that knows the layout of the state
    return rollout.starts


def numbers_of_frames(rollout: Rollout, num_frames: int) -> Tensor:
    """The numbers `[T + 1, N, K]` of the frames of each stack: each frame with those before it in its episode.

    Frames are numbered `[K - 1 + T + 1, N]`, those of the rollout's history first. An episode begins in the row after
    an end, and its first frame stands for those before it.
    """
    num_rows, num_envs = rollout.observations.shape[:2]
    before, device = num_frames - 1, rollout.observations.device
    rows = torch.arange(num_rows, device=device).unsqueeze(-1)
    # The row in which the episode of each row begins; -(K - 1), the start of the history, if it began earlier.
    begins = torch.full((num_rows, num_envs), -before, device=device)
    begins[1:] = torch.where(rollout.terminated | rollout.truncated, rows[1:], -before)
    begins = begins.cummax(0).values
    offsets = torch.arange(-before, 1, device=device)
    # [T + 1, N, K]: the frame of that age, or the first of the episode.
    steps = torch.maximum((rows + offsets).unsqueeze(1), begins.unsqueeze(-1))
    return (steps + before) * num_envs + torch.arange(num_envs, device=device).unsqueeze(-1)


def stacks_of(frames: Tensor, history: Tensor, layout: FrameLayout) -> FrameStacks:
    """The stacks of a rollout, from its frames `[T + 1, N, *frame]` and those before them, `[K - 1, N, *frame]`."""
    return FrameStacks(torch.cat((history, frames)).flatten(0, 1), layout)


def require_rows(config: PPOConfig, encode: ObservationEncoder) -> None:
    """Refuse hyperparameters that cannot learn from stacks of frames.

    Raises:
        ConfigurationError: with the name of the option.
    """
    for field, plain in (("recurrent", None), ("pool_size", 1)):
        value = getattr(config, field)
        if encode.frames is not None and value != plain:
            raise ConfigurationError(
                f"{field}={value!r} does not work with stacks of frames (frame_stack={encode.frames.num_frames}): "
                "leave one of the two out"
            )
