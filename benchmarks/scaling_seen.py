"""What `scaling.py` measures inside trainings: the seconds of their parts.

A machine's speed comes and goes. So trainings that are compared take turns, with a part of their iterations
in each, and the figures of all turns of a training are put together.
"""

import contextlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
from settings import cleanrl

import hybridppo

Draws = list[float]

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 8, 64, 4, 4
"""Sizes of a fragment's slice; epochs and minibatches of an iteration (with `central`, of each learner)."""
UNCOUNTED = 2
"""Iterations in which each learner loads and allocates, which do not count."""
DELAY_TURNS, DELAY_STEPS = 5, 64
"""How often a delay is measured, and in how many steps of `NUM_ENVS` environments."""


@dataclass
class Observed:
    """The seconds of one training's iterations and of their parts."""

    policy: str
    fragments: int
    iterations: Draws = field(default_factory=list)
    """From the end of one to the end of the next."""
    fills: Draws = field(default_factory=list)
    gradients: Draws = field(default_factory=list)
    meetings: Draws = field(default_factory=list)
    gathers: Draws = field(default_factory=list)
    learning: Draws = field(default_factory=list)
    """An agent's whole update, in each iteration."""
    sampling: Draws = field(default_factory=list)
    """All until the rollout is there."""
    steps: Draws = field(default_factory=list)
    """Seconds of a parameter server for an optimizer's step and the answer to the learner."""
    waits: Draws = field(default_factory=list)
    """Seconds that a parameter server waits for messages of learners."""

    @property
    def rows(self) -> int:
        """Environment steps in an iteration."""
        return NUM_ENVS * NUM_STEPS * (1 if self.policy == "central" else self.fragments)

    @property
    def seconds_per_iteration(self) -> float:
        """The median. With learners at their own pace, whose updates end at any time, the mean."""
        return (statistics.fmean if self.policy == "central" else statistics.median)(self.iterations)

    @property
    def steps_per_second(self) -> float:
        """Steps of all environments."""
        return self.rows / self.seconds_per_iteration

    def add(self, other: "Observed") -> None:
        """Add what another turn of the same training showed."""
        for each in fields(self):
            if isinstance(mine := getattr(self, each.name), list):
                mine.extend(getattr(other, each.name))


