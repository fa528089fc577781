"""What is to be done, and what was measured: the numbers that predictions are made of."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Name = Literal["cpu", "cuda", "migrate", "hybrid", "overlap"]


@dataclass(frozen=True)
class Work:
    """What is to be done, and on what."""

    num_envs: int
    num_steps: int
    """Of each environment per rollout."""
    iterations: int
    """Rollouts in the whole run, over which what starts once is spread."""
    cores: int
    """CPU cores that this process may use."""
    num_workers: int | None = None
    """Asked for by the user; None leaves it open."""
    splits: bool = False
    """Whether the environments may be divided among processes without changing the result."""
    draws_on_device: bool = False
    """Whether sampling on an accelerator draws other noise than the CPU, so that it gives another result."""
    has_workers: bool = True
    """Whether the actor can sample in another process at all."""
    torch_threads: int = 1
    """As configured."""


@dataclass(frozen=True)
class AcceleratorFigures:
    """Seconds of what happens on, from or to an accelerator."""

    device: str
    action: float
    """The actor's outputs for one step of all environments, there and back."""
    crossing: float
    """Of it, copying."""
    update: float
    """A whole update."""
    publish: float
    """The actor's parameters, in one flat copy."""
    move: float
    """The actor there and home again, tensor by tensor."""
    transfer: float
    """A rollout."""
    remainder: float
    """The rest of a rollout whose actor was on the device: the observations that it acted on are there already."""


@dataclass(frozen=True)
class FormFigures:
    """Seconds of updates in another arithmetic on the CPU."""

    update: float
    """A whole update."""
    start: float
    """Once, until the first."""
    threads: int = 1
    """Of torch, with which that was."""


@dataclass(frozen=True)
class Figures:
    """Seconds measured on the real environment, networks and configuration."""

    step: Mapping[int, float]
    """By number of environments: one step of them with its actions, in this process."""
    action: float
    """Of a step of all environments, the actor and the choice of actions."""
    rollout: float
    """Once per rollout: noise, log-probabilities, statistics."""
    update: Mapping[int, float]
    """By number of torch threads: a whole update on the CPU."""
    publish: float = 5e-5
    """The actor's parameters to a replica on the CPU."""
    message: float = 3e-4
    """A rollout's messages to worker processes and back."""
    worker_start: float = 0.15
    """Until a worker process is ready; they start all at once, as many at a time as there are cores."""
    slowdown: float = 1.05
    """How many times longer work takes while another core works too."""
    accelerator: AcceleratorFigures | None = None
    forms: Mapping[str, FormFigures] = field(default_factory=dict)
    """By what to set for them, updates in another arithmetic, which are told of and not taken."""
    assumed: tuple[str, ...] = ("publish", "message", "worker_start", "slowdown")
    """The fields above that nobody measured."""

    def to_json(self) -> dict[str, Any]:
        """The figures, as JSON can hold them."""
        return asdict(self)


@dataclass
class Calibration:
    """What was measured, how long it took, and what was not."""

    figures: Figures | None = None
    """None where the run is too short to measure anything."""
    is_over: bool = False
    """Whether there was no time for more than the first figures."""
    seconds: float = 0.0
    seconds_once: float = 0.0
    """Of these, what training need not spend any more: what is loaded with a process's first agent, and the
    accelerator's first update."""
    stages: dict[str, float] = field(default_factory=dict)
    """How long each kind of measurement took."""
    left_out: list[str] = field(default_factory=list)
    """What was not measured, with the reason."""
