"""Stacks of frames that are built when they are read: each by hand, without frames of the episode before."""

import pytest
import torch

from hybridppo.agents.ppo.batch import numbers_of_frames
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.frames import FrameLayout

THREE = FrameLayout(num_frames=3, size=1)
# Of two environments, frames are numbered by step; those of the second are hundreds higher.
FRAMES = torch.tensor([[0.0, 100.0], [1.0, 101.0], [2.0, 102.0], [3.0, 103.0], [4.0, 104.0]]).unsqueeze(-1)
HISTORY = torch.tensor([[-2.0, 98.0], [-1.0, 99.0]]).unsqueeze(-1)


def rollout_with(terminated: list[tuple[int, int]], truncated: list[tuple[int, int]]) -> Rollout:
    """Four steps of two environments, with ends at these steps of these environments."""
    ends = torch.zeros(2, 4, 2, dtype=torch.bool)
    for flags, places in zip(ends, (terminated, truncated), strict=True):
        for place in places:
            flags[place] = True
    nothing = torch.zeros(4, 2)
    rows = torch.arange(0)
    return Rollout(FRAMES, nothing, nothing, nothing, ends[0], ends[1], rows, rows, FRAMES[0, :0], version=0)


def stacks(rollout: Rollout) -> list[list[list[float]]]:
    """`[T + 1][N][K]`."""
    numbers = numbers_of_frames(rollout, THREE.num_frames)
    assert numbers.shape == (5, 2, 3)
    frames = torch.cat((HISTORY, FRAMES)).flatten(0, 1)
    return frames[numbers].reshape(5, 2, 3).tolist()


def test_an_episode_that_began_before_reaches_into_the_history() -> None:
    first = [[-2, -1, 0], [-1, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    second = [[number + 100 for number in stack] for stack in first]
    assert stacks(rollout_with([], [])) == [list(pair) for pair in zip(first, second, strict=True)]


@pytest.mark.parametrize("is_truncated", [False, True])
def test_a_stack_never_reaches_into_the_episode_before(is_truncated: bool) -> None:
    ends = [(1, 0), (3, 1)]  # rows 2 of the first and 4 of the second begin an episode
    rollout = rollout_with([], ends) if is_truncated else rollout_with(ends, [])
    first = [[-2, -1, 0], [-1, 0, 1], [2, 2, 2], [2, 2, 3], [2, 3, 4]]
    second = [[98, 99, 100], [99, 100, 101], [100, 101, 102], [101, 102, 103], [104, 104, 104]]
    assert stacks(rollout) == [list(pair) for pair in zip(first, second, strict=True)]


def test_an_episode_of_one_step_is_a_stack_of_itself() -> None:
    assert [pair[0] for pair in stacks(rollout_with([(1, 0), (2, 0)], []))] == [
        [-2, -1, 0], [-1, 0, 1], [2, 2, 2], [3, 3, 3], [3, 3, 4],
    ]  # fmt: skip
