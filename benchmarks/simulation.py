"""A discrete-event simulator of distributed trainings: cores, links and barriers as resources, on one clock.

    simulation = Simulation()
    ends = learners(simulation, timing, machines=[Machine(2)] * 2, iterations=20)
    simulation.run()

Pure Python. A fragment is a generator that yields what it does next, and is resumed when that is done:

    yield Compute(machine, seconds)   # on a core of a machine, when one is free
    yield Wait(seconds)               # without any resource
    yield Send(link, size)            # over a link, which carries one message at a time
    yield Meet(barrier)               # until all have come
    yield Put(box, item)              # never waits
    item = yield Take(box)            # until there is one

Work on a core is not interrupted: it is short compared with an iteration. Events at the same time happen in the order
in which they were caused, so that a simulation gives the same result whenever it runs. Whoever makes the fragments
chooses the seconds: `scale.py` draws them from measurements.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Fragment = Generator[Any, Any, None]


@dataclass
class Machine:
    """Cores that serve fragments in the order in which they come."""

    cores: int
    contention: float = 1.0
    """How many times longer work takes if another core of the machine is busy when it begins."""
    busy: int = 0
    waiting: deque[tuple["Process", float]] = field(default_factory=deque)
    seconds: float = 0.0
    """Seconds of work of all its cores together."""


@dataclass
class Link:
    """Carries one message at a time. A message occupies the link for its size, and arrives after the latency."""

    latency: float
    seconds_per_byte: float = 0.0
    free_at: float = 0.0


@dataclass
class Barrier:
    """Releases all whenever `size` have come."""

    size: int
    seconds: float = 0.0
    """From the arrival of the last until all go on: the seconds of the collective itself."""
    here: list["Process"] = field(default_factory=list)
    meetings: int = 0


@dataclass
class Box:
    """A queue: first in, first out."""

    items: deque[Any] = field(default_factory=deque)
    takers: deque["Process"] = field(default_factory=deque)


@dataclass(frozen=True)
class Compute:
    """Compute for some seconds on a core of a machine."""

    machine: Machine
    seconds: float


@dataclass(frozen=True)
class Wait:
    """Wait for some seconds without any resource."""

    seconds: float


@dataclass(frozen=True)
class Send:
    """Send a message, and wait until it has arrived."""

    link: Link
    size: float = 0.0


@dataclass(frozen=True)
class Meet:
    """Wait at a barrier."""

    barrier: Barrier


@dataclass(frozen=True)
class Put:
    """Put an item into a box."""

    box: Box
    item: Any = None


@dataclass(frozen=True)
class Take:
    """Take an item from a box; `yield` returns it."""

    box: Box


@dataclass
class Process:
    """A running fragment."""

    name: str
    fragment: Fragment
    ended_at: float | None = None


class Simulation:
    """Fragments on one clock, which begins at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._processes: list[Process] = []

    def add(self, name: str, fragment: Fragment) -> Process:
        """Start a fragment now."""
        process = Process(name, fragment)
        self._processes.append(process)
        self._at(self.now, lambda: self._go_on(process))
        return process

    def run(self, until: float = float("inf")) -> float:
        """Run until nothing happens any more, or the time is later than `until`; returns the time.

        Raises:
            RuntimeError: if fragments wait for something that nobody will do.
        """
        while self._events and self._events[0][0] <= until:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        stuck = [each.name for each in self._processes if each.ended_at is None]
        if not self._events and stuck:
            raise RuntimeError(f"at {self.now:g} s nothing happens any more, and {', '.join(stuck)} wait")
        return self.now

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, happen))

    def _go_on(self, process: Process, value: Any = None) -> None:
        try:
            step = process.fragment.send(value)
        except StopIteration:
            process.ended_at = self.now
            return
        self._do(process, step)

    def _do(self, process: Process, step: Any) -> None:
        if isinstance(step, Compute):
            self._compute(process, step.machine, step.seconds)
        elif isinstance(step, Wait):
            self._at(self.now + step.seconds, lambda: self._go_on(process))
        elif isinstance(step, Send):
            link = step.link
            link.free_at = max(self.now, link.free_at) + step.size * link.seconds_per_byte
            self._at(link.free_at + link.latency, lambda: self._go_on(process))
        elif isinstance(step, Meet):
            self._meet(process, step.barrier)
        elif isinstance(step, Put):
            self._put(step.box, step.item)
            self._at(self.now, lambda: self._go_on(process))
        elif isinstance(step, Take):
            if step.box.items:
                item = step.box.items.popleft()
                self._at(self.now, lambda: self._go_on(process, item))
            else:
                step.box.takers.append(process)
        else:
            raise TypeError(f"{process.name} did {step!r}, which no fragment can")

    def _compute(self, process: Process, machine: Machine, seconds: float) -> None:
        if machine.busy == machine.cores:
            machine.waiting.append((process, seconds))
            return
        machine.busy += 1
        seconds *= machine.contention if machine.busy > 1 else 1.0
        machine.seconds += seconds

        def end() -> None:
            machine.busy -= 1
            if machine.waiting:
                self._compute(*_in_order(machine))
            self._go_on(process)

        self._at(self.now + seconds, end)

    def _meet(self, process: Process, barrier: Barrier) -> None:
        barrier.here.append(process)
        if len(barrier.here) < barrier.size:
            return
        there, barrier.here = barrier.here, []
        barrier.meetings += 1
        for each in there:
            self._at(self.now + barrier.seconds, lambda each=each: self._go_on(each))  # type: ignore[misc]

    def _put(self, box: Box, item: Any) -> None:
        if box.takers:
            taker = box.takers.popleft()
            self._at(self.now, lambda: self._go_on(taker, item))
        else:
            box.items.append(item)


