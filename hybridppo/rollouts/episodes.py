"""Episode statistics, counted in the same way for every autoreset mode."""

import math
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from hybridppo.spaces.arrays import Array
from hybridppo.system.validation import reals, whole


class EpisodeStatistics:
    """Undiscounted returns and lengths of whole episodes, which may span several rollouts.

    Args:
        num_envs: `N`.
        window: number of latest episodes for the means.
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self.episodes = 0
        self._running_return = np.zeros(num_envs)
        self._running_length = np.zeros(num_envs, dtype=np.int64)
        self._window = window
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)

    def add(self, rewards: Array, ended: Array, valid: Array, broken_off: Array | None = None) -> None:
        """Count a block of steps; all arguments are `[T, N]`. Rows that are not `valid` are not steps.

        Episodes that are `broken_off` are dropped; their rows in this block must not be valid.
        """
        returns = self._running_return + _sums(rewards * valid, np.float64)
        lengths = self._running_length + _sums(valid, np.int64)
        self._running_return, self._running_length = returns[-1].copy(), lengths[-1].copy()
        if broken_off is not None:
            ended = ended | broken_off
        steps, envs = np.nonzero(ended)  # in the order of their ends
        if not len(envs):
            return
        by_env = np.argsort(envs, kind="stable")  # sorted by environment
        steps, envs = steps[by_env], envs[by_env]
        totals, counts = returns[steps, envs], lengths[steps, envs]
        follows = np.concatenate(([False], envs[1:] == envs[:-1]))  # a later end of the same environment
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
        """Count `number` more episodes; the returns and lengths of the latest are given."""
        self._returns.extend(returns)
        self._lengths.extend(lengths)
        self.episodes += number

    def add_parts(self, parts: Sequence[tuple[Sequence[float], Sequence[int], int]]) -> None:
        """Count the episodes of several parts of a rollout by turns, the latest last; each is as `since` returns it."""
        by_turns = zip_longest(*(zip(returns[::-1], lengths[::-1], strict=True) for returns, lengths, _ in parts))
        ended = [each for turn in by_turns for each in turn if each is not None][::-1]
        number = sum(number for _, _, number in parts)
        self.add_ended([value for value, _ in ended], [length for _, length in ended], number)

    def since(self, episodes: int) -> tuple[list[float], list[int], int]:
        """The arguments of `add_ended` for the episodes after the first `episodes`."""
        number = self.episodes - episodes
        latest = slice(max(0, len(self._returns) - number), None)
        return list(self._returns)[latest], list(self._lengths)[latest], number

    def drop_running(self, envs: slice | Array = slice(None)) -> None:
        """Drop unfinished episodes, because their environments were reset."""
        self._running_return[envs] = 0.0
        self._running_length[envs] = 0

    @property
    def return_mean(self) -> float:
        """Mean return of the latest episodes; nan before the first end."""
        return _mean(self._returns)

    @property
    def score(self) -> float | None:
        """The mean return for comparisons; None until the window is full, because short episodes end first."""
        is_full = len(self._returns) == self._returns.maxlen
        return self.return_mean if is_full and math.isfinite(self.return_mean) else None

    @property
    def length_mean(self) -> float:
        """Mean length of the latest episodes in steps; nan before the first end."""
        return _mean(self._lengths)

    def state(self) -> dict[str, Any]:
        """The state for `load_state`, as JSON."""
        return {
            "episodes": self.episodes,
            "running_return": self._running_return.tolist(),
            "running_length": self._running_length.tolist(),
            "returns": list(self._returns),
            "lengths": list(self._lengths),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        num_envs = len(self._running_return)
        self.episodes = whole(state, "episodes")
        self._running_return = np.array(reals(state, "running_return", length=num_envs), dtype=np.float64)
        self._running_length = np.array(reals(state, "running_length", length=num_envs), dtype=np.int64)
        self._returns = deque(reals(state, "returns"), maxlen=self._window)
        self._lengths = deque(map(int, reals(state, "lengths")), maxlen=self._window)


def _mean(numbers: deque[Any]) -> float:
    """The mean, nan if there are none; `np.mean` of a deque takes ten times as long."""
    return float(np.add.reduce(np.fromiter(numbers, np.float64))) / len(numbers) if numbers else float("nan")


def _sums(terms: Array, dtype: type) -> Array:
    """`np.cumsum` over time of `[T, N]`, eight times as fast for short and wide blocks."""
    if terms.shape[0] > terms.shape[1]:
        return np.cumsum(terms, axis=0, dtype=dtype)
    sums: Array = terms.astype(dtype)
    for step in range(1, len(sums)):
        sums[step] += sums[step - 1]
    return sums


def rows_broken_off(ended: Array, broken_off: Array) -> Array:
    """Rows of episodes that are broken off later in the block or in the row itself; all `[T, N]`."""
    rows = np.zeros_like(broken_off)
    for step, env in np.argwhere(broken_off).tolist():
        ends = np.flatnonzero(ended[:step, env] | broken_off[:step, env])
        rows[ends[-1] + 1 if len(ends) else 0 : step + 1, env] = True
    return rows
