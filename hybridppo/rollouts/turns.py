"""Rollouts of agents that take turns: each agent's steps without the rows in which it waited.

An agent's step runs from its action to its next turn or to the end of its episode, with the rewards in between. The
steps of each agent come first, one after the other; the remaining rows are not steps.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout

Array = NDArray[Any]


def steps_by_turns(
    buffer: RolloutBuffer, valid: Array, finals: FinalObservations, memory: MemoryLayout | None = None
) -> tuple[RolloutBuffer, Array, FinalObservations, Array, Array]:
    """The steps of agents that take turns.

    A step that is unfinished at the end of the rollout is not learned from: the step before it is bootstrapped from its
    observation, and counts as truncated if other agents have more steps.

    Args:
        buffer: `T` rows, one turn each.
        valid: `[T, N]`, whether an agent is present, acting or waiting.
        finals: final observations of truncated episodes.
        memory: layout of the state of a recurrent actor; its sequences have all turns, also those that do not count
            because a restart broke off their episode.

    Returns:
        A buffer `[T', N]`, with as many rows as the agent with most steps has; which of its rows are steps; the final
        observations; the last of the `T` rows of each step, `[T', N]`; and the number of turns, `[N]`.
    """
    num_columns, counts = valid.shape[1], valid
    if memory is not None:
        valid = ~buffer.absent
    ends = (buffer.terminated | buffer.truncated) & valid
    # Number of episodes that ended before each row, in each column.
    episode: Array = np.cumsum(ends, axis=0) - ends
    turns = [np.flatnonzero(column) for column in (valid & ~buffer.waiting).T]
    number = np.zeros(num_columns, np.int64)
    totals: list[Array] = []
    last: list[Array] = []
    for column, at in enumerate(turns):
        # The rows of a turn: from its own row to the row before the next turn, in the same episode.
        starts = np.searchsorted(at, np.arange(len(valid)), side="right") - 1
        belongs = valid[:, column] & (starts >= 0)
        belongs[belongs] = episode[belongs, column] == episode[at[starts[belongs]], column]
        rows, owners = np.flatnonzero(belongs), starts[belongs]
        totals.append(np.bincount(owners, buffer.rewards[rows, column], len(at)))
        latest = at.copy()
        np.maximum.at(latest, owners, rows)
        last.append(latest)
        is_open = len(at) > 0 and not ends[latest[-1], column]
        number[column] = len(at) - is_open
    num_steps = int(number.max())
    steps = {
        name: np.zeros((num_steps + (name == "observations"), *array.shape[1:]), array.dtype)
        for name, array in buffer.arrays.items()
        if name not in ("noise", "states")
    }
    if memory is not None and buffer.states is not None:
        steps["states"] = buffer.states[: memory.num_sequences(num_steps)]
    last_rows = np.zeros((num_steps, num_columns), np.int64)
    is_step = np.arange(num_steps)[:, None] < number
    places: dict[tuple[int, int], tuple[int, int]] = {}
    found: FinalObservations = []
    for column, at in enumerate(turns):
        count = number[column]
        own = slice(count), column
        seen = at[: num_steps + 1]
        steps["observations"][: len(seen), column] = buffer.observations[seen, column]
        for name in ("outputs", "actions"):
            steps[name][own] = buffer.arrays[name][at[:count], column]
        if buffer.starts is not None:
            steps["starts"][: len(seen), column] = buffer.starts[at[:num_steps], column]
        is_step[own] = counts[at[:count], column]
        steps["rewards"][own] = totals[column][:count]
        ended = last_rows[own] = last[column][:count]
        steps["terminated"][own] = buffer.terminated[ended, column] & ends[ended, column]
        steps["truncated"][own] = buffer.truncated[ended, column] & ends[ended, column]
        places |= {(row, column): (step, column) for step, row in enumerate(ended.tolist())}
        is_open = len(at) > count
        if is_open and 0 < count < num_steps and not ends[ended[-1], column]:
            steps["truncated"][count - 1, column] = True
            found.append((int(count) - 1, column, buffer.observations[at[count], column].copy()))
    found += [(*places[row, column], final) for row, column, final in finals if (row, column) in places]
    found.sort(key=lambda final: final[:2])
    return replace(buffer, **steps), is_step, found, last_rows, np.array(list(map(len, turns)))
