"""Sampling of whole episodes in this process."""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.runners.samplers.under_way import RolloutUnderWay
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.state_dependent import noise_rows
from hybridppo.system.validation import whole

Array = NDArray[Any]

CHUNK = 128
"""Steps for which noise is drawn at a time, because the length of a rollout is not known beforehand."""
FIRST_CAPACITY = 8 * CHUNK
"""Steps that fit into the first buffers; larger ones replace them if episodes are longer."""


class EpisodeSampler(Sampler):
    """A rollout `[T, 1]` is so many whole episodes of one environment.

    The `k`-th episode of the training is reset with `env_seed + k`. A rollout that is broken off is sampled again from
    its first episode, so a resumed training has the same episodes, even if the environment's state cannot be saved.

    Args:
        environments: one environment that the library steps; closed with the sampler.
        distribution: distribution of the actions.
        num_episodes: episodes per rollout.
        env_seed: the environment starts from it.
        **options: as for `Sampler`.

    Raises:
        ConfigurationError: for anything but one environment that the library steps.
    """

    def __init__(
        self,
        environments: Environments,
        distribution: Distribution,
        *,
        num_episodes: int,
        env_seed: int,
        **options: Any,
    ) -> None:
        if not isinstance(environments, SyncEnvironments) or environments.num_envs != 1:
            raise ConfigurationError(
                "whole episodes come from one environment that is stepped by itself, not from a vector of "
                f"{environments.num_envs}: set num_envs=1 and vectorization='auto' or 'sync', with an environment's id "
                "or a function that makes a gymnasium.Env"
            )
        self._environments, self._num_episodes = environments, num_episodes
        self._env_seed, self._noise_seed = env_seed, 0
        environments.episode_seeds = itertools.count(env_seed + 1)
        super().__init__(environments, distribution, num_steps=FIRST_CAPACITY, env_seed=env_seed, **options)

    def _fill(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> tuple[int, FinalObservations]:
        """Fill a buffer with whole episodes, or with nothing if a stop breaks them off."""
        distribution, generator = self._distribution, np.random.default_rng(self._noise_seed)
        finals: FinalObservations = []
        filled, seconds, episodes_left = 0, 0.0, self._num_episodes
        while episodes_left:
            first, end = filled, filled + CHUNK
            if end > len(buffer.rewards):
                buffer = self._replaced(buffer)
            rows = slice(noise_rows(distribution, first), noise_rows(distribution, end))
            buffer.noise[rows] = distribution.draw_noise(generator, (rows.stop - rows.start, 1))
            filled, found = self._stepper.fill(buffer, actor, self._stop, first, end, episodes_left)
            finals, seconds = finals + found, seconds + self._stepper.seconds
            episodes_left -= int((buffer.terminated[first:filled] | buffer.truncated[first:filled]).sum())
            if episodes_left and filled < end:  # stopped
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
        return filled > 0

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        self._noise_seed = int(self._noise.integers(2**63))

    def restart(self, env_seed: int) -> None:
        """Go on with the episode that is next, whatever the seed."""
        seed = self._env_seed + self.statistics.episodes
        self._environments.episode_seeds = itertools.count(seed + 1)
        if self._info_names:  # those of a rollout that was broken off do not count
            self._environments.measure_infos(self._info_names)
        super().restart(seed)

    def _stepper_state(self) -> StepperState:
        state_size = 0 if self._memory is None else self._memory.state_size + 2
        return [], self._no_row(1), np.zeros((1, state_size), np.float32)  # every rollout begins with a reset

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        self.restart(self._env_seed)

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        if self._under_way is None:
            return {}, None
        return {}, {"version": self._under_way.version, "noise_seed": self._noise_seed}

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self._under_way = RolloutUnderWay(self._next_buffer(), whole(state, "version"))
        self._noise_seed = whole(state, "noise_seed")
