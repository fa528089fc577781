"""The simulator of distributed trainings, against timelines worked out by hand."""

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from simulation import (
        Barrier,
        Box,
        Compute,
        Link,
        Machine,
        Meet,
        Put,
        Send,
        Simulation,
        Take,
        Timing,
        Wait,
        learners,
        samplers,
        seconds_per_iteration,
    )
finally:
    sys.path.pop(0)


def run(*fragments: Any) -> list[float]:
    """When each fragment ends."""
    simulation = Simulation()
    processes = [simulation.add(f"{i}", fragment) for i, fragment in enumerate(fragments)]
    simulation.run()
    return [process.ended_at for process in processes if process.ended_at is not None]


def does(*steps: Any) -> Any:
    return (step for step in steps)


def test_a_core_is_for_one_at_a_time_and_whoever_came_first_is_next() -> None:
    machine = Machine(2)
    assert run(*(does(Compute(machine, seconds)) for seconds in (4.0, 1.0, 2.0, 1.0))) == [4.0, 1.0, 3.0, 4.0]
    assert machine.seconds == 8.0


def test_work_beside_other_work_takes_longer() -> None:
    machine = Machine(2, contention=1.5)
    assert run(does(Compute(machine, 4.0)), does(Wait(1.0), Compute(machine, 2.0))) == [4.0, 1.0 + 3.0]


def test_a_link_carries_one_message_at_a_time_and_latency_does_not_keep_it() -> None:
    link = Link(latency=10.0, seconds_per_byte=2.0)
    assert run(does(Send(link, 3.0)), does(Send(link, 1.0)), does(Wait(20.0), Send(link, 1.0))) == [16.0, 18.0, 32.0]


def test_a_barrier_lets_all_go_together_again_and_again() -> None:
    barrier = Barrier(2, seconds=0.5)
    slow, fast = does(Wait(3.0), Meet(barrier), Wait(1.0), Meet(barrier)), does(Meet(barrier), Meet(barrier))
    assert run(slow, fast) == [5.0, 5.0]
    assert barrier.meetings == 2


def test_what_is_put_is_taken_in_order_and_waited_for() -> None:
    box, taken = Box(), list[Any]()

    def taker() -> Any:
        for _ in range(3):
            taken.append((yield Take(box)))

    assert run(taker(), does(Put(box, "a"), Put(box, "b"), Wait(2.0), Put(box, "c"))) == [2.0, 2.0]
    assert taken == ["a", "b", "c"]


def test_who_waits_for_nothing_that_will_come_is_named() -> None:
    with pytest.raises(RuntimeError, match="at 1 s nothing happens any more, and 0 wait"):
        run(does(Wait(1.0), Meet(Barrier(2))))
    with pytest.raises(TypeError, match="0 did 7"):
        run(does(7))


def drawn(*seconds: float) -> Any:
    """Draws these values again and again."""
    endless = itertools.cycle(seconds)
    return lambda: next(endless)


def times(kind: Any, timing: Timing, machines: list[Machine], iterations: int = 2) -> list[float]:
    simulation = Simulation()
    ends: list[float] = kind(simulation, timing, machines, iterations)
    simulation.run()
    return ends


def test_learners_wait_for_the_slowest_at_every_barrier() -> None:
    # Slices of 4 and 6, gathered for 1; 2 before the first of two minibatches of 3 each, summed for 0.5.
    timing = Timing(drawn(4.0, 6.0), drawn(2.0), drawn(3.0), 2, collective=0.5, gather=1.0)
    iteration = 6 + 1 + 2 + 2 * (3 + 0.5)
    assert times(learners, timing, [Machine(1), Machine(1)]) == [iteration, 2 * iteration]
    # On one core, one after the other: slices 4 + 6, then 2 x 2, then 2 x 3 for each minibatch.
    both = Machine(1)
    timing = Timing(drawn(4.0, 6.0), drawn(2.0), drawn(3.0), 2, collective=0.5, gather=1.0)
    crowded = 10 + 1 + 4 + 6 + 0.5 + 6 + 0.5
    assert times(learners, timing, [both, both], 1) == [crowded]


def test_samplers_fill_side_by_side_and_their_slices_come_one_after_the_other() -> None:
    timing = Timing(drawn(4.0, 5.0), drawn(2.0), drawn(3.0), 2, latency=0.25, sending=1.0)
    # Slices at 4 + 1 and, since the link is free by then, 5 + 1; the last is there at 6.25; then 2 + 2 x 3.
    assert times(samplers, timing, [Machine(2), Machine(2)]) == [14.25, 28.5]
    timing = Timing(drawn(4.0, 4.0), drawn(2.0), drawn(3.0), 2, latency=0.25, sending=1.0)
    assert times(samplers, timing, [Machine(2), Machine(2)], 1) == [4 + 2 * 1.0 + 0.25 + 8]  # both at once: by turns


def test_a_delay_takes_no_core() -> None:
    timing = Timing(drawn(4.0), drawn(0.0), drawn(0.0), 1, delay=drawn(10.0))
    one = Machine(1)
    assert times(samplers, timing, [one, one], 1) == [10 + 4 + 4]


def test_iterations_are_counted_after_the_first() -> None:
    assert seconds_per_iteration([5.0, 6.0, 8.0, 9.5], warmup=1) == [2.0, 1.5]
