"""A simulator of distributed trainings by discrete events: cores, links and barriers as resources, on one clock.

    simulation = Simulation()
    ends = learners(simulation, timing, machines=[Machine(2)] * 2, iterations=20)
    simulation.run()

Pure Python. A fragment is a generator that says what it does next, and is resumed when that is done:

    yield Compute(machine, seconds)   # on a core of a machine, for which it waits its turn
    yield Wait(seconds)               # for nothing that others could take away
    yield Send(link, size)            # over a link, which carries one message at a time
    yield Meet(barrier)               # until all have come
    yield Put(box, item)              # never waits
    item = yield Take(box)            # until there is one

Work on a core is not interrupted: it is short beside an iteration. Events at the same time happen in the order in which
they were caused, so that a simulation is the same whenever it is run. What seconds are is for who makes the fragments:
`scaling.py` draws them from what was measured.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

Fragment = Generator[Any, Any, None]


@dataclass
class Machine:
    """Cores that take whoever comes first."""

    cores: int
    contention: float = 1.0
    """How many times longer work takes that begins while another core of it works too."""
    busy: int = 0
    waiting: deque[tuple["Process", float]] = field(default_factory=deque)
    seconds: float = 0.0
    """Worked by all its cores together."""


@dataclass
class Link:
    """Carries one message at a time; it is on the way for the latency, and keeps the link for its size."""

    latency: float
    seconds_per_byte: float = 0.0
    free_at: float = 0.0


@dataclass
class Barrier:
    """Lets all go when `size` have come, as often as that happens."""

    size: int
    seconds: float = 0.0
    """From the last one's coming until all go on: a collective's own."""
    here: list["Process"] = field(default_factory=list)
    meetings: int = 0


@dataclass
class Box:
    """A queue: first in, first out."""

    items: deque[Any] = field(default_factory=deque)
    takers: deque["Process"] = field(default_factory=deque)


@dataclass(frozen=True)
class Compute:
    """Work of so many seconds on a core of a machine."""

    machine: Machine
    seconds: float


@dataclass(frozen=True)
class Wait:
    """Time that passes without any resource."""

    seconds: float


@dataclass(frozen=True)
class Send:
    """A message; whoever sends waits until it has come."""

    link: Link
    size: float = 0.0


@dataclass(frozen=True)
class Meet:
    """At a barrier."""

    barrier: Barrier


@dataclass(frozen=True)
class Put:
    """Into a box."""

    box: Box
    item: Any = None


@dataclass(frozen=True)
class Take:
    """From a box; what was put is what `yield` gives."""

    box: Box


@dataclass
class Process:
    """A fragment under way."""

    name: str
    fragment: Fragment
    is_left: bool = False
    """Whether it may wait for ever: for whoever has ended."""
    ended_at: float | None = None


class Simulation:
    """Fragments on one clock, which begins at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._processes: list[Process] = []

    def add(self, name: str, fragment: Fragment, *, is_left: bool = False) -> Process:
        """Let a fragment begin now; `is_left`: nothing is wrong where it waits at the end."""
        process = Process(name, fragment, is_left)
        self._processes.append(process)
        self._at(self.now, lambda: self._go_on(process))
        return process

    def run(self, until: float = float("inf")) -> float:
        """Until nothing happens any more, or it is later than `until`; the time then.

        Raises:
            RuntimeError: where fragments wait for what nobody will do.
        """
        while self._events and self._events[0][0] <= until:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        stuck = [each.name for each in self._processes if each.ended_at is None and not each.is_left]
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
"""Seconds of something that happens again and again."""


def nothing() -> float:
    """Of what does not happen."""
    return 0.0


def never() -> bool:
    """Of what does not happen either."""
    return False


