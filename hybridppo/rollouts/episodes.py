"""Episode statistics, counted by the library itself, for every autoreset mode alike."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.system.validation import reals, whole

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
        self._window = window
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)

    def add(self, rewards: Array, ended: Array, valid: Array, broken_off: Array | None = None) -> None:
        """Count a block of steps, each `[T, N]`; rows that are not `valid` are no steps.

        What was running where an episode was `broken_off` is forgotten; no row of it in this block may be valid.
        """
        returns = self._running_return + _sums(rewards * valid, np.float64)
        lengths = self._running_length + _sums(valid, np.int64)
        self._running_return, self._running_length = returns[-1].copy(), lengths[-1].copy()
        if broken_off is not None:
            ended = ended | broken_off
        steps, envs = np.nonzero(ended)  # in the order in which they ended
        if not len(envs):
            return
        by_env = np.argsort(envs, kind="stable")  # an environment's ends one after the other
        steps, envs = steps[by_env], envs[by_env]
        totals, counts = returns[steps, envs], lengths[steps, envs]
        follows = np.concatenate(([False], envs[1:] == envs[:-1]))  # another end of the same environment
        is_last = np.concatenate((~follows[1:], [True]))
        self._running_return[envs[is_last]] -= totals[is_last]
        self._running_length[envs[is_last]] -= counts[is_last]
        totals[1:] -= np.where(follows[1:], totals[:-1], 0.0)
        counts[1:] -= np.where(follows[1:], counts[:-1], 0)
        order = np.empty_like(by_env)
        order[by_env] = np.arange(len(by_env))
        if broken_off is not None:
            order = order[~broken_off[steps[order], envs[order]]]
        latest = order[-self._window :]
        self.add_ended(totals[latest].tolist(), counts[latest].tolist(), len(order))

    def add_ended(self, returns: Sequence[float], lengths: Sequence[int], number: int) -> None:
        """Count so many episodes more, of which the latest are given."""
        self._returns.extend(returns)
        self._lengths.extend(lengths)
        self.episodes += number

    def since(self, episodes: int) -> tuple[list[float], list[int], int]:
        """What `add_ended` takes of the episodes after so many."""
        number = self.episodes - episodes
        latest = slice(max(0, len(self._returns) - number), None)
        return list(self._returns)[latest], list(self._lengths)[latest], number

    def drop_running(self, envs: slice | Array = slice(None)) -> None:
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


def _sums(terms: Array, dtype: type) -> Array:
    """The sums of `[T, N]` so far, over time: `np.cumsum`, which of short and wide blocks takes eight times as long."""
    if terms.shape[0] > terms.shape[1]:
        return np.cumsum(terms, axis=0, dtype=dtype)
    sums: Array = terms.astype(dtype)
    for step in range(1, len(sums)):
        sums[step] += sums[step - 1]
    return sums


def rows_broken_off(ended: Array, broken_off: Array) -> Array:
    """Which rows belong to an episode that is broken off later in the block, or in the row itself; all `[T, N]`."""
    rows = np.zeros_like(broken_off)
    for step, env in np.argwhere(broken_off).tolist():
        ends = np.flatnonzero(ended[:step, env] | broken_off[:step, env])
        rows[ends[-1] + 1 if len(ends) else 0 : step + 1, env] = True
    return rows
