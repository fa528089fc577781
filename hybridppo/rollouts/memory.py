"""What an agent with a memory adds to a rollout. Free of torch, for worker processes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class MemoryLayout:
    """How large the state of an actor is, and how often a rollout keeps it."""

    state_size: int
    """Numbers in the state, for each environment."""
    sequence_length: int
    """Steps of a sequence that is learned from: the state before each is kept."""

    def num_sequences(self, num_steps: int) -> int:
        """How many of them a rollout of so many steps is; the last may be shorter."""
        return -(-num_steps // self.sequence_length)


class EpisodeMemory:
    """The actor's state in each of some environments, and where episodes start.

    An actor with a memory has a `state`, `[N, state_size]`, which its call advances and which may be set, and `forget`,
    which sets that of some environments, `[N]` bool, to zero.

    The state belongs to the parameters that acted: it is carried from rollout to rollout, and zero where an episode
    starts.

    Args:
        num_envs: `N`.
        layout: of the state.
        skips_row_after_end: whether the row after an episode's end is a reset instead of a step.
    """

    def __init__(self, num_envs: int, layout: MemoryLayout, skips_row_after_end: bool) -> None:
        self._layout, self._skips_row_after_end = layout, skips_row_after_end
        self._num_envs = num_envs
        self.restart()

    def restart(self) -> None:
        """Every environment starts an episode."""
        self._state = np.zeros((self._num_envs, self._layout.state_size), np.float32)
        self._starts = np.ones(self._num_envs, np.bool_)
        self._resetting = np.zeros(self._num_envs, np.bool_)

    def begin(self, actor: Any) -> None:
        """Let the actor go on from here."""
        actor.state = self._state

    def end(self, actor: Any) -> None:
        """Take over where it has got to."""
        self._state = actor.state

    def before(self, step: int, actor: Any, starts: Array | None, states: Array | None) -> None:
        """Before it acts in a step: forget episodes that have ended, and write `starts[step]`, and a state if due."""
        assert starts is not None  # of a rollout that was laid out for a memory, like the next
        assert states is not None
        starts[step] = self._starts
        self.forget(actor)
        if step % self._layout.sequence_length == 0:
            states[step // self._layout.sequence_length] = actor.state

    def forget(self, actor: Any) -> None:
        """Before it acts: forget episodes that have ended."""
        if self._starts.any():
            actor.forget(self._starts)

    def after(self, ended: Array, restarted: dict[int, int]) -> None:
        """After the environments' step: `[N]`, whether each episode has ended; those restarted begin another."""
        if self._skips_row_after_end:  # the next row still belongs to the episode: it has its final observation
            self._starts, self._resetting = self._resetting, ended.copy()
        else:
            self._starts = ended.copy()
        for env in restarted:
            self._starts[env], self._resetting[env] = True, False

    @property
    def arrays(self) -> Array:
        """Everything, `[N, state_size + 2]`, for a checkpoint."""
        flags = np.stack((self._starts, self._resetting), axis=1)
        return np.concatenate((self._state, flags.astype(np.float32)), axis=1)

    @arrays.setter
    def arrays(self, saved: Array) -> None:
        self._state = saved[:, :-2].copy()
        self._starts, self._resetting = saved[:, -2] != 0.0, saved[:, -1] != 0.0
