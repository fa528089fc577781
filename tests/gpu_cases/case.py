"""A check of this machine, and the comparison of a training with the same training on the CPU."""

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from hybridppo.agents import PPOConfig
from hybridppo.errors import shown
from hybridppo.interfaces import Agent, Metrics, agents_of
from hybridppo.placements.crossing import available_device
from hybridppo.placements.placement import Migrating, Mirrored, Placement, SingleDevice
from hybridppo.running import TrainResult
from hybridppo.system.devices import accelerator_of, num_cuda_devices
from hybridppo.training import train

Status = Literal["passed", "failed", "not possible here"]

SMALL = PPOConfig(num_envs=4, num_steps=32, num_epochs=2, num_minibatches=2, hidden_sizes=(32, 32), learning_rate=1e-3)
"""The small training of most checks: they look for agreement, and rounding errors grow."""
TOLERANCES = {"fp32": 0.005, "tf32": 0.1, "bf16": 0.3}
"""The largest distance between the parameters and those of the CPU's float32, as a share of the distance that training
has moved them. Measured on a CPU over the 16 steps of these checks: two forms of float32 end 0.000002 apart, torch's
bfloat16 ends 0.006 from float32 with an MLP and 0.14 with convolutions. The report has the distances on a GPU."""


PLACEMENTS = ("single", "migrate", "hybrid", "overlap", "overlap on one device")


class NotPossibleHere(Exception):  # noqa: N818 - no error: an answer
    """This machine lacks something that a check needs."""


class DisagreementError(AssertionError):
    """A check found a disagreement."""


@dataclass(frozen=True)
class Case:
    """A check."""

    name: str
    what: str
    """The checked property, as a sentence for the report."""
    run: Callable[["Bench"], str]
    """Makes the check, and returns the finding in a few words."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    name: str
    what: str
    status: Status
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Bench:
    """The equipment of checks: a device to learn on, and a folder for their files.

    If the CPU stands in for the device, placements copy within the CPU, and checks of a GPU are not possible.
    """

    device_name: str
    folder: Path

    @cached_property
    def device(self) -> torch.device:
        """The device; without one, a `NotPossibleHere` with the reason."""
        if self.device_name.startswith("cuda") and not num_cuda_devices():
            raise NotPossibleHere(f"torch {torch.__version__} sees no CUDA device")
        return available_device(self.device_name)

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return accelerator_of(self.device).is_asynchronous

    def needs_gpu(self, what: str) -> None:
        """Raise `NotPossibleHere` if the CPU stands in for a GPU."""
        if not self.is_gpu:
            raise NotPossibleHere(f"{what} needs a CUDA device, and {self.device} stands in for one")

    def needs_precision(self, precision: str) -> None:
        """Raise `NotPossibleHere` if the device cannot multiply in this precision."""
        accelerator = accelerator_of(self.device)
        if precision == "tf32" and not accelerator.supports_tf32():
            raise NotPossibleHere(f"{self.device} has no tensor cores for TF32")
        if precision == "bf16" and not accelerator.supports_bf16():
            raise NotPossibleHere(f"{self.device} has no tensor cores for bfloat16")

    def train(
        self,
        placement: Any,
        config: PPOConfig = SMALL,
        *,
        env: Any = "CartPole-v1",
        updates: int = 4,
        on_iteration: Callable[[Metrics], object] = lambda metrics: None,
        **options: Any,
    ) -> tuple[TrainResult, list[Metrics]]:
        """A short training, and the metrics of its updates; a warning is an error."""
        history: list[Metrics] = []

        def note(metrics: Metrics) -> None:
            history.append(metrics)
            on_iteration(metrics)

        episodes = config.episodes_per_rollout
        goal: dict[str, Any] = {"total_steps": updates * config.batch_size}
        if episodes is not None:
            goal = {"total_steps": 10**7, "total_episodes": updates * episodes}
        arguments = {"seed": 0, "vectorization": "sync", "num_workers": 0, **goal, **options}
        result = train(env, placement=placement, config=config, progress=False, on_iteration=note, **arguments)
        return result, history

    def begun(self, config: PPOConfig, *, env: Any = "CartPole-v1") -> Tensor:
        """The parameters at the start of trainings with this configuration."""
        unmoved = replace(config, learning_rate=1e-30, critic_learning_rate=None, precision="fp32", cuda_graphs=False)
        return values_of(self.train("cpu", unmoved, env=env, updates=1)[0].agent)


def values_of(agent: Agent) -> Tensor:
    """All parameters, of one policy after the other, on the host, as the CPU lays them out."""
    dense = [each.parameters.dense(each.parameters.values.data) for each in agents_of(agent)]
    return torch.cat([torch.empty(each.shape).copy_(each) for each in dense])


def distance(found: Agent, expected: Agent, begun: Tensor) -> float:
    """The distance between two agents, as a share of the distance of the second one from their common start."""
    way = (values_of(expected) - begun).norm()
    return float((values_of(found) - values_of(expected)).norm() / way)


@contextmanager
def _telling_of_waits() -> Iterator[None]:
    """A context in which torch warns of each operation that makes the host wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once in a process that this mode is a prototype
            torch.cuda.set_sync_debug_mode("warn")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def waits_of(work: Callable[[], object], device: torch.device) -> int:
    """How often the host waits for the device while it does this work."""
    telling = getattr(accelerator_of(device), "telling_of_waits", _telling_of_waits)  # a pretended GPU has its own
    with warnings.catch_warnings(record=True) as caught, telling():
        warnings.simplefilter("always")
        work()
    return sum("synchroniz" in str(warning.message) for warning in caught)


