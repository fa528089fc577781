"""An actor's memory from step to step: when a state is reset, and what a rollout keeps of it."""

import numpy as np
import pytest

from hybridppo.rollouts.rollout import MemoryLayout
from hybridppo.runners.filling import EpisodeMemory

NOBODY: dict[int, int] = {}


class Counting:
    """An actor whose state counts the steps of each environment since its last reset."""

    def __init__(self, num_envs: int) -> None:
        self.state = np.full((num_envs, 1), np.nan, np.float32)

    def forget(self, envs: np.ndarray) -> None:
        self.state = np.where(envs[:, None], np.float32(0.0), self.state)

    def act(self) -> None:
        self.state = self.state + 1


def play(
    memory: EpisodeMemory, actor: Counting, ends: list[list[bool]], restarted: dict[int, dict[int, int]] = NOBODY
) -> tuple[list[list[bool]], list[list[float]], list[list[float]]]:
    """Act as a sampler does; returns `starts`, states kept every second step, and the steps known to each action."""
    num_steps, num_envs = len(ends), len(ends[0])
    starts = np.zeros((num_steps, num_envs), np.bool_)
    states = np.full((MemoryLayout(1, 2).num_sequences(num_steps), num_envs, 1), np.nan, np.float32)
    known = []
    memory.begin(actor)
    for step, ended in enumerate(ends):
        memory.before(step, actor, starts, states)
        known.append(actor.state[:, 0].tolist())
        actor.act()
        memory.after(actor, np.array(ended), restarted.get(step, {}))
    memory.end(actor)
    return starts.tolist(), states[..., 0].tolist(), known


def test_sequences_are_counted_with_the_shorter_last_one() -> None:
    assert [MemoryLayout(1, 4).num_sequences(steps) for steps in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


def test_an_episode_starts_after_the_step_that_ended_the_last() -> None:
    memory, actor = EpisodeMemory(2, MemoryLayout(1, 2), skips_row_after_end=False), Counting(2)
    starts, states, known = play(memory, actor, [[False, False], [True, False], [False, True]])
    assert starts == [[True, True], [False, False], [True, False]]
    assert known == [[0, 0], [1, 1], [0, 2]]
    assert states == [[0, 0], [0, 2]]
    # The next rollout goes on: the first is in its second step, and the second begins an episode.
    assert play(memory, actor, [[False, False]]) == ([[False, True]], [[1, 0]], [[1, 0]])


def test_a_row_that_is_a_reset_belongs_to_the_episode_before() -> None:
    memory, actor = EpisodeMemory(1, MemoryLayout(1, 2), skips_row_after_end=True), Counting(1)
    starts, _, known = play(memory, actor, [[True], [False], [False]])
    assert starts == [[True], [False], [True]]
    assert known == [[0], [1], [0]]


@pytest.mark.parametrize("skips", [False, True])
def test_who_is_restarted_begins_an_episode_at_once(skips: bool) -> None:
    memory, actor = EpisodeMemory(2, MemoryLayout(1, 2), skips_row_after_end=skips), Counting(2)
    starts, _, known = play(memory, actor, [[True, False], [False, False], [False, False]], {0: {0: 1}})
    assert starts == [[True, True], [True, False], [False, False]]
    assert known == [[0, 0], [0, 1], [1, 2]]


@pytest.mark.parametrize("skips", [False, True])
def test_it_goes_on_from_what_was_saved(skips: bool) -> None:
    ends = [[True, False], [False, True], [False, False]]
    memory, actor = EpisodeMemory(2, MemoryLayout(1, 2), skips_row_after_end=skips), Counting(2)
    play(memory, actor, ends[:1])
    saved = memory.arrays
    assert saved.shape == (2, 3)
    again = EpisodeMemory(2, MemoryLayout(1, 2), skips_row_after_end=skips)
    again.arrays = saved
    saved[:] = -1.0  # nobody else's
    assert play(again, Counting(2), ends[1:]) == play(memory, actor, ends[1:])


def test_a_new_start_forgets_everything() -> None:
    memory, actor = EpisodeMemory(2, MemoryLayout(1, 2), skips_row_after_end=True), Counting(2)
    play(memory, actor, [[False, True]])
    memory.restart()
    assert memory.arrays.tolist() == [[0.0, 1.0, 0.0]] * 2


def test_who_takes_turns_remembers_its_own_turns() -> None:
    """The first acts in steps 0, 2, 4, 5 and 7, the second in the others; the first's episode ends in step 3."""
    layout = MemoryLayout(1, 2)
    memory, actor = EpisodeMemory(2, layout, skips_row_after_end=False, in_turns=True), Counting(2)
    who = [0, 1, 0, 1, 0, 0, 1, 0]
    waited = np.array([[turn == 1, turn == 0] for turn in who])
    starts, states = np.zeros((8, 2), np.bool_), np.full((4, 2, 1), np.nan, np.float32)
    known = []
    for first, end in ((0, 4), (4, 8)):  # paused between
        memory.begin(actor, waited[:first])
        for step in range(first, end):
            memory.before(step, actor, starts, states)
            known.append(float(actor.state[who[step], 0]))
            actor.act()
            memory.after(actor, np.array([step == 3, False]), {}, waited[step], states)
        memory.end(actor)
        again = EpisodeMemory(2, layout, skips_row_after_end=False, in_turns=True)
        again.arrays, memory = memory.arrays, again
    assert known == [0, 0, 1, 1, 0, 1, 2, 2]
    assert [bool(starts[step, column]) for step, column in enumerate(who)] == [True, True, False, False, True] + 3 * [
        False
    ]
    # Before the first, third and fifth turn of the first, and the first and third of the second.
    np.testing.assert_array_equal(states[..., 0], [[0, 0], [0, 2], [2, np.nan], [np.nan, np.nan]])
