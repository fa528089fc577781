"""An iteration's seconds: each part is what it says, and together they are the loop's wall time. The clock moves only
when something is done.
"""

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import Mirrored
from hybridppo.interfaces import Metrics
from hybridppo.placements import crossing
from hybridppo.placements.crossing import Counters
from hybridppo.reporting.callbacks import Callbacks, OnIteration, TrainingRun
from hybridppo.runners import runner, training_data
from hybridppo.runners.runner import Runner
from hybridppo.system.devices import Cuda

SAMPLING, LEARNING, PUBLISHING, TRANSFER, LOGGING, BEGINNING = 8.0, 4.0, 0.5, 0.25, 0.125, 0.0625


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (runner, training_data, crossing):
        monkeypatch.setattr(module, "time", made)
    return made


class Sampler:
    """Two environments of eight steps; an overlapping runner finds each of its rollouts half done."""

    num_envs = 2
    metrics: ClassVar[dict[str, float]] = {}

    def __init__(self, clock: Clock, waited: float) -> None:
        self._clock, self._waited = clock, waited
        statistics = SimpleNamespace(episodes=0, return_mean=1.0, length_mean=1.0, score=None)
        self.counts = SimpleNamespace(env_steps=0, env_restarts=0, statistics=statistics, by_policy={})
        self.is_under_way = self.is_paused = False
        self.seconds_filling, self.infos = SAMPLING, SimpleNamespace(metrics=dict)

    def request_stop(self) -> None:
        pass

    def collect(self, actor: Any) -> Any:
        self.sample_async(actor)
        return self.sample_wait()

    def sample_async(self, actor: Any) -> None:
        self._clock.spend(BEGINNING)
        self.is_under_way = True

    def prepare(self, actor: Any) -> None:
        pass

    def sample_wait(self) -> Any:
        self.is_under_way = False
        self._clock.spend(self._waited)
        self.counts.env_steps += 16
        return SimpleNamespace(version=0)

    def state(self) -> dict[str, Any]:
        return {}


class Placement:
    def __init__(self, clock: Clock, max_lag: int) -> None:
        self._clock, self.counters, self.max_lag = clock, Counters(), max_lag

    def _copy(self, seconds: float) -> None:
        self._clock.spend(seconds)
        self.counters.seconds_copying += seconds

    @contextlib.contextmanager
    def sampling(self, agent: Any) -> Iterator[None]:
        self._copy(PUBLISHING)
        yield

    @contextlib.contextmanager
    def learning(self, agent: Any) -> Iterator[None]:
        yield
        self._clock.spend(LEARNING / 2)  # the device is still busy when the host is done

    def to_learner(self, rollout: Any) -> Any:
        self._copy(TRANSFER)
        return rollout


class Agent:
    version = 0
    should_stop = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def anneal(self, progress: float) -> None:
        pass

    def update(self, rollout: Any) -> Metrics:
        self._clock.spend(LEARNING / 2)
        return {}


def iterations(max_lag: int, clock: Clock, count: int) -> list[Metrics]:
    """The metrics of this many iterations of the loop, each of which is logged."""
    seen: list[Metrics] = []

    def log(metrics: Metrics) -> None:
        clock.spend(LOGGING)
        seen.append(metrics)

    made: Any = Runner(
        Agent(clock),  # type: ignore[arg-type]
        Sampler(clock, SAMPLING - LEARNING * max_lag),  # type: ignore[arg-type]
        Placement(clock, max_lag),  # type: ignore[arg-type]
        total_steps=16 * count,
        callbacks=Callbacks([OnIteration(log)], TrainingRun(None, {})),  # type: ignore[arg-type]
    )
    made.run()
    return seen


def parts(metrics: Metrics) -> list[float]:
    return [metrics[f"seconds_{part}"] for part in ("sampling", "learning", "copying", "other")]


def test_by_turns(clock: Clock) -> None:
    first, second, third = iterations(0, clock, 3)
    assert parts(first) == [SAMPLING + BEGINNING, LEARNING, PUBLISHING + TRANSFER, 0.0]
    assert parts(second) == parts(third) == [SAMPLING + BEGINNING, LEARNING, PUBLISHING + TRANSFER, LOGGING]


def test_overlapping(clock: Clock) -> None:
    first, second, last = iterations(1, clock, 3)
    waited, copied = SAMPLING - LEARNING, PUBLISHING + TRANSFER
    # The first begins its own rollout and the next; the last publishes for that of a longer training.
    assert parts(first) == [waited + 2 * BEGINNING, LEARNING, copied + PUBLISHING, 0.0]
    assert parts(second) == [waited + BEGINNING, LEARNING, copied, LOGGING]
    assert parts(last) == [waited, LEARNING, copied, LOGGING]
    assert last["seconds_overlapped"] == SAMPLING - waited


