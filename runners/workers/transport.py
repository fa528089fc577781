"""What a worker sampler asks of its workers, wherever they are."""

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
"""How long workers may at least take to start, load what they need, and make and reset their environments."""


class WorkerLostError(EnvError):
    """A worker that has died or hangs; which one, and how it ended."""


@dataclass(frozen=True)
class Work:
    """What workers are started for."""

    shares: Sequence[slice]
    """Slices of the environments, by worker."""
    columns: Sequence[slice]
    """Columns of a rollout, by worker: an environment has one for each of its agents."""
    layout: Layout
    """The layout of a buffer: a rollout, or a part of one."""
    num_buffers: int
    """How many of them there are."""
    num_parameters: int
    """Numbers in the actor's parameters."""
    setup: dict[str, Any]
    """The settings of all workers (`Share`)."""
    options: EnvironmentOptions
    pin_for: torch.device | None
    """The device that rollouts are copied to, where its copies are faster from page-locked memory; else None."""

    def allocate(self) -> RolloutBuffer:
        """Arrays for a rollout in this process, page-locked where that is wanted."""
        return allocate(self.layout, self.pin_for)

    def name(self, worker: int, role: str = "worker") -> str:
        """A worker, for messages."""
        envs = self.shares[worker]
        return f"{role} {worker} (environments {envs.start} to {envs.stop - 1})"


class Transport(Protocol):
    """Workers by number, each with its share of the environments; and what crosses between them and the sampler.

    A message is answered once, in the order of messages, and more may be sent before it is answered. A worker that
    dies, or makes no step for too long, raises a `WorkerLostError` where its answer is waited for. The sampler decides
    what to do then.
    """

    buffers: list[RolloutBuffer]
    """The arrays that rollouts are in, in turn."""
    stop: Flag
    """Set to let those that fill stop before their next step."""

    @property
    def workers(self) -> list[int]:
        """The numbers of those that were started."""
        ...

    def start(self, worker: int, env_seed: int) -> None:
        """Start one, whose first environment starts from this seed. It answers when its environments are made."""
        ...

    def wait_until_ready(self, workers: Sequence[int]) -> None:
        """Wait until their environments are made, or raise the `WorkerLostError` of one that is lost meanwhile."""
        ...

    def publish(self, parameters: Sequence[Array], version: int) -> None:
        """The actor's parameters, by which workers act in whatever they begin to fill from now on."""
        ...

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:
        """Let one fill its columns of a buffer, from row `first` on; those with an `end` do not stop before.

        It answers with a `Filled` (`share.py`).

        Raises:
            WorkerLostError: where it is known to be lost.
        """
        ...

    def ask(self, worker: int, kind: str, value: Any) -> None:
        """Any other message, see `Share.answer`; raises as `fill` does."""
        ...

    def answers(
        self, workers: Sequence[int], *, patience: float | None = None
    ) -> Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]:
        """What each answers next, with the seconds it took, as they do; or how it was lost.

        Args:
            workers: who owe an answer.
            patience: seconds to wait for the first of them, and then only for those that are there; None for all.
        """
        ...

    def end(self, worker: int) -> None:
        """Let go of one that is lost; nothing of it comes any more, and `start` starts another in its place."""
        ...

    def close(self) -> None:
        """End all of them; a second call does nothing."""
        ...
