"""The interface between `Workers` and the processes or machines that they are on."""

from collections.abc import Iterator, Sequence
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

    def name(self, worker: int, role: str = "worker") -> str:
        """A worker, for messages."""
        envs = self.shares[worker]
        return f"{role} {worker} (environments {envs.start} to {envs.stop - 1})"


class Transport(Protocol):
    """Workers by number, each with some of the environments; messages and rollouts between them and the sampler.

    Each message is answered once, in order, and more may be sent before the answer. A worker that dies, or makes no
    step for too long, is reported as a `WorkerLostError` where its answer is waited for. The caller decides what to do.
    """

    buffers: list[RolloutBuffer]
    """The arrays of rollouts."""
    stop: Flag
    """Set to 1 to stop workers before their next step."""

    @property
    def workers(self) -> list[int]:
        """The numbers of the started workers."""
        ...

    def start(self, worker: int, env_seed: int) -> None:
        """Start a worker, whose first environment gets this seed. It answers when its environments are made."""
        ...

    def wait_until_ready(self, workers: Sequence[int]) -> None:
        """Wait until workers have made their environments, or raise the `WorkerLostError` of a lost one."""
        ...

    def publish(self, parameters: Sequence[Array], version: int) -> None:
        """Publish the actor's parameters for all rows that workers begin from now on."""
        ...

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:
        """Let a worker fill its columns of a buffer from row `first` on; with `end`, it does not stop before that row.

        It answers with a `Filled` (`share.py`).

        Raises:
            WorkerLostError: if it is known to be lost.
        """
        ...

    def ask(self, worker: int, kind: str, value: Any) -> None:
        """Send any other message, see `Share.answer`; raises as `fill` does."""
        ...

    def answers(
        self, workers: Sequence[int], *, patience: float | None = None
    ) -> Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]:
        """Each worker's next answer and the seconds that it took, as they come; or how the worker was lost.

        Args:
            workers: those that owe an answer.
            patience: seconds to wait for the first answer, and then only for those that are there; None to wait for
                all.
        """
        ...

    def end(self, worker: int) -> None:
        """End a lost worker, of which no answer comes any more; `start` then starts another in its place."""
        ...

    def close(self) -> None:
        """End all of them; a second call does nothing."""
        ...
