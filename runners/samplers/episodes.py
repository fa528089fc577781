"""Sampling whole episodes: of one environment, stepped by itself, one episode after the other."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import isfinite
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.steering import Steering
from hybridppo.environments.sub_environment import SubEnvironment, in_step
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.errors import BadValueError, ConfigurationError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import EpisodeMemory, MemoryLayout
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.in_process import allocate_for
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.runners.samplers.under_way import RolloutUnderWay
from hybridppo.spaces.checks import require_finite
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.registry import first_of
from hybridppo.spaces.state_dependent import exploration_of, noise_rows
from hybridppo.system.validation import whole

Array = NDArray[Any]

CHUNK = 128
"""Steps for which noise is drawn at a time, since nobody knows beforehand how many an episode takes."""
FIRST_CAPACITY = 8 * CHUNK
"""Steps that a rollout has room for at first; it doubles where episodes turn out longer."""


class EpisodeSampler(BaseSampler):
    """A rollout is `num_episodes` whole episodes, `[T, 1]` with whatever `T` they take together.

    The environment is stepped directly, without a vector around it, which for one environment would cost more than the
    environment itself. Every episode starts from a seed of its own, the `k`-th of the training from `env_seed + k`, and
    nothing else is carried from rollout to rollout: a training that is resumed meets the episodes it would have met.

    Args:
        environments: of one environment, which is taken out of them; closed with the sampler.
        distribution: of the action space.
        num_episodes: of each rollout.
        env_seed: of the first episode.
        noise: owner of the actions' randomness; one seed is drawn from it per rollout.
        pin_for: the device that rollouts are copied to, where its copies are faster from page-locked memory; else None.
        in_thread: begin at once, in a thread. It gains where learning leaves Python alone meanwhile, as on a GPU.
        memory: the actors', where they have one.

    Raises:
        ConfigurationError: where there is no one environment to step by itself.
    """

    def __init__(
        self,
        environments: Environments,
        distribution: Distribution,
        *,
        num_episodes: int,
        env_seed: int,
        noise: np.random.Generator,
        pin_for: torch.device | None = None,
        in_thread: bool = False,
        memory: MemoryLayout | None = None,
    ) -> None:
        self._sub_env = _only_one(environments)
        self._allocate = partial(allocate_for, environments, distribution, pin_for=pin_for, memory=memory)
        # With a thread, one to fill while the other is learned from.
        buffers = [self._allocate(FIRST_CAPACITY) for _ in range(1 + in_thread)]
        encode = environments.encode
        super().__init__(
            bytearray(1),
            buffers,
            distribution,
            encode,
            skips_row_after_end=False,
            noise=noise,
            memory=memory,
            clips_rewards=environments.clips_rewards,
        )
        self._environments = environments
        space = environments.observation_space
        self._shape = space.shape if isinstance(space, gym.spaces.Box) else None
        # A vector is written as it is, and so is a row: at a few microseconds a step, encoding it shows.
        is_row = self._shape is None or len(self._shape) == 1
        self._to_row: Callable[[Any], Array] = np.asarray if is_row else partial(_encoded, encode)
        self._only_action = first_of(environments.action_space)
        self._sum = encode.finite_test(1)
        self._num_episodes, self._env_seed = num_episodes, env_seed
        self._seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler") if in_thread else None

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        # How much is needed shows on the way: it comes from a generator that is this rollout's own.
        self._noise_seed = int(self._noise.integers(2**63))

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._rollout_noise = np.random.default_rng(self._noise_seed)
        # As many episodes have begun as have ended and been counted: each ends in the rollout in which it begins.
        self._work = buffer, actor, self._env_seed + self.statistics.episodes
        self._filling = None if self._thread is None else self._thread.submit(self._fill, *self._work)

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        filled = self._fill(*self._work) if self._filling is None else self._filling.result()
        self._filled_buffer, self._num_rows, finals = filled
        return self._num_rows, finals

    def _is_complete(self, filled: int) -> bool:
        return filled > 0

    def _filled(self, buffer: RolloutBuffer) -> RolloutBuffer:
        whole = self._filled_buffer
        # Where it has grown, the larger one stays in its place.
        self._buffers = [whole if mine is buffer else mine for mine in self._buffers]
        return whole.first(self._num_rows, self._memory)

    def _fill(
        self, buffer: RolloutBuffer, actor: SamplingActor, seed: int
    ) -> tuple[RolloutBuffer, int, FinalObservations]:
        """The episodes, from row 0 on; the buffer, or a larger one where it was too small, and how many rows count.

        None does where it is told to stop: sampled again, the episodes are the same.
        """
        start, stop = time.perf_counter(), self._stop
        encode, sample, to_env = self._to_row, self._distribution.sample, self._distribution.to_env
        sub_env, shape, weighted_sum, only = self._sub_env, self._shape, self._sum, self._only_action
        last_seed, restarted_before = seed + self._num_episodes - 1, sub_env.times_restarted
        finals: FinalObservations = []
        t = room = began = 0
        frames = self._encode.frames
        row = encode(sub_env.reset(seed, self.env_steps))
        buffer.write_first(0, row[None], frames)
        memory = EpisodeMemory(1, self._memory, skips_row_after_end=False) if self._memory is not None else None
        if memory is not None:
            memory.begin(actor)
        while True:
            if stop[0]:
                return buffer, 0, []
            if t == room:
                room += CHUNK
                buffer = self._prepared(buffer, t, room)
                observations, noise = buffer.observations[:, 0], buffer.noise
                outputs, actions, rewards = buffer.outputs, buffer.actions, buffer.rewards[:, 0]
                exploration = exploration_of(self._distribution, noise)
            if memory is not None:
                memory.before(t, actor, buffer.starts, buffer.states)
            if exploration is not None:
                exploration.before(t, actor)
            output = actor(buffer.observations[t] if frames is None else row[None])
            action = sample(output, noise[t] if exploration is None else exploration.of(actor))
            # Stored before the environment gets it, perhaps as a view, which it may write to.
            outputs[t] = output
            actions[t] = action
            try:
                observation, reward, terminated, truncated, _ = sub_env.step(only(to_env(action)))
                if shape is not None and observation.shape != shape:
                    raise BadValueError(f"its observation is of shape {observation.shape}, and was of {shape}")
                rewards[t] = reward
                row = encode(observation)
                observations[t + 1] = row if frames is None else frames.newest(row)
                row = observations[t + 1] if frames is None else row
                if not (isfinite(weighted_sum(row)) and isfinite(reward)):
                    self._encode.require_finite("its observation", row)
                    require_finite("its reward", reward)
            except Exception as error:
                # Raises, but where the environment is to be restarted: then the episode begins anew, and its rows.
                when = in_step(t + 1 - began, self.env_steps + t + 1, only(to_env(actions[t])))
                row, t = encode(sub_env.recover(when, error, t - began)), began
                buffer.write_first(t, row[None], frames)
                if memory is not None:
                    memory.restart()
                continue
            t += 1
            if memory is not None:
                memory.after(np.array([terminated or truncated], np.bool_), {})
            if terminated or truncated:
                buffer.terminated[t - 1], buffer.truncated[t - 1] = terminated, truncated
                is_last = seed == last_seed
                # The next episode takes the row of the observation that it is bootstrapped from; of stacks, whose
                # rows are single frames, an end says that the next row is another episode's, whether there is one.
                if not terminated and not (is_last and frames is None):
                    finals.append((t - 1, 0, row.copy()))
                if is_last:
                    break
                seed, began = seed + 1, t
                row = encode(sub_env.reset(seed, self.env_steps + t))
                buffer.write_first(t, row[None], frames)
        # Where an episode ends, a restart breaks none off: that has happened, and is only counted.
        buffer.restarted[t - 1] = sub_env.times_restarted - restarted_before
        self._seconds = time.perf_counter() - start
        return buffer, t, finals

    def _prepared(self, buffer: RolloutBuffer, start: int, end: int) -> RolloutBuffer:
        """The buffer with noise drawn and flags cleared for rows `start` to `end`; a larger one if need be."""
        if end > len(buffer.rewards):
            larger = self._allocate(2 * len(buffer.rewards))
            larger.copy_from(buffer)
            buffer = larger
        rows = slice(noise_rows(self._distribution, start), noise_rows(self._distribution, end))
        buffer.noise[rows] = self._distribution.draw_noise(self._rollout_noise, (rows.stop - rows.start, 1))
        buffer.terminated[start:end] = buffer.truncated[start:end] = False
        buffer.restarted[start:end] = 0
        buffer.absent[start:end] = buffer.waiting[start:end] = False
        return buffer

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._seconds

    def restart(self, env_seed: int) -> None:
        """Nothing to do: every episode starts anew, and from its own seed."""

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`: a rollout under way is sampled again where a run goes on from a checkpoint."""
        return self.env_steps

    def _require_steerable(self) -> None:
        pass

    def _steer(self, steering: Steering) -> list[Any]:
        return self._environments.steer(steering)

    def _stepper_state(self) -> StepperState:
        """Nothing: every episode starts anew."""
        state_size = 0 if self._memory is None else self._memory.state_size + 2
        return [], self._no_row(1), np.zeros((1, state_size), np.float32)

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        pass

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        under_way = self._under_way
        return {}, {"version": under_way.version, "noise_seed": self._noise_seed} if under_way is not None else None

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self._under_way = RolloutUnderWay(self._next_buffer(), whole(state, "version"))
        self._noise_seed = whole(state, "noise_seed")

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._filling = None  # it keeps its error, if it has one, and the error this sampler
        self._environments.close()


def _encoded(encode: ObservationEncoder, observation: Any) -> Array:
    """One observation, encoded."""
    row: Array = encode(np.asarray(observation)[None])[0]
    return row


def _only_one(environments: Environments) -> SubEnvironment:
    if not isinstance(environments, SyncEnvironments) or environments.num_envs != 1:
        raise ConfigurationError(
            "whole episodes come from one environment that is stepped by itself, not from a vector of "
            f"{environments.num_envs}: set num_envs=1 "
            "and vectorization='auto' or 'sync', with an environment's id or a function that makes a gymnasium.Env"
        )
    return environments.sub_environments[0]
