"""The part of a rollout that recurrent agents need. Workers use this file without torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridppo.spaces.arrays import Array


@dataclass(frozen=True)
class MemoryLayout:
    """The size of an actor's state, and how often a rollout stores it."""

    state_size: int
    """Length of the state of one environment."""
    sequence_length: int
    """Steps of a training sequence; the state before each sequence is stored."""

    def num_sequences(self, num_steps: int) -> int:
        """Number of sequences in a rollout of `num_steps`; the last may be shorter."""
        return -(-num_steps // self.sequence_length)


class EpisodeMemory:
    """The actor's state in each environment, and the starts of episodes.

    A recurrent actor has a `state`, `[N, state_size]`, which each call advances and which can be set, and a method
    `forget`, which sets the state of some environments, `[N]` bool, to zero.

    The state comes from the parameters that acted. It is carried from rollout to rollout, and is zero at the start of
    an episode. If agents take turns, a column's state changes in its own turns only, and its sequences are of these.

    Args:
        num_envs: `N`.
        layout: the layout of the state.
        skips_row_after_end: whether the row after an episode's end is a reset instead of a step.
        in_turns: whether agents take turns.
    """

    def __init__(self, num_envs: int, layout: MemoryLayout, skips_row_after_end: bool, in_turns: bool = False) -> None:
        self._layout, self._skips_row_after_end = layout, skips_row_after_end
        self._num_envs, self._in_turns = num_envs, in_turns
        self._acted = np.zeros(num_envs, np.int64)
        """How often each column has acted in this rollout; counted if agents take turns."""
        self.restart()

    @classmethod
    def of(cls, environments: Any, layout: MemoryLayout | None) -> "EpisodeMemory | None":
        """The memory of an actor in these environments; None without a layout."""
        if layout is None:
            return None
        return cls(environments.num_envs, layout, environments.skips_row_after_end, environments.waiting is not None)

    def restart(self) -> None:
        """Start an episode in every environment."""
        self._state = np.zeros((self._num_envs, self._layout.state_size), np.float32)
        self._starts = np.ones(self._num_envs, np.bool_)
        self._resetting = np.zeros(self._num_envs, np.bool_)

    def begin(self, actor: Any, waited: Array | None = None) -> None:
        """Give the state to the actor.

        Args:
            actor: the actor.
            waited: `[t, N]`, which columns have waited or were absent in the rollout so far, if agents take turns.
        """
        actor.state = self._state
        if waited is not None:
            self._acted = (~waited).sum(0)

    def end(self, actor: Any) -> None:
        """Take the state from the actor."""
        self._state = actor.state

    def before(self, step: int, actor: Any, starts: Array | None, states: Array | None) -> None:
        """Called before a step: forget ended episodes, write `starts[step]`, and write a state if due."""
        assert starts is not None  # the rollout was laid out for a recurrent actor
        assert states is not None
        starts[step] = self._starts
        self.forget(actor)
        if step % self._layout.sequence_length == 0 and not self._in_turns:
            states[step // self._layout.sequence_length] = actor.state

    def forget(self, actor: Any) -> None:
        """Called before the actor acts: forget ended episodes."""
        if self._starts.any():
            actor.forget(self._starts)
        if self._in_turns:
            self._before = np.array(actor.state)

    def after(
        self,
        actor: Any,
        ended: Array,
        restarted: dict[int, int],
        waiting: Array | None = None,
        states: Array | None = None,
    ) -> None:
        """Called after the environments' step.

        Args:
            actor: the actor.
            ended: `[N]`, whether an episode ended.
            restarted: environments that begin another episode.
            waiting: `[N]`, which columns did not act, if agents take turns.
            states: the states of a rollout's sequences, which are written if due.
        """
        if waiting is not None:
            actor.state = np.where(waiting[:, None], self._before, actor.state)
            sequence, step = np.divmod(self._acted, self._layout.sequence_length)
            if states is not None:
                begins = ~waiting & (step == 0)
                states[sequence[begins], begins] = self._before[begins]
            self._acted += ~waiting
            self._starts = ended | (self._starts & waiting)
        elif self._skips_row_after_end:  # the next row has the final observation and still belongs to the episode
            self._starts, self._resetting = self._resetting, ended.copy()
        else:
            self._starts = ended.copy()
        for env in restarted:
            self._starts[env], self._resetting[env] = True, False

    @property
    def arrays(self) -> Array:
        """The whole state, `[N, state_size + 2]`, for a checkpoint."""
        flags = np.stack((self._starts, self._resetting), axis=1)
        return np.concatenate((self._state, flags.astype(np.float32)), axis=1)

    @arrays.setter
    def arrays(self, saved: Array) -> None:
        self._state = saved[:, :-2].copy()
        self._starts, self._resetting = saved[:, -2] != 0.0, saved[:, -1] != 0.0
