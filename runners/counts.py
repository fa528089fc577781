"""What a sampler counts: steps, episodes, restarts, discounted returns so far, and entries of infos."""

import fnmatch
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from hybridppo.environments.infos import Sums, metrics_of
from hybridppo.errors import EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.system.validation import reals, whole

logger = logging.getLogger(__name__)

ROLLOUTS_LOST_IN_A_ROW = 3
"""How many rollouts in a row may have no steps because environments were restarted."""
COUNTED_ROWS = ("rewards", "terminated", "truncated", "restarted", "absent", "waiting")
"""The arrays of a rollout that steps are counted from."""


class EpisodeStatistics:
    """Undiscounted returns and lengths of whole episodes, which may span several rollouts.

    Args:
        num_envs: `N`.
        window: number of latest episodes for the means.
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self.episodes = 0
        self._running_return: Any = np.zeros(num_envs)
        self._running_length: Any = np.zeros(num_envs, dtype=np.int64)
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
        envs, steps = np.nonzero(ended.T)  # sorted by environment
        if not len(envs):
            return
        totals, counts = returns[steps, envs], lengths[steps, envs]
        follows = np.concatenate(([False], envs[1:] == envs[:-1]))  # a later end of the same environment
        is_last = np.concatenate((~follows[1:], [True]))
        self._running_return[envs[is_last]] -= totals[is_last]
        self._running_length[envs[is_last]] -= counts[is_last]
        totals[1:] -= np.where(follows[1:], totals[:-1], 0.0)
        counts[1:] -= np.where(follows[1:], counts[:-1], 0)
        order = np.lexsort((envs, steps))  # of their ends
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
        self.episodes = whole(state, "episodes")
        for name, running in (("running_return", self._running_return), ("running_length", self._running_length)):
            self._restore(running, reals(state, name, length=len(running)))
        self._returns = deque(reals(state, "returns"), maxlen=self._window)
        self._lengths = deque(map(int, reals(state, "lengths")), maxlen=self._window)

    def _restore(self, running: Any, numbers: list[float]) -> None:
        running[:] = numbers


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


@dataclass
class PolicyCounts:
    """The steps and episodes of one of several policies."""

    columns: Array
    """The policy's columns of a rollout."""
    statistics: EpisodeStatistics
    agent_steps: int = 0


class CountedRows(NamedTuple):
    """Some columns of counted rows, `[T, n]`."""

    valid: Array
    """Which rows are steps."""
    terminated: Array
    """Which rows end an episode, also because a restart broke it off."""
    is_whole: bool
    """Whether no environment was restarted."""
    returns: Array | None
    """The discounted return of the episode up to each row, if there are discounts."""


