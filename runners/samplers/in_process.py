"""Sampling in this process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridppo.environments.base import Environments, closed
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.page_locking import allocate
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.stepping import Stepper
from hybridppo.spaces.distributions import Distribution
from hybridppo.system.threads import one_blas_thread

Array = NDArray[Any]


class Sampler(BaseSampler):
    """Steps environments in this process: while the rollout is waited for, or in a thread.

    Args:
        environments: the `N` environments; closed with the sampler.
        distribution: distribution of the actions.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: generator of the actions' randomness.
        pin_for: the device that rollouts are copied to, if it copies faster from page-locked memory; else None.
        in_thread: begin at once, in a thread. It is faster if learning leaves Python free meanwhile, as on a GPU.
        thread: the thread; None for a new one.
        memory: layout of the state of a recurrent actor.
        discounts: as for `BaseSampler`.
    """

    def __init__(
        self,
        environments: Environments,
        distribution: Distribution,
        *,
        num_steps: int,
        env_seed: int,
        noise: np.random.Generator,
        pin_for: torch.device | None = None,
        in_thread: bool = False,
        thread: ThreadPoolExecutor | None = None,
        memory: MemoryLayout | None = None,
        discounts: Array | None = None,
    ) -> None:
        num_columns, encode = environments.num_envs, environments.encode

        def allocate_for(num_steps: int) -> RolloutBuffer:
            return allocate(RolloutBuffer.layout(num_steps, num_columns, encode, distribution, memory), pin_for)

        # With a thread, one buffer is filled while the agent learns from the other.
        buffers = [allocate_for(num_steps) for _ in range(1 + in_thread)]
        super().__init__(
            environments, bytearray(1), buffers, distribution, noise=noise, memory=memory, discounts=discounts
        )
        self._allocate = allocate_for
        self._wait: Callable[[], tuple[int, FinalObservations]] = closed
        self._stepper: Stepper = Stepper(environments, distribution, env_seed, memory)
        self._thread = (thread or ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler")) if in_thread else None

    def show_steps_in(self, heartbeat: Array) -> None:
        """Write the number of filled rows into the first element of this array, for a watcher in another process."""
        self._stepper.heartbeat = heartbeat

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        fill = partial(self._fill, buffer, actor, first)
        self._wait = partial(on_one_thread, fill) if self._thread is None else self._thread.submit(fill).result

    def _fill(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> tuple[int, FinalObservations]:
        return self._stepper.fill(buffer, actor, self._stop, first)

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        found = self._wait()
        self.seconds_filling = self._stepper.seconds
        return found

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._wait = closed  # an error in a thread is kept by whoever waits for it, and keeps this sampler alive
        super().close()


def on_one_thread(fill: Callable[[], tuple[int, FinalObservations]]) -> tuple[int, FinalObservations]:
    """Fill with BLAS on one thread: an actor's products are small, and the update needs the cores."""
    if torch.get_num_threads() == 1:  # then NumPy has one, too
        return fill()
    with one_blas_thread():
        return fill()
