"""Episode statistics, counted by the library itself, for every autoreset mode alike."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.validation import reals, whole

Array = NDArray[Any]


class EpisodeStatistics:
    """Undiscounted returns and lengths of whole episodes, over the rollouts in which they lie.

    Args:
        num_envs: `N`.
        window: how many of the latest episodes the means are over.
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self.episodes = 0
        self._running_return = np.zeros(num_envs)
        self._running_length = np.zeros(num_envs, dtype=np.int64)
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)

    def add(self, rewards: Array, ended: Array, valid: Array, broken_off: Array | None = None) -> None:
        """Count a block of steps, each `[T, N]`; rows that are not `valid` are no steps.

        What was running where an episode was `broken_off` is forgotten; no row of it in this block may be valid.
        """
        returns = self._running_return + np.cumsum(rewards * valid, axis=0, dtype=np.float64)
        lengths = self._running_length + np.cumsum(valid, axis=0)
        self._running_return, self._running_length = returns[-1].copy(), lengths[-1].copy()
        finished: list[tuple[int, int, float, int]] = []
        if broken_off is not None:
            ended = ended | broken_off
        for env in np.flatnonzero(ended.any(axis=0)).tolist():
            before_return, before_length = 0.0, 0
            for step in np.flatnonzero(ended[:, env]).tolist():
                total_return, total_length = float(returns[step, env]), int(lengths[step, env])
                if broken_off is None or not broken_off[step, env]:
                    finished.append((step, env, total_return - before_return, total_length - before_length))
                before_return, before_length = total_return, total_length
            self._running_return[env] -= before_return
            self._running_length[env] -= before_length
        ended_now = sorted(finished)  # in the order in which they ended
        self.add_ended([each[2] for each in ended_now], [each[3] for each in ended_now], len(ended_now))

    def add_ended(self, returns: Sequence[float], lengths: Sequence[int], number: int) -> None:
        """Count so many episodes more, of which the latest are given."""
        self._returns.extend(returns)
        self._lengths.extend(lengths)
        self.episodes += number

    def drop_running(self, envs: slice = slice(None)) -> None:
        """Forget the unfinished episodes, because their environments were started anew."""
        self._running_return[envs] = 0.0
        self._running_length[envs] = 0

    @property
    def return_mean(self) -> float:
        """Mean return of the latest episodes; not a number before the first has ended."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    @property
    def score(self) -> float | None:
        """The mean return, for comparisons: None until the window is full, for short episodes are the first to end."""
        is_full = len(self._returns) == self._returns.maxlen
        return self.return_mean if is_full and math.isfinite(self.return_mean) else None

    @property
    def length_mean(self) -> float:
        """Mean length of the latest episodes, in steps; not a number before the first has ended."""
        return float(np.mean(self._lengths)) if self._lengths else float("nan")

    def state(self) -> dict[str, Any]:
        """What `load_state` takes, as JSON can hold it."""
        return {
            "episodes": self.episodes,
            "running_return": self._running_return.tolist(),
            "running_length": self._running_length.tolist(),
            "returns": list(self._returns),
            "lengths": list(self._lengths),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        num_envs = len(self._running_return)
        self.episodes = whole(state, "episodes")
        self._running_return = np.array(reals(state, "running_return", length=num_envs), dtype=np.float64)
        self._running_length = np.array(reals(state, "running_length", length=num_envs), dtype=np.int64)
        self._returns.extend(reals(state, "returns"))
        self._lengths.extend(int(length) for length in reals(state, "lengths"))


def rows_broken_off(ended: Array, broken_off: Array) -> Array:
    """Which rows belong to an episode that is broken off later in the block, or in the row itself; all `[T, N]`."""
    rows = np.zeros_like(broken_off)
    for step, env in np.argwhere(broken_off).tolist():
        ends = np.flatnonzero(ended[:step, env] | broken_off[:step, env])
        rows[ends[-1] + 1 if len(ends) else 0 : step + 1, env] = True
    return rows