class Delayed(gym.Wrapper):  # type: ignore[type-arg]
    """An environment whose steps take longer without computing, like one that waits for a service."""

    def __init__(self, env: Any, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(self._seconds)
        return super().step(action)


@dataclass(frozen=True)
class Maker:
    """Makes an environment, in any process."""

    env_id: str
    delay: float = 0.0

    def __call__(self) -> Any:
        """A new environment."""
        env = gym.make(self.env_id)
        return Delayed(env, self.delay) if self.delay else env

    def __str__(self) -> str:
        return self.env_id + (f", steps delayed by {self.delay * 1e6:.0f} us" if self.delay else "")


def seconds_of_delay(make: Maker) -> float:
    """Seconds that a delay adds to a slice: more than its own, as sleeps last longer and work after them is slower."""
    plain, delayed = Maker(make.env_id), make
    turns = []
    for _ in range(DELAY_TURNS):
        with contextlib.ExitStack() as stack:
            both = [
                [stack.enter_context(contextlib.closing(each())) for _ in range(NUM_ENVS)] for each in (plain, delayed)
            ]
            without, with_delay = (_seconds_of_steps(environments) for environments in both)
        turns.append(max(0.0, with_delay - without))
    return statistics.median(turns) * NUM_STEPS / DELAY_STEPS


def _seconds_of_steps(environments: list[Any]) -> float:
    """Seconds of steps as a sampler makes them: all environments, then an actor's work."""
    weights = np.full((64, 64), 0.01, np.float32)
    for number, env in enumerate(environments):
        env.action_space.seed(number)
        env.reset(seed=number)
    start = time.perf_counter()
    for _ in range(DELAY_STEPS):
        for env in environments:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        np.tanh(np.tanh(weights[:NUM_ENVS] @ weights) @ weights)
    return time.perf_counter() - start


class _Recording:
    """Wraps methods to time them, and restores them afterwards."""

    def __init__(self) -> None:
        self._changed: list[tuple[type, str, Any]] = []

    def around(self, kind: type, name: str, wrap: Callable[[Any], Any]) -> None:
        plain = getattr(kind, name)
        self._changed.append((kind, name, plain))
        setattr(kind, name, wrap(plain))

    def time(self, kind: type, name: str, into: Draws) -> None:
        def wrap(plain: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                start = time.perf_counter()
                found = plain(*arguments, **options)
                into.append(time.perf_counter() - start)
                return found

            return call

        self.around(kind, name, wrap)

    def take_away(self) -> None:
        for kind, name, plain in reversed(self._changed):
            setattr(kind, name, plain)


def _record_learners(seen: Observed, recording: _Recording) -> None:
    """Figures of the first learner of `multi`."""
    from hybridppo.agents.common.loop import Exchange
    from hybridppo.distributed import link, wires
    from hybridppo.distributed.shards import ShardedUpdate
    from hybridppo.runners.samplers.stepping import Stepper

    begun = [0.0]

    def computing(plain: Any) -> Any:
        def call(*arguments: Any) -> Any:
            begun[0] = time.perf_counter()
            return plain(*arguments)

        return call

    def meeting(plain: Any) -> Any:
        def call(self: Any) -> Any:
            start = time.perf_counter()
            found = plain(self)
            end = time.perf_counter()
            seen.gradients.append(start - begun[0])
            seen.meetings.append(end - start)
            return found

        return call

    recording.time(Exchange, "gradient", seen.gradients)  # of a learner that is alone
    recording.around(ShardedUpdate, "gradient", computing)
    for way in (wires.Wire, wires.InSharedMemory):
        recording.around(way, "total", meeting)
    recording.time(Stepper, "fill", seen.fills)
    recording.time(link.Link, "gather", seen.gathers)


def _record_samplers(seen: Observed, recording: _Recording) -> None:
    """Seconds of slices of `coarse`."""
    from hybridppo.distributed.ray_samplers import RaySamplers

    def received(plain: Any) -> Any:
        def call(self: Any, worker: int) -> Any:
            is_filling = worker in self._tasks
            found = plain(self, worker)
            if is_filling and isinstance(found, tuple):
                seen.fills.append(found[1])
            return found

        return call

    recording.around(RaySamplers, "receive", received)


def _record_server(seen: Observed, recording: _Recording) -> None:
    """Figures that learners of `central` report."""
    from hybridppo.distributed.central_server import Learners
    from hybridppo.runners.workers.local import LocalProcesses

    def counted(plain: Any) -> Any:
        def call(self: Any) -> Any:
            update = plain(self)
            if update is not None:
                sampling, learning = update.done["seconds"]
                seen.fills.append(sampling)
                seen.learning.append(learning)
            return update

        return call

    recording.around(Learners, "next_update", counted)
    recording.time(Learners, "_step", seen.steps)
    recording.time(LocalProcesses, "wait", seen.waits)


RECORD: dict[str, Callable[[Observed, _Recording], None]] = {
    "multi": _record_learners,
    "coarse": _record_samplers,
    "central": _record_server,
}
"""For each policy, the function that starts recording."""


def can_run(policy: str) -> bool:
    """Whether the policy's requirements are installed."""
    return policy != "coarse" or importlib.util.find_spec("ray") is not None


def train(policy: str, fragments: int, make: Maker, iterations: int, width: int) -> Observed:
    """Train with this many fragments, and return what was recorded."""
    seen, recording = Observed(policy, fragments), _Recording()
    each = fragments if policy == "central" else 1
    config = cleanrl(
        num_envs=NUM_ENVS * fragments, num_steps=NUM_STEPS, num_epochs=EPOCHS, num_minibatches=MINIBATCHES * each,
        hidden_sizes=(width, width),
    )  # fmt: skip
    lines: list[dict[str, float]] = []
    uncounted = UNCOUNTED * each

    def line(metrics: dict[str, float]) -> None:
        lines.append(dict(metrics))
        if len(lines) == uncounted:
            for draws in (
                seen.fills,
                seen.gradients,
                seen.meetings,
                seen.gathers,
                seen.learning,
                seen.steps,
                seen.waits,
            ):
                draws.clear()

    RECORD[policy](seen, recording)
    try:
        hybridppo.train(
            make, total_steps=seen.rows * (iterations * each + uncounted), config=config, placement="cpu", seed=1,
            vectorization="sync", progress=False, distributed=f"{policy}:{fragments}", on_iteration=line,
        )  # fmt: skip
    finally:
        recording.take_away()
    counted = lines[uncounted - 1 :]
    seen.iterations = [b["seconds"] - a["seconds"] for a, b in pairwise(counted)]
    if policy != "central":
        seen.learning = [each["seconds_learning"] for each in counted[1:]]
        seen.sampling = [each["seconds_sampling"] for each in counted[1:]]
    print(f"  {policy}:{fragments} {make}: {seen.steps_per_second:,.0f} steps/s", file=sys.stderr, flush=True)
    return seen


Training = tuple[int, Maker]
"""Number of fragments, and the environment."""


def train_by_turns(
    policy: str, trainings: list[Training], *, iterations: int, turns: int, width: int
) -> dict[Training, Observed]:
    """Do a part of each training's iterations in every turn; every other turn goes in reversed order."""
    found = {training: Observed(policy, training[0]) for training in trainings}
    for turn in range(turns):
        print(f"turn {turn + 1} of {turns}", file=sys.stderr)
        for training in trainings if turn % 2 == 0 else trainings[::-1]:
            found[training].add(train(policy, *training, -(-iterations // turns), width))
    return found


def contention(one: Observed, two: Observed, cores: int) -> float:
    """How many times longer a slice takes beside another one."""
    return max(1.0, statistics.median(two.fills) / statistics.median(one.fills)) if cores > 1 else 1.0
