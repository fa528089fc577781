"""Sampling in this process."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridppo.environments.base import Environments, EnvState, closed
from hybridppo.environments.info_metrics import Sums
from hybridppo.environments.steering import Steering
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.page_locking import allocate
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.stepping import Stepper, StepperState
from hybridppo.spaces.distributions import Distribution
from hybridppo.system.threads import one_blas_thread

Array = NDArray[Any]


class Sampler(BaseSampler):
    """Steps environments in this process: when the rollout is waited for, or in a thread.

    Args:
        environments: the `N` environments; closed with the sampler.
        distribution: of the action space.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness.
        pin_for: the device that rollouts are copied to, where its copies are faster from page-locked memory; else None.
        in_thread: begin at once, in a thread. It gains where learning leaves Python alone meanwhile, as on a GPU.
        thread: which; None for one of its own.
        memory: the actors', where they have one.
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
    ) -> None:
        # With a thread, one to fill while the other is learned from.
        buffers = [allocate_for(environments, distribution, num_steps, pin_for, memory) for _ in range(1 + in_thread)]
        skips_row_after_end = environments.skips_row_after_end
        super().__init__(
            bytearray(1),
            buffers,
            distribution,
            environments.encode,
            skips_row_after_end=skips_row_after_end,
            noise=noise,
            memory=memory,
            num_agents=environments.num_agents,
            clips_rewards=environments.clips_rewards,
        )
        self._environments = environments
        self._wait: Callable[[], tuple[int, FinalObservations]] = closed
        self._stepper = Stepper(environments, distribution, env_seed, memory)
        self._thread = (thread or ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler")) if in_thread else None

    def show_steps_in(self, heartbeat: Array) -> None:
        """Write there, as its first number, how many rows of a rollout are filled: whether it goes on."""
        self._stepper.heartbeat = heartbeat

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        fill = partial(self._stepper.fill, buffer, actor, self._stop, first)
        if self._thread is None:
            self._wait = partial(on_one_thread, fill)
        else:
            self._wait = self._thread.submit(fill).result

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        return self._wait()

    def measure_infos(self, names: Sequence[str]) -> None:  # noqa: D102 - as in the base
        self._environments.measure_infos(names)
        self._info_names = names

    def _take_infos(self) -> list[Sums]:
        return [self._environments.take_infos()]

    def _require_steerable(self) -> None:
        pass

    def _steer(self, steering: Steering) -> list[Any]:
        return self._environments.steer(steering)

    def _stepper_state(self) -> StepperState:
        return self._stepper.state()

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        self._stepper.load_state(states, observation, remembered)

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._stepper.seconds

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._stepper.restart(env_seed)

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._wait = closed  # an error in a thread is kept by whoever waits for it, and keeps this sampler alive
        self._environments.close()


def on_one_thread(fill: Callable[[], tuple[int, FinalObservations]]) -> tuple[int, FinalObservations]:
    """Fill, and multiply on one thread: more gain little at an actor's products, and the update wants their cores."""
    if torch.get_num_threads() == 1:  # and NumPy has as many
        return fill()
    with one_blas_thread():
        return fill()


def allocate_for(
    environments: Environments,
    distribution: Distribution,
    num_steps: int,
    pin_for: torch.device | None,
    memory: MemoryLayout | None = None,
) -> RolloutBuffer:
    """Arrays for one rollout, page-locked where they are for a device that copies faster from there."""
    layout = RolloutBuffer.layout(num_steps, environments.num_envs, environments.encode, distribution, memory)
    return allocate(layout, pin_for)