@dataclass
class Timing:
    """What fragments of a training do, in seconds, each time drawn anew."""

    fill: Draw
    """A slice of a rollout, by one fragment, on a core."""
    before: Draw
    """What a learner does with a rollout before its first minibatch, and after its last."""
    gradient: Draw
    """A minibatch of the learner, or its shard of one, and the optimizer's step."""
    minibatches: int
    """Of an iteration."""
    collective: float = 0.0
    """What a meeting of learners takes, from the last one's coming."""
    gather: float = 0.0
    """What bringing the slices to all takes, likewise."""
    latency: float = 0.0
    """Seconds of a message on its way."""
    sending: float = 0.0
    """How long a slice keeps the link to the learner."""
    step: Draw = nothing
    """What a server of parameters does for a gradient: the optimizer's step, and its messages."""
    counting: Draw = nothing
    """What it does for an update that has ended."""
    delay: Draw = nothing
    """What a slice takes beside its work, without a core."""
    restart: Draw = nothing
    """Seconds from the loss of a fragment until another is there."""
    is_lost: Callable[[], bool] = never
    """Whether a fragment is lost in a slice that it begins; another then redoes it, after `restart`."""


def slice_of(timing: Timing, machine: Machine) -> Fragment:
    """A slice of a rollout, as often as it takes until its fragment is not lost."""
    while timing.is_lost():
        yield Compute(machine, timing.fill())
        yield Wait(timing.restart())
    yield Wait(timing.delay())
    yield Compute(machine, timing.fill())


def samplers(simulation: Simulation, timing: Timing, machines: Sequence[Machine], iterations: int) -> list[float]:
    """`SingleLearnerCoarse`: when each iteration ends.

    Args:
        simulation: to add to.
        timing: of what they do.
        machines: of each of the samplers; the learner is on the first one's.
        iterations: how many.
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
    """`MultiLearner`, a learner on each of the machines: when each iteration ends."""
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


class Rule(Protocol):
    """Who may compute, and step, so that no gradient is too old: `BoundedLag` is one."""

    def may_begin(self) -> bool:
        """Whether another may compute a gradient."""
        ...

    def begin(self, learner: int) -> None:
        """It does."""
        ...

    def may_step(self, learner: int) -> bool:
        """Whether its step leaves room for those before it."""
        ...

    def step(self, learner: int) -> int:
        """Its step is made; its lag."""
        ...


def served(
    simulation: Simulation, timing: Timing, machines: Sequence[Machine], iterations: int, rule: Rule
) -> list[float]:
    """`Central`, a learner on each of the machines and their server on the first one's: when each update ends.

    Messages within the server's machine are in what a gradient and a step take; those of other machines share a link.
    """
    ends: list[float] = []
    told, heard = [Box() for _ in machines], Box()
    link = Link(timing.latency, timing.sending)

    def crossing(number: int) -> Fragment:
        if machines[number] is not machines[0]:
            yield Send(link, 1.0)

    def learner(number: int) -> Fragment:
        while (yield Take(told[number])) == "update":
            yield from slice_of(timing, machines[number])
            yield Compute(machines[number], timing.before())
            yield Put(heard, (number, "begins"))
            for minibatch in range(timing.minibatches):
                yield Take(told[number])
                yield from crossing(number)  # the parameters
                yield Compute(machines[number], timing.gradient())
                yield from crossing(number)
                goes_on = minibatch + 1 < timing.minibatches
                yield Put(heard, (number, "gradient" if goes_on else "the last gradient"))
            yield Take(told[number])
            yield Put(heard, (number, "done"))

    def server() -> Fragment:
        asking, ended = deque[int](), dict[int, bool]()
        for box in told:
            yield Put(box, "update")
        while True:
            number, what = yield Take(heard)
            if what == "begins":
                asking.append(number)
            elif what == "done":
                yield Compute(machines[0], timing.counting())
                ends.append(simulation.now)
                if len(ends) == iterations:
                    break
                yield Put(told[number], "update")
            else:
                ended[number] = what == "gradient"
            while True:
                if ready := [each for each in ended if rule.may_step(each)]:
                    yield Compute(machines[0], timing.step())
                    rule.step(ready[0])
                    if ended.pop(ready[0]):
                        asking.append(ready[0])
                    else:
                        yield Put(told[ready[0]], "stepped")
                elif asking and rule.may_begin():
                    rule.begin(asking[0])
                    yield Put(told[asking.popleft()], "go")
                else:
                    break

    for number in range(len(machines)):
        simulation.add(f"learner {number}", learner(number), is_left=True)
    simulation.add("server", server())
    return ends


def seconds_per_iteration(ends: Sequence[float], warmup: int = 2) -> list[float]:
    """Between the ends of iterations, without the first few."""
    return [after - before for before, after in pairwise(ends[warmup:])]