class Counts:
    """Counts the steps and episodes of a training.

    Args:
        environments: the environments, or what steps them.
        num_columns: columns of a rollout.
        discounts: returns the present discounts of the rewards in `Rollout.returns_so_far`, `[N]`; None for rollouts
            without.
        statistics: makes the statistics of episodes of so many columns.
    """

    def __init__(
        self,
        environments: Any,
        num_columns: int,
        discounts: Callable[[], Array] | None = None,
        statistics: Callable[[int], EpisodeStatistics] = EpisodeStatistics,
    ) -> None:
        self.num_columns, self._num_agents = num_columns, environments.num_agents
        self._skips_row_after_end, self._clips_rewards = environments.skips_row_after_end, environments.clips_rewards
        self.env_steps = 0
        self.env_restarts = 0
        """How often an environment was restarted."""
        self.statistics = statistics(num_columns)
        self.by_policy: dict[str, PolicyCounts] = {}
        """The counts of each policy, if there are several."""
        self._make_statistics, self._discounts, self._lost = statistics, discounts, 0
        self._resetting = np.zeros(num_columns, np.bool_)
        """The columns whose next row is a reset instead of a step."""
        self._so_far = np.zeros(num_columns, np.float32)
        """The discounted return of each column's unfinished episode."""

    def count_by_policy(self, columns: Mapping[str, Sequence[int]]) -> None:
        """Also count for each of several policies; `env_steps` then counts steps of environments, not of agents.

        Args:
            columns: for each policy, the numbers of its agents in an environment.
        """
        first = np.arange(0, self.num_columns, self._num_agents)[:, None]
        for name, own in columns.items():
            of_policy = (first + np.asarray(own)).ravel()
            self.by_policy[name] = PolicyCounts(of_policy, self._make_statistics(len(of_policy)))

    def drop_running(self, columns: slice = slice(None)) -> None:
        """Drop the unfinished episodes of some columns, whose environments were restarted."""
        self.statistics.drop_running(columns)
        self._so_far[columns], self._resetting[columns] = 0.0, False
        lost = np.arange(self.num_columns)[columns]
        for policy in self.by_policy.values():
            policy.statistics.drop_running(np.isin(policy.columns, lost))

    def rows_of_steps(self, valid: Any) -> Any:
        """The rows `[T, N]` to count as steps: of agents, or of environments if policies are counted separately."""
        if not self.by_policy:
            return valid
        return valid.reshape(len(valid), self.num_columns // self._num_agents, self._num_agents).any(2)

    def steps_with(self, rows: Any, filled: int) -> int:
        """`env_steps` with the filled rows of a rollout that is not counted yet."""
        ended = (rows.terminated | rows.truncated)[:filled]
        valid = self._valid_rows(ended, rows.absent[:filled])
        return self.env_steps + int(self.rows_of_steps(valid & ~rows.waiting[:filled]).sum())

    def _valid_rows(self, ended: Array, absent: Array) -> Array:
        """Which rows are steps, `[T, N]`: all but resets, and rows of absent agents."""
        valid: Array = ~absent
        if self._skips_row_after_end:
            valid[:1] &= ~self._resetting
            valid[1:] &= ~ended[:-1]
        return valid

    def add(self, rows: Any) -> tuple[Array, Array | None]:
        """Count rows `[T, N]`; return which are steps, and where restarts broke off episodes (None if nowhere).

        Broken-off episodes are marked as terminated, because later rows belong to another episode.
        """
        ended = rows.terminated | rows.truncated
        valid = self._valid_rows(ended, rows.absent)
        if self._skips_row_after_end:
            self._resetting = ended[-1].copy()
        broken_off = None
        if rows.restarted.any():
            self.env_restarts += int(rows.restarted.sum()) // self._num_agents
            broken_off = (rows.restarted > 0) & ~ended
            valid &= ~rows_broken_off(ended, broken_off)
            np.logical_or(rows.terminated, broken_off, out=rows.terminated)
        acting = valid & ~rows.waiting
        self.env_steps += int(self.rows_of_steps(acting).sum())
        self.statistics.add(rows.rewards, ended & valid, valid, broken_off)
        for policy in self.by_policy.values():
            own = policy.columns
            of_policy = None if broken_off is None else broken_off[:, own]
            policy.statistics.add(rows.rewards[:, own], (ended & valid)[:, own], valid[:, own], of_policy)
            policy.agent_steps += int(acting[:, own].sum())
        return valid, broken_off

    def add_columns(self, rows: Any, columns: slice, filled: int) -> CountedRows:
        """Count the first rows of some columns; the other columns stay as they are."""
        block: Any = SimpleNamespace()
        for name in COUNTED_ROWS:
            array = getattr(rows, name)
            of_all = np.full((filled, self.num_columns), name == "absent", array.dtype)  # all others are absent
            of_all[:, columns] = array[:filled]
            setattr(block, name, of_all)
        resetting = self._resetting.copy()
        valid, broken_off = self.add(block)
        resetting[columns] = self._resetting[columns]
        self._resetting = resetting
        returns = self.returns_so_far(block, valid, columns)
        return CountedRows(valid[:, columns], block.terminated[:, columns], broken_off is None, returns)

    def add_missed(self, episodes: Sequence[tuple[str, float]]) -> None:
        """Count episodes that ended before their agent's first turn: the policy and the return of each."""
        for policy, episode_return in episodes:
            counted = [self.by_policy[policy].statistics] if policy in self.by_policy else []
            for statistics in (self.statistics, *counted):
                statistics.add_ended([episode_return], [0], 1)

    def numbers(self) -> tuple[int, int, int, list[tuple[int, int]]]:
        """The counts at this moment, for `since`."""
        of_policies = [(policy.agent_steps, policy.statistics.episodes) for policy in self.by_policy.values()]
        return self.env_steps, self.env_restarts, self.statistics.episodes, of_policies

    def since(self, before: tuple[int, int, int, list[tuple[int, int]]]) -> tuple[Any, ...]:
        """What was counted since then, for `add_parts` of other counts."""
        steps, restarts, episodes, of_policies = before
        policies = [
            (policy.agent_steps - agent_steps, policy.statistics.since(own))
            for policy, (agent_steps, own) in zip(self.by_policy.values(), of_policies, strict=True)
        ]
        return self.env_steps - steps, self.env_restarts - restarts, self.statistics.since(episodes), policies

    def add_parts(self, steps: Any, restarts: Any, episodes: Any, of_policies: Any) -> None:
        """Count the parts of a rollout that others have counted; each argument has a value of `since` for each part."""
        self.env_steps += sum(steps)
        self.env_restarts += sum(restarts)
        self.statistics.add_parts(episodes)
        for policy, counted in zip(self.by_policy.values(), zip(*of_policies, strict=True), strict=True):
            policy.agent_steps += sum(agent_steps for agent_steps, _ in counted)
            policy.statistics.add_parts([of_policy for _, of_policy in counted])

    def returns_so_far(self, rows: Any, valid: Array, columns: slice = slice(None)) -> Array | None:
        """The discounted return of the episode up to each row, `[T, n]`; agents that take turns discount per action."""
        if self._discounts is None:
            return None
        rewards = rows.rewards.clip(-1.0, 1.0) if self._clips_rewards else rows.rewards
        returns: Array = np.where(valid, rewards, np.float32(0.0))[:, columns]
        discounts = np.where(rows.waiting, np.float32(1.0), self._discounts())[:, columns]
        goes_on, so_far = ~(rows.terminated | rows.truncated)[:, columns], self._so_far[columns]
        for step in range(len(returns)):
            returns[step] += discounts[step] * so_far
            so_far = goes_on[step] * returns[step]
        self._so_far[columns] = so_far
        return returns

    def require_steps(self, is_lost: bool) -> None:
        """Count a rollout that `is_lost`, because restarts have left less than two steps of it.

        Raises:
            EnvError: if too many rollouts in a row were lost.
        """
        self._lost = self._lost + 1 if is_lost else 0
        if self._lost > ROLLOUTS_LOST_IN_A_ROW:
            raise EnvError(f"in {self._lost} rollouts in a row, every episode was broken off by a restart")

    def state(self) -> dict[str, Any]:
        """The state for `load_state`, as JSON."""
        return {
            "env_steps": self.env_steps,
            "env_restarts": self.env_restarts,
            "rollouts_lost": self._lost,
            "statistics": self.statistics.state(),
            "by_policy": {
                name: {"agent_steps": policy.agent_steps, "statistics": policy.statistics.state()}
                for name, policy in self.by_policy.items()
            },
            "resetting": self._resetting.tolist(),
            "returns_so_far": self._so_far.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.env_steps, self.env_restarts = whole(state, "env_steps"), whole(state, "env_restarts")
        self._lost = whole(state, "rollouts_lost")
        self.statistics.load_state(state["statistics"])
        for name, policy in self.by_policy.items():
            policy.agent_steps = whole(state["by_policy"][name], "agent_steps")
            policy.statistics.load_state(state["by_policy"][name]["statistics"])
        self._so_far[:] = reals(state, "returns_so_far", length=self.num_columns)
        resetting = state["resetting"]
        if len(resetting) != self.num_columns or not all(type(value) is bool for value in resetting):
            raise ValueError(f"resetting must be a list of {self.num_columns} booleans")
        self._resetting[:] = resetting


class InfoMetrics:
    """Sums of entries of infos: of rollouts that have ended, and of the one under way.

    Args:
        environments: the environments, or what steps them.
        warns: whether the first `metrics` warns of entries that no step has.
    """

    def __init__(self, environments: Any, *, warns: bool = True) -> None:
        self._environments, self._warns = environments, warns
        self.names: Sequence[str] = environments.info_names
        self.are_there = bool(self.names)
        """Whether entries are summed; environments may also log some that nobody has named."""
        self.sums: list[Sums] = []
        """The sums over each rollout since the last `metrics`."""
        self._so_far: list[Sums] = []
        """The sums over the rollout under way, up to the last checkpoint."""

    def take(self) -> None:
        """Take the sums over the rollout under way so far."""
        if self.are_there and (sums := self._environments.take_infos()):
            self._so_far.append(sums)

    def end_rollout(self) -> None:
        """Take the sums over the rollout that has ended."""
        self.take()
        self.sums += self._so_far
        self._so_far = []

    def taken(self) -> list[Sums]:
        """The sums over each rollout since the last call."""
        found, self.sums = self.sums, []
        return found

    def metrics(self) -> dict[str, float]:
        """The means over the rollouts since the last call."""
        sums = self.taken()
        found = metrics_of(sums) if sums else {}
        told = [name.removeprefix("info/") for name in found]
        missing = [name for name in self.names if name not in told and not fnmatch.filter(told, name)]
        if missing and self._warns:
            logger.warning("info_metrics: no step of the first iteration has %s in its info", ", ".join(missing))
        self._warns = False
        return found

    def state(self) -> dict[str, Any]:
        """The state for `load_state`, as JSON."""
        self.take()
        return {"infos": self.sums, "infos_so_far": self._so_far}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.sums, self._so_far = (
            [{name: reals(sums, name, length=4) for name in sums} for sums in state[which]]
            for which in ("infos", "infos_so_far")
        )
