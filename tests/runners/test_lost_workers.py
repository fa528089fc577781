"""Lost workers, and those that replace them."""

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hybridppo import EnvError
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.runners import processes
from hybridppo.runners.processes import LOSSES_IN_A_ROW, Pool, WorkerLostError

OPTIONS = EnvironmentOptions(worker_timeout=8.0, on_env_error="restart")


class Starting(Pool):
    """Loses this many of the workers that it starts; keeps the seeds, in the order of the calls."""

    def __init__(self, losses: int = 0) -> None:
        super().__init__("worker", [slice(0, 1), slice(1, 2)], OPTIONS)
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


def test_another_is_started_again_and_again_each_with_a_seed_of_its_own() -> None:
    pool, begun = Starting(losses=2), list[int]()
    pool.replace(0, WorkerLostError("first"), 5, begun.append)
    assert len({5, *pool.seeds}) == LOSSES_IN_A_ROW + 1
    assert pool.done == ["end", "start"] * 3 + ["ready"]
    assert begun == pool.seeds[-1:]
    again = Starting(losses=2)
    again.replace(0, WorkerLostError("first"), 5)
    assert again.seeds == pool.seeds  # the same run loses them to the same seeds


def test_one_that_is_lost_while_it_begins_is_replaced_as_well() -> None:
    pool, begun = Starting(), list[int]()

    def begin(seed: int) -> None:
        begun.append(seed)
        if len(begun) == 1:
            raise WorkerLostError("lost while it was steered")

    pool.replace(0, WorkerLostError("first"), 5, begin)
    assert begun == pool.seeds
    assert len(set(begun)) == 2


def test_a_row_of_losses_ends_with_work_done_and_is_an_error_if_it_is_too_long() -> None:
    pool = Starting()
    for _ in range(2):
        for _ in range(LOSSES_IN_A_ROW):
            pool.replace(1, WorkerLostError("it hangs"), 5)
        pool.end_row(1)
    assert len(set(pool.seeds)) == 2 * LOSSES_IN_A_ROW
    for _ in range(LOSSES_IN_A_ROW):
        pool.replace(1, WorkerLostError("it hangs"), 5)
    pool.replace(0, WorkerLostError("another"), 5)
    with pytest.raises(EnvError, match="lost 4 times in a row, the last: it hangs"):
        pool.replace(1, WorkerLostError("it hangs"), 5)


class Timetable(Pool):
    """Two workers with a simulated clock: the first is lost after a second, and another takes 20 s to start."""

    seconds_between_looks = 0.1

    def __init__(self, second_answers: float) -> None:
        super().__init__("worker", [slice(0, 1), slice(1, 2)], OPTIONS)
        self.now = 0.0
        self._due = {0: 1.0, 1: second_answers}
        self._is_replaced = False

    def start(self, worker: int, env_seed: int) -> None:
        self._is_replaced = True
        self._due[worker] = self.now + 20.0

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> list[int]:
        self.now += seconds
        return [worker for worker in workers if self._due[worker] <= self.now]

    def receive(self, worker: int) -> tuple[Any, float]:
        if worker == 0 and not self._is_replaced:
            raise WorkerLostError("it has died")
        return "done", 0.0

    def rows(self, worker: int) -> int:
        return 7

    def silence(self, worker: int, rows: int, timeout: float) -> str:
        return f"is silent since {rows} rows"

    def name(self, worker: int) -> str:
        return f"worker {worker}"

    def kill(self, worker: int) -> None:
        pass


Timetable.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # only what waits for answers is called


@pytest.mark.parametrize(
    ("second_answers", "asks_for_rows", "second"),
    [
        (5.0, False, "done"),  # while the other begins
        (5.0, True, "done"),
        (26.0, True, "done"),  # 5 s after, and nobody has asked it for its rows meanwhile
        (99.0, True, "worker 1 is silent since 7 rows"),
        (99.0, False, "worker 1 is silent since 7 rows"),
    ],
)
def test_a_worker_is_not_lost_because_another_takes_long_to_begin(
    second_answers: float, asks_for_rows: bool, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, found = Timetable(second_answers), dict[int, list[str]]()
    monkeypatch.setattr(Timetable, "asks_for_rows", asks_for_rows, raising=False)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: pool.now))
    for worker, answer in pool.answers([0, 1]):
        found.setdefault(worker, []).append(str(answer) if isinstance(answer, WorkerLostError) else answer[0])
        if worker == 0:
            pool.start(0, 5)
            pool.wait_until_ready([0])
    assert found == {0: ["it has died"], 1: [second]}
    assert pool.now < 21.0 + 2 * 8.0
