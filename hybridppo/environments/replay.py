"""Resume by replay: a new environment repeats the episode in which another was saved.

It is reset with the random generators from before the reset of that episode, and repeats the actions since. This also
restores states that only C++ knows, such as that of a simulator.
"""

import hashlib
from collections import deque

import numpy as np

from hybridppo.environments.base import EnvState, columns_of
from hybridppo.environments.state import REMEDY, decoded, encoded
from hybridppo.errors import EnvStateError
from hybridppo.spaces.arrays import Array

MAX_SECONDS = 60.0
"""An episode whose sampling took longer is not replayed."""


class ActionHistory:
    """The last actions of environments that may have to replay them."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[Array, float]] = deque()

    def add(self, actions: Array, seconds: float, longest: int | None) -> None:
        """Add the actions of some steps.

        Args:
            actions: `[t, N, *action]`; copied.
            seconds: how long the steps took.
            longest: steps of the longest unfinished episode; older actions are dropped. None if it is not known.
        """
        self._blocks.append((actions.copy(), seconds))
        steps, total = sum(len(block) for block, _ in self._blocks), sum(taken for _, taken in self._blocks)
        while len(self._blocks) > 1:
            block, taken = self._blocks[0]
            if total <= MAX_SECONDS and (longest is None or steps - len(block) < longest):
                break
            self._blocks.popleft()
            steps, total = steps - len(block), total - taken

    def put_into(self, states: list[EnvState]) -> None:
        """Add the actions of its episode to each state.

        Raises:
            EnvStateError: if a state that is not plain data has an episode that is too long.
        """
        block = np.concatenate([block for block, _ in self._blocks]) if self._blocks else None
        for number, (state, columns) in enumerate(zip(states, columns_of(states), strict=True)):
            steps = state.get("episode_steps", 0)
            if block is not None and 0 < steps <= len(block):
                state["actions"] = encoded(block[len(block) - steps :, columns])
            elif steps and (hidden := state["state"]["hidden"]):
                raise EnvStateError(
                    f"the episode of environment {number} of {len(states)} takes more than {MAX_SECONDS:g} seconds, "
                    f"too long to be replayed, and {hidden[0]}: {REMEDY}"
                )

    def take_from(self, states: list[EnvState], row: Array) -> Array:
        """The actions of saved states, `[t, N, *action]`, in their last steps; they become the history.

        Args:
            states: the states.
            row: `[N, *action]`, for the steps before an environment's episode.
        """
        found = [decoded(state["actions"]) if "actions" in state else row[:0, None] for state in states]
        actions = np.repeat(row[None], max(map(len, found), default=0), 0)
        for own, columns in zip(found, columns_of(states), strict=True):
            if len(own):
                actions[len(actions) - len(own) :, columns] = own
        self._blocks.clear()
        self.add(actions, 0.0, None)
        return actions


def digest_of(rows: Array) -> str:
    """A digest of observations."""
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16).hexdigest()
