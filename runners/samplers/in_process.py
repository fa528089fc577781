"""Sampling in this process."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.state_dependent import noise_rows
from hybridppo.environments.base import Environments, EnvState, closed
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.page_locking import allocate
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.stepping import Stepper, StepperState
from hybridppo.runners.samplers.under_way import RolloutUnderWay
from hybridppo.spaces.arrays import Array
from hybridppo.system.threads import one_blas_thread
from hybridppo.system.validation import whole

CHUNK = 128
"""Steps for which a rollout of whole episodes draws noise at a time, because its length is not known beforehand."""
FIRST_CAPACITY = 8 * CHUNK
"""Steps that fit into the first buffers for whole episodes; larger ones replace them if episodes are longer."""


class Sampler(BaseSampler):
    """Steps environments in this process: when the rollout is waited for, or at once in a thread.

    With `num_episodes`, a rollout `[T, 1]` is so many whole episodes of one environment. The `k`-th episode of the
    training is reset with `env_seed + k`. A rollout that is broken off is sampled again from its first episode, so a
    resumed training has the same episodes, even if the environment's state cannot be saved.

    Args:
        environments: the `N` environments; closed with the sampler.
        distribution: distribution of the actions.
        num_steps: `T`; ignored with `num_episodes`.
        num_episodes: whole episodes per rollout; None for `num_steps`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: generator of the actions' randomness.
        pin_for: the device that rollouts are copied to, if it copies faster from page-locked memory; else None.
        in_thread: begin at once, in a thread. This is faster if learning does not need Python meanwhile, as on a GPU.
        thread: the thread; None for a new one.
        memory: layout of the state of a recurrent actor.
        discounts: as for `BaseSampler`.

    Raises:
        ConfigurationError: for whole episodes of anything but one environment that the library steps.
    """

    def __init__(
        self,
        environments: Environments,
        distribution: Distribution,
        *,
        num_steps: int = FIRST_CAPACITY,
        num_episodes: int | None = None,
        env_seed: int,
        noise: np.random.Generator,
        pin_for: torch.device | None = None,
        in_thread: bool = False,
        thread: ThreadPoolExecutor | None = None,
        memory: MemoryLayout | None = None,
        discounts: Callable[[], Array] | None = None,
    ) -> None:
        num_columns, encode = environments.num_envs, environments.encode

        def allocate_for(num_steps: int) -> RolloutBuffer:
            return allocate(RolloutBuffer.layout(num_steps, num_columns, encode, distribution, memory), pin_for)

        capacity = num_steps if num_episodes is None else FIRST_CAPACITY
        # With a thread, one buffer is filled while the agent learns from the other.
        buffers = [allocate_for(capacity) for _ in range(1 + in_thread)]
        super().__init__(
            environments, bytearray(1), buffers, distribution, noise=noise, memory=memory, discounts=discounts
        )
        self._environments, self._allocate = environments, allocate_for
        self._num_episodes, self._env_seed, self._noise_seed = num_episodes, env_seed, 0
        if num_episodes is not None:
            self._seed_episodes(env_seed + 1)
        self._wait: Callable[[], tuple[int, FinalObservations]] = closed
        self._stepper: Stepper = Stepper(environments, distribution, env_seed, memory)
        self._thread = (thread or ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler")) if in_thread else None

    def show_steps_in(self, heartbeat: Array) -> None:
        """Write the number of filled rows into the first element of this array, for a watcher in another process."""
        self._stepper.heartbeat = heartbeat

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        fill = partial(self._stepper.fill, buffer, actor, self._stop, first)
        if self._num_episodes is not None:
            fill = partial(self._fill_episodes, buffer, actor, self._num_episodes)
        self._wait = partial(on_one_thread, fill) if self._thread is None else self._thread.submit(fill).result

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        found = self._wait()
        self.seconds_filling = self._stepper.seconds
        return found

    def _fill_episodes(
        self, buffer: RolloutBuffer, actor: SamplingActor, num_episodes: int
    ) -> tuple[int, FinalObservations]:
        """Fill a buffer with whole episodes, or with nothing if a stop breaks them off."""
        distribution, generator = self._distribution, np.random.default_rng(self._noise_seed)
        finals: FinalObservations = []
        filled, seconds = 0, 0.0
        while num_episodes:
            first, end = filled, filled + CHUNK
            if end > len(buffer.rewards):
                buffer = self._replaced(buffer)
            rows = slice(noise_rows(distribution, first), noise_rows(distribution, end))
            buffer.noise[rows] = distribution.draw_noise(generator, (rows.stop - rows.start, 1))
            filled, found = self._stepper.fill(buffer, actor, self._stop, first, end, num_episodes)
            finals, seconds = finals + found, seconds + self._stepper.seconds
            num_episodes -= int((buffer.terminated[first:filled] | buffer.truncated[first:filled]).sum())
            if num_episodes and filled < end:  # stopped
                self.restart(self._env_seed)
                return 0, []
        if finals and finals[-1][0] == filled - 1 and self._encode.frames is None:
            buffer.observations[filled] = finals.pop()[2]  # not the first of the next rollout's episode
        self._stepper.seconds = seconds
        return filled, finals

    def _replaced(self, buffer: RolloutBuffer) -> RolloutBuffer:
        """A buffer with twice the rows, in place of one that is full."""
        larger = self._allocate(2 * len(buffer.rewards))
        larger.copy_from(buffer)
        self._buffers = [larger if mine is buffer else mine for mine in self._buffers]
        self._rollout_under_way().buffer = larger
        return larger

    def _is_complete(self, filled: int) -> bool:
        return super()._is_complete(filled) if self._num_episodes is None else filled > 0

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        if self._num_episodes is None:
            super()._draw_noise(buffer)
        else:
            self._noise_seed = int(self._noise.integers(2**63))

    def restart(self, env_seed: int) -> None:
        """As in the base; whole episodes go on with the episode that is next."""
        if self._num_episodes is not None:
            env_seed = self._env_seed + self.statistics.episodes
            self._seed_episodes(env_seed + 1)
            if self._info_names:  # those of a rollout that was broken off do not count
                self._environments.measure_infos(self._info_names)
        super().restart(env_seed)

    def _seed_episodes(self, seed: int) -> None:
        """Reset the environment with this seed when its next episode begins, and then with the seeds that follow."""
        environments = self._environments
        if not isinstance(environments, SyncEnvironments) or environments.num_envs != 1:
            raise ConfigurationError(
                "whole episodes come from one environment that is stepped by itself, not from a vector of "
                f"{environments.num_envs}: set num_envs=1 and vectorization='auto' or 'sync', with an environment's id "
                "or a function that makes a gymnasium.Env"
            )
        environments.episode_seeds = itertools.count(seed)

    def _stepper_state(self) -> StepperState:
        if self._num_episodes is None:
            return super()._stepper_state()
        state_size = 0 if self._memory is None else self._memory.state_size + 2
        return [], self._no_row(1), np.zeros((1, state_size), np.float32)  # every rollout begins with a reset

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        if self._num_episodes is None:
            super()._load_stepper_state(states, observation, remembered)
        else:
            self.restart(self._env_seed)

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        if self._num_episodes is None or self._under_way is None:
            return super()._state_under_way()
        return {}, {"version": self._under_way.version, "noise_seed": self._noise_seed}

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self._num_episodes is None:
            super()._load_under_way(tensors, state)
            return
        self._under_way = RolloutUnderWay(self._next_buffer(), whole(state, "version"))
        self._noise_seed = whole(state, "noise_seed")

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._wait = closed  # else an error in the thread, which its future keeps, would keep this sampler alive
        super().close()


def on_one_thread(fill: Callable[[], tuple[int, FinalObservations]]) -> tuple[int, FinalObservations]:
    """Fill with BLAS on one thread: an actor's products are small, and the update needs the cores."""
    if torch.get_num_threads() == 1:  # then NumPy has one, too
        return fill()
    with one_blas_thread():
        return fill()
