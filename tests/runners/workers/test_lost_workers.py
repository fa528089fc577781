"""Workers that are lost, and those in their places."""

from collections.abc import Collection

import pytest

from hybridppo import DistributionError
from hybridppo.runners.workers.losses import LOSSES_IN_A_ROW, Losses
from hybridppo.runners.workers.pool import Pool
from hybridppo.runners.workers.transport import WorkerLostError


class Starting(Pool):
    """Loses so many of the workers that it starts; keeps the seeds, in the order of the calls."""

    def __init__(self, losses: int = 0) -> None:
        self.num_left, self.seeds, self.done = losses, list[int](), list[str]()

    def end(self, worker: int) -> None:
        self.done.append("end")

    def start(self, worker: int, env_seed: int) -> None:
        self.done.append("start")
        self.seeds.append(env_seed)

    def wait_until_ready(self, workers: Collection[int]) -> None:
        if self.num_left:
            self.num_left -= 1
            raise WorkerLostError(f"lost with seed {self.seeds[-1]}")
        self.done.append("ready")


Starting.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # only what replaces workers is called


def nothing(seed: int) -> None:
    pass


def test_another_is_started_again_and_again_each_with_a_seed_of_its_own() -> None:
    pool, begun = Starting(losses=2), list[int]()
    losses = Losses(pool, 2, DistributionError, "a whole rollout", "its episodes are")
    losses.replace(0, WorkerLostError("first"), 5, begun.append)
    assert len({5, *pool.seeds}) == LOSSES_IN_A_ROW + 1
    assert pool.done == ["end", "start"] * 3 + ["ready"]
    assert begun == pool.seeds[-1:]
    again = Starting(losses=2)
    Losses(again, 2, DistributionError, "", "").replace(0, WorkerLostError("first"), 5, nothing)
    assert again.seeds == pool.seeds  # the same run loses them to the same seeds


def test_one_that_is_lost_while_it_begins_is_replaced_as_well() -> None:
    pool, begun = Starting(), list[int]()

    def begin(seed: int) -> None:
        begun.append(seed)
        if len(begun) == 1:
            raise WorkerLostError("lost while it was steered")

    Losses(pool, 1, DistributionError, "a whole rollout", "its episodes are").replace(
        0, WorkerLostError("first"), 5, begin
    )
    assert begun == pool.seeds
    assert len(set(begun)) == 2


def test_a_row_of_losses_ends_with_work_done_and_is_an_error_if_it_is_too_long() -> None:
    pool = Starting()
    losses = Losses(pool, 2, DistributionError, "a whole rollout", "its episodes are")
    for _ in range(2):
        for _ in range(LOSSES_IN_A_ROW):
            losses.replace(1, WorkerLostError("it hangs"), 5, nothing)
        losses.end_row(1)
    assert len(set(pool.seeds)) == 2 * LOSSES_IN_A_ROW
    for _ in range(LOSSES_IN_A_ROW):
        losses.replace(1, WorkerLostError("it hangs"), 5, nothing)
    losses.replace(0, WorkerLostError("another"), 5, nothing)
    with pytest.raises(DistributionError, match="lost 4 times without a whole rollout between, the last: it hangs"):
        losses.replace(1, WorkerLostError("it hangs"), 5, nothing)
