"""The interfaces between `Workers` and the processes or machines that they are on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import EnvError
from hybridppo.rollouts.buffer import Layout, RolloutBuffer
from hybridppo.rollouts.page_locking import allocate
from hybridppo.runners.samplers.stepping import Flag

Array = NDArray[Any]

SECONDS_TO_START = 120.0
"""The least time limit for workers to start, load their modules, and make and reset their environments."""


class WorkerLostError(EnvError):
    """A worker that has died or hangs; which one, and how it ended."""


def name_of(role: str, worker: int, envs: slice) -> str:
    """A worker, for messages."""
    return f"{role} {worker} (environments {envs.start} to {envs.stop - 1})"


@dataclass(frozen=True)
class Work:
    """The work of a group of workers."""

    shares: Sequence[slice]
    """The environments of each worker."""
    columns: Sequence[slice]
    """The columns of each worker; an environment has a column for each of its agents."""
    layout: Layout
    """The layout of a buffer: of a rollout, or of a part of one."""
    num_buffers: int
    """The number of buffers."""
    num_parameters: int
    """The number of the actor's parameters."""
    setup: dict[str, Any]
    """Sent to all workers (`Share`)."""
    options: EnvironmentOptions
    pin_for: torch.device | None
    """The device that rollouts are copied to, if it copies faster from page-locked memory; else None."""

    def allocate(self) -> RolloutBuffer:
        """Arrays for a rollout in this process, page-locked if `pin_for` is given."""
        return allocate(self.layout, self.pin_for)

    def name(self, worker: int) -> str:
        """A worker, for messages."""
        return name_of("worker", worker, self.shares[worker])


class Connections(Protocol):
    """Starts workers somewhere, and carries messages to and from them: what a `Pool` needs.

    Each message is answered once, in order, and more may be sent before the answer.
    """

    timeout: float
    """Seconds without a sign of life after which a worker is lost."""
    seconds_between_looks: float
    """The longest wait for an answer before workers are looked after."""
    asks_for_rows: bool
    """Whether workers are asked for their rows, from time to time, while their answers are waited for."""

    @property
    def workers(self) -> Iterable[int]:
        """The numbers of the started workers."""
        ...

    def name(self, worker: int) -> str:
        """A worker, for messages."""
        ...

    def start(self, worker: int, env_seed: int) -> None:
        """Start a worker, whose first environment gets this seed. It answers when its environments are made."""
        ...

    def connect(self, worker: int, timeout: float) -> None:
        """Wait until a started worker can receive messages; it may raise as `Pool.wait_until_ready` does."""
        ...

    def all_ready(self) -> None:
        """Called when workers have made their environments."""
        ...

    def send(self, worker: int, message: tuple[str, Any]) -> None:
        """Send a message; may raise a `WorkerLostError` if the worker is lost, and its `EnvError` if it failed."""
        ...

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:
        """The workers that have answered, after at most so many seconds; `together` waits for all."""
        ...

    def receive(self, worker: int) -> tuple[Any, float]:
        """The next answer of a worker that has answered, and its seconds.

        Raises:
            WorkerLostError: if the worker is lost.
            EnvError: if it failed.
        """
        ...

    def rows(self, worker: int) -> int:
        """The last known number of rows that a worker has filled, which shows that it does not hang."""
        ...

    def silence(self, worker: int, rows: int, timeout: float) -> str:
        """How a worker is lost that has made no step for too long, for messages."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker, of which no answer comes any more; a second call does nothing."""
        ...

    def close(self) -> None:
        """Let all workers close their environments, and end them; a second call does nothing."""
        ...


class Transport(Connections, Protocol):
    """`Connections` that also carry parameters and rollouts, between workers and a sampler."""

    buffers: list[RolloutBuffer]
    """The arrays of rollouts."""
    stop: Flag
    """Set to 1 to stop workers before their next step."""

    def publish(self, parameters: Sequence[Array], version: int) -> None:
        """Publish the actor's parameters for all rows that workers begin from now on."""
        ...

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:
        """Let a worker fill its columns of a buffer from row `first` on; with `end`, it does not stop before that row.

        It answers with a `Filled` (`share.py`). It raises as `send` does.
        """
        ...