def _in_order(machine: Machine) -> tuple[Process, Machine, float]:
    process, seconds = machine.waiting.popleft()
    return process, machine, seconds


Draw = Callable[[], float]
"""Draws the seconds of a repeated action."""


def nothing() -> float:
    """The seconds of an action that does not exist."""
    return 0.0


@dataclass
class Timing:
    """Seconds of what a training's fragments do, drawn anew each time."""

    fill: Draw
    """A slice of a rollout, by one fragment, on a core."""
    before: Draw
    """A learner's work on a rollout before its first minibatch, and after its last."""
    gradient: Draw
    """A minibatch of the learner, or its shard of one, and the optimizer's step."""
    minibatches: int
    """Minibatches of an iteration."""
    collective: float = 0.0
    """A meeting of learners, from the arrival of the last."""
    gather: float = 0.0
    """Bringing the slices to all, from the arrival of the last."""
    latency: float = 0.0
    """Seconds until a message arrives."""
    sending: float = 0.0
    """Seconds that a slice occupies the link to the learner."""
    delay: Draw = nothing
    """Seconds of a slice in which no core works."""


def slice_of(timing: Timing, machine: Machine) -> Fragment:
    """A slice of a rollout."""
    yield Wait(timing.delay())
    yield Compute(machine, timing.fill())


def samplers(simulation: Simulation, timing: Timing, machines: Sequence[Machine], iterations: int) -> list[float]:
    """`SingleLearnerCoarse`: when each iteration ends.

    Args:
        simulation: to which the fragments are added.
        timing: seconds of what they do.
        machines: one for each sampler; the learner is on the first one's.
        iterations: their number.
    """
    ends: list[float] = []
    tasks, slices, link = [Box() for _ in machines], Box(), Link(timing.latency, timing.sending)

    def sampler(number: int) -> Fragment:
        for _ in range(iterations):
            yield Take(tasks[number])
            yield from slice_of(timing, machines[number])
            yield Send(link, 1.0)
            yield Put(slices)

    def learning() -> Fragment:
        for _ in range(iterations):
            for task in tasks:
                yield Put(task)
            for _ in tasks:
                yield Take(slices)
            minibatches = sum(timing.gradient() for _ in range(timing.minibatches))
            yield Compute(machines[0], timing.before() + minibatches)
            ends.append(simulation.now)

    for number in range(len(machines)):
        simulation.add(f"sampler {number}", sampler(number))
    simulation.add("learner", learning())
    return ends


def learners(simulation: Simulation, timing: Timing, machines: Sequence[Machine], iterations: int) -> list[float]:
    """`MultiLearner`, with a learner on each of the machines: when each iteration ends."""
    ends: list[float] = []
    slices, sums = Barrier(len(machines), timing.gather), Barrier(len(machines), timing.collective)

    def learner(number: int) -> Fragment:
        for _ in range(iterations):
            yield from slice_of(timing, machines[number])
            yield Meet(slices)
            yield Compute(machines[number], timing.before())
            for _ in range(timing.minibatches):
                yield Compute(machines[number], timing.gradient())
                yield Meet(sums)
            if number == 0:
                ends.append(simulation.now)

    for number in range(len(machines)):
        simulation.add(f"learner {number}", learner(number))
    return ends


def seconds_per_iteration(ends: Sequence[float], warmup: int = 2) -> list[float]:
    """Seconds between the ends of iterations, without the first few."""
    return [after - before for before, after in pairwise(ends[warmup:])]