def require(holds: bool, what: str) -> None:
    """Raise a `DisagreementError` unless this holds."""
    if not holds:
        raise DisagreementError(what)


def attempt(case: Case, bench: Bench) -> Outcome:
    """Run a check, and catch whatever it raises. Warnings are errors."""
    start = time.perf_counter()
    status: Status
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Other packages of the user may use deprecated functions.
            warnings.filterwarnings("default", category=DeprecationWarning)
            warnings.filterwarnings("default", category=PendingDeprecationWarning)
            status, detail = "passed", case.run(bench)
    except NotPossibleHere as reason:
        status, detail = "not possible here", str(reason)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = shown(str(error), 600).strip("'\"")
        status, detail = "failed", f"{type(error).__name__}: {said} ({Path(place.filename).name}:{place.lineno})"
    return Outcome(case.name, case.what, status, detail, time.perf_counter() - start)


def placement_on(name: str, bench: Bench, sampling: str = "cpu") -> Placement:
    """The placement of this name that learns on the bench's device; it copies even if that is the CPU."""
    device = bench.device
    forced = not bench.is_gpu
    if name == "single":
        return SingleDevice(device)
    if name == "migrate":
        return Migrating(sampling, device, force_copy=forced)
    if name == "hybrid":
        return Mirrored(sampling, device, verify=True, force_copy=forced)
    if name == "overlap":
        return Mirrored(sampling, device, max_lag=1)
    return Mirrored(device, device, max_lag=1)


def on_the_cpu(name: str) -> Placement:
    """The placement to compare with: on the CPU alone, with the same lag."""
    return Mirrored("cpu", "cpu", max_lag=1) if name.startswith("overlap") else SingleDevice("cpu")


def agrees(
    bench: Bench, name: str, config: PPOConfig = SMALL, env: Any = "CartPole-v1", *, updates: int = 4,
    num_workers: int = 0,
) -> str:  # fmt: skip
    """Train under the placement and on the CPU, and compare where both end.

    If only the placement differs, and learns on the CPU, both must end at the same bits.
    """
    if config.precision != "fp32":
        bench.needs_precision(config.precision)
    if config.cuda_graphs:
        bench.needs_gpu("recording a CUDA graph")
    found, history = bench.train(placement_on(name, bench), config, env=env, updates=updates, num_workers=num_workers)
    reference = replace(config, precision="fp32", cuda_graphs=False, fast_updates=True)
    expected, _ = bench.train(on_the_cpu(name), reference, env=env, updates=updates)
    is_there = all(each.parameters.values.device == bench.device for each in agents_of(found.agent))
    require(is_there, f"the agent is not on {bench.device}")
    if config == reference and bench.device.type == "cpu":
        require(torch.equal(values_of(found.agent), values_of(expected.agent)), "the parameters differ")
        return f"the same bits after {updates} updates"
    said = near(distance(found.agent, expected.agent, bench.begun(reference, env=env)), config.precision)
    if config.cuda_graphs:
        names = ("graph_recordings", "graph_replays", "graph_eager_steps")
        counts = {name: sum(metrics[name] for metrics in history) for name in names}
        # If rollouts are whole episodes, minibatch sizes may occur only once.
        require(counts["graph_replays"] > 0 or config.episodes_per_rollout is not None, "no step was replayed")
        said += "; " + ", ".join(f"{count:.0f} {name}" for name, count in counts.items())
    return said


def near(found: float, precision: str = "fp32") -> str:
    """Require that a distance is within the tolerance of this precision."""
    said = f"ends {found:.2g} of the way from the CPU's end (allowed: {TOLERANCES[precision]})"
    require(found <= TOLERANCES[precision], said)
    return said
