"""Workers that are lost, and those in their places."""

from collections.abc import Callable

import pytest

from hybridppo import DistributionError
from hybridppo.runners.workers.losses import LOSSES_IN_A_ROW, Losses
from hybridppo.runners.workers.transport import WorkerLostError


def failing(times: int, seeds: list[int]) -> Callable[[int], None]:
    """Starts a worker, and loses it so many times; keeps the seeds."""

    def start(seed: int) -> None:
        seeds.append(seed)
        if len(seeds) <= times:
            raise WorkerLostError(f"lost with seed {seed}")

    return start


def test_another_is_started_again_and_again_each_with_a_seed_of_its_own() -> None:
    losses, seeds = Losses(2, DistributionError, "a whole rollout", "its episodes are"), list[int]()
    losses.replace(0, WorkerLostError("first"), 5, failing(2, seeds))
    assert len({5, *seeds}) == LOSSES_IN_A_ROW + 1
    again: list[int] = []
    Losses(2, DistributionError, "", "").replace(0, WorkerLostError("first"), 5, failing(2, again))
    assert again == seeds  # the same run loses them to the same seeds


def test_a_row_of_losses_ends_with_work_done_and_is_an_error_if_it_is_too_long() -> None:
    losses, seeds = Losses(2, DistributionError, "a whole rollout", "its episodes are"), list[int]()
    for _ in range(2):
        for _ in range(LOSSES_IN_A_ROW):
            losses.replace(1, WorkerLostError("it hangs"), 5, failing(0, seeds))
        losses.end_row(1)
    assert len(set(seeds)) == 2 * LOSSES_IN_A_ROW
    for _ in range(LOSSES_IN_A_ROW):
        losses.replace(1, WorkerLostError("it hangs"), 5, failing(0, seeds))
    losses.replace(0, WorkerLostError("another"), 5, failing(0, seeds))
    with pytest.raises(DistributionError, match="lost 4 times without a whole rollout between, the last: it hangs"):
        losses.replace(1, WorkerLostError("it hangs"), 5, failing(0, seeds))
