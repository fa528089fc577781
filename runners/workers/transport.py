"""The work of workers, and the error if one of them is lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import EnvError
from hybridppo.rollouts.buffer import Layout, RolloutBuffer
from hybridppo.rollouts.page_locking import allocate

SECONDS_TO_START = 120.0
"""The least time limit for workers to start, load their modules, and make and reset their environments."""


class WorkerLostError(EnvError):
    """A worker has died or hangs; the message names it, and says how it ended."""


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