def test_what_a_sampler_copies_meanwhile_is_not_taken_from_learning(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(self: Agent, rollout: Any) -> Metrics:
        clock.spend(LEARNING / 2)
        counters[0].seconds_copying += 1.0  # in the sampler's thread, on its own GPU
        counters[0].seconds_crossing += 1.0
        return {}

    counters: list[Counters] = []

    def made(self: Placement, clock: Clock, max_lag: int) -> None:
        self._clock, self.counters, self.max_lag = clock, Counters(), max_lag
        counters.append(self.counters)

    monkeypatch.setattr(Agent, "update", update)
    monkeypatch.setattr(Placement, "__init__", made)
    second = iterations(1, clock, 3)[1]
    assert parts(second) == [SAMPLING - LEARNING + BEGINNING, LEARNING, PUBLISHING + TRANSFER, LOGGING]


@pytest.mark.parametrize("max_lag", [0, 1])
def test_the_parts_are_the_whole(max_lag: int, clock: Clock) -> None:
    begun = clock.now
    history = iterations(max_lag, clock, 5)
    assert sum(sum(parts(metrics)) for metrics in history) == history[-1]["seconds"] == clock.now - begun - LOGGING
    assert [metrics["steps_per_second"] for metrics in history] == [16 / sum(parts(metrics)) for metrics in history]


@pytest.mark.parametrize("max_lag", [0, 1])
def test_the_parts_are_the_whole_by_the_real_clock(max_lag: int) -> None:
    history: list[Metrics] = []
    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    hybridppo.train(
        "CartPole-v1",
        total_steps=20 * 32,
        placement=Mirrored("cpu", "cpu", force_copy=True, max_lag=max_lag),
        config=config,
        num_workers=0,
        progress=False,
        on_iteration=history.append,
    )
    for metrics in history:
        assert min(parts(metrics)) >= 0
    whole = sum(sum(parts(metrics)) for metrics in history[1:])
    assert whole == pytest.approx(history[-1]["seconds"] - history[0]["seconds"], rel=1e-9)


# Copies of a GPU, by events that tell what they are told


class Event:
    """Notes when it was recorded, by a GPU's clock in milliseconds."""

    gpu_now, waits = 0.0, 0

    def record(self, stream: Any) -> None:
        self.time = Event.gpu_now

    def elapsed_time(self, other: "Event") -> float:
        return other.time - self.time

    def synchronize(self) -> None:
        Event.waits += 1


def test_on_a_gpu_copies_are_timed_by_events(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []

    def wait_for(*devices: torch.device) -> None:
        clock.spend(7.0)  # the host waits for whatever the GPU still had to do
        waited.extend(devices)

    monkeypatch.setattr(Cuda, "timing_event", lambda self: Event())
    monkeypatch.setattr(Cuda, "current_stream", lambda self: None)
    monkeypatch.setattr(crossing, "wait_for", wait_for)
    devices = torch.device("cpu"), torch.device("cuda:0")
    with crossing.CopyTimer(*devices) as timer:
        Event.gpu_now += 20.0
    assert timer.seconds == 0.02
    assert (Event.waits, waited) == (1, [devices[0]])


def test_on_the_cpu_copies_are_timed_by_the_host(clock: Clock) -> None:
    with crossing.CopyTimer(torch.device("cpu"), torch.device("cpu")) as timer:
        clock.spend(3.0)
    assert timer.seconds == 3.0


def test_learning_ends_when_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr("hybridppo.placements.placement.wait_for", lambda *devices: waited.extend(devices))
    with Mirrored("cpu", "cpu").learning(None):  # type: ignore[arg-type]
        assert waited == []
    assert waited == [torch.device("cpu")]


def test_two_threads_may_count_at_once() -> None:
    counters = Counters()
    other = threading.Thread(target=partial(counters.add, num_bytes=1, seconds=1.0))

    class Meanwhile(int):
        """Lets the other thread count while this number is being added."""

        def __radd__(self, total: int) -> int:
            other.start()
            other.join(0.2)
            return total + int(self)

    counters.add(num_bytes=Meanwhile(2), seconds=2.0)
    other.join()
    assert (counters.bytes_copied, counters.seconds_copying) == (3, 3.0)
