"""Rollouts of agents that take turns: each agent's steps without the rows in which it waited.

An agent's step runs from its action to its next turn or to the end of its episode, with the rewards in between. The
steps of each agent come first, one after the other; the remaining rows are not steps.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.spaces.arrays import Array


def steps_by_turns(
    buffer: RolloutBuffer, valid: Array, finals: FinalObservations, memory: MemoryLayout | None = None
) -> tuple[RolloutBuffer, Array, FinalObservations, Array, Array]:
    """The steps of agents that take turns.

    A step that is unfinished at the end of the rollout is not learned from: the step before it is bootstrapped from its
    observation, and counts as truncated if other agents have more steps.

    Args:
        buffer: `T` rows, one turn each.
        valid: `[T, N]`, whether an agent is present, be it acting or waiting.
        finals: final observations of truncated episodes.
        memory: layout of the state of a recurrent actor; its sequences have all turns, also those that do not count
            because a restart broke off their episode.

    Returns:
        A buffer `[T', N]`, with as many rows as the agent with most steps has; which of its rows are steps; the final
        observations; the last of the `T` rows of each step, `[T', N]`; and the number of turns, `[N]`.
    """
    counts = valid
    if memory is not None:
        valid = ~buffer.absent
    ends = (buffer.terminated | buffer.truncated) & valid
    turns = [
        _turns_of(*(array[:, column] for array in (buffer.rewards, valid, buffer.waiting, ends)))
        for column in range(valid.shape[1])
    ]
    number = np.array([own.number for own in turns])
    num_steps = int(number.max())
    steps = {
        name: np.zeros((num_steps + (name == "observations"), *array.shape[1:]), array.dtype)
        for name, array in buffer.arrays.items()
        if name not in ("noise", "states")
    }
    if memory is not None and buffer.states is not None:
        steps["states"] = buffer.states[: memory.num_sequences(num_steps)]
    last_rows = np.zeros((num_steps, len(turns)), np.int64)
    is_step = np.arange(num_steps)[:, None] < number
    places: dict[tuple[int, int], tuple[int, int]] = {}
    found: FinalObservations = []
    for column, (first, last, rewards, count) in enumerate(turns):
        own, acted, ended = (slice(count), column), first[:count], last[:count]
        for name in ("outputs", "actions"):
            steps[name][own] = buffer.arrays[name][acted, column]
        steps["rewards"][own], last_rows[own] = rewards[:count], ended
        is_step[own] = counts[acted, column]
        for name in ("terminated", "truncated"):
            steps[name][own] = buffer.arrays[name][ended, column] & ends[ended, column]
        seen = first[: num_steps + 1]
        steps["observations"][: len(seen), column] = buffer.observations[seen, column]
        if buffer.starts is not None:
            steps["starts"][: len(seen), column] = buffer.starts[first[:num_steps], column]
        places |= {(row, column): (step, column) for step, row in enumerate(ended.tolist())}
        is_open = len(first) > count
        if is_open and 0 < count < num_steps and not ends[ended[-1], column]:
            steps["truncated"][count - 1, column] = True
            found.append((count - 1, column, buffer.observations[first[count], column].copy()))
    found += [(*places[row, column], final) for row, column, final in finals if (row, column) in places]
    found.sort(key=lambda final: final[:2])
    return replace(buffer, **steps), is_step, found, last_rows, np.array([len(own.first) for own in turns])


class _Turns(NamedTuple):
    """The turns of an agent in a rollout."""

    first: Array
    """The row of each turn, in which the agent acts."""
    last: Array
    """The last row of each turn: the row before the next turn, or the end of the episode."""
    rewards: Array
    """The sum of rewards over the rows of each turn."""
    number: int
    """The number of turns that have ended: all, or all but the last."""


def _turns_of(rewards: Array, valid: Array, waits: Array, ends: Array) -> _Turns:
    """The turns of an agent, from its columns of a rollout, `[T]`; `ends` are those of its episodes."""
    first = np.flatnonzero(valid & ~waits)
    episode = np.cumsum(ends) - ends  # how many have ended before each row
    # The rows of a turn: from its own row to the row before the next turn, in the same episode.
    turn = np.searchsorted(first, np.arange(len(valid)), side="right") - 1
    belongs = valid & (turn >= 0)
    belongs[belongs] = episode[belongs] == episode[first[turn[belongs]]]
    rows, owners = np.flatnonzero(belongs), turn[belongs]
    last = first.copy()
    np.maximum.at(last, owners, rows)
    is_open = len(first) > 0 and not ends[last[-1]]
    return _Turns(first, last, np.bincount(owners, rewards[rows], len(first)), len(first) - int(is_open))
