"""Sampling whole episodes: of one environment, stepped by itself, one episode after the other."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import isfinite
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.distributions import Distribution
from hybridppo.env_checks import BadValueError, finite_test, require_finite
from hybridppo.env_copy import EnvCopy, in_step
from hybridppo.envs import Environments, EnvState
from hybridppo.errors import ConfigurationError
from hybridppo.in_turn import InTurnEnvironments
from hybridppo.interfaces import SamplingActor
from hybridppo.runners.sampler import BaseSampler, UnderWay, allocate
from hybridppo.runners.stepping import Block, Finals
from hybridppo.saved_values import whole

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
        pin_memory: keep rollouts in page-locked memory, for fast copies to a GPU.
        in_thread: begin at once, in a thread. It gains where learning leaves Python alone meanwhile, as on a GPU.

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
        pin_memory: bool = False,
        in_thread: bool = False,
    ) -> None:
        self._copy = _only_copy(environments)
        self._allocate = partial(allocate, environments, distribution, pin_memory=pin_memory)
        # With a thread, one to fill while the other is learned from.
        blocks = [self._allocate(FIRST_CAPACITY) for _ in range(1 + in_thread)]
        super().__init__(bytearray(1), blocks, distribution, skips_row_after_end=False, noise=noise)
        self._environments = environments
        space = environments.observation_space
        self._shape = space.shape if isinstance(space, gym.spaces.Box) else None
        # A vector is written as it is: at a few microseconds a step, encoding it shows.
        is_vector = self._shape is not None and len(self._shape) == 1
        self._encode: Callable[[Any], Array] = np.asarray if is_vector else self._encode_one
        self._sum = finite_test(environments.encode.size, environments.encode.dtype)
        self._num_episodes, self._env_seed = num_episodes, env_seed
        self._seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler") if in_thread else None

    def _draw_noise(self, block: Block) -> None:
        # How much is needed shows on the way: it comes from a generator that is this rollout's own.
        self._noise_seed = int(self._noise.integers(2**63))

    def _begin(self, block: Block, actor: SamplingActor, first: int) -> None:
        self._rollout_noise = np.random.default_rng(self._noise_seed)
        # As many episodes have begun as have ended and been counted: each ends in the rollout in which it begins.
        fill = partial(self._fill, block, actor, self._env_seed + self.statistics.episodes)
        self._wait: Callable[[], tuple[Block, int, Finals]] = fill
        if self._thread is not None:
            self._wait = self._thread.submit(fill).result

    def _end(self) -> tuple[int, Finals]:
        self._filled_block, self._num_rows, finals = self._wait()
        return self._num_rows, finals

    def _is_complete(self, filled: int) -> bool:
        return filled > 0

    def _filled(self, block: Block) -> Block:
        whole = self._filled_block
        # Where it has grown, the larger one stays in its place.
        self._blocks = [whole if mine is block else mine for mine in self._blocks]
        return whole.first(self._num_rows)

    def _fill(self, block: Block, actor: SamplingActor, seed: int) -> tuple[Block, int, Finals]:
        """The episodes, from row 0 on; the block, or a larger one where it was too small, and how many rows count.

        None does where it is told to stop: sampled again, the episodes are the same.
        """
        start, stop = time.perf_counter(), self._stop
        encode, sample, to_env = self._encode, self._distribution.sample, self._distribution.to_env
        copy, shape, weighted_sum = self._copy, self._shape, self._sum
        last_seed, remade_before = seed + self._num_episodes - 1, copy.times_remade
        finals: Finals = []
        t = room = began = 0
        block.observations[0] = encode(copy.reset(seed, self.env_steps))
        while True:
            if stop[0]:
                return block, 0, []
            if t == room:
                room += CHUNK
                block = self._prepared(block, t, room)
                observations, noise = block.observations[:, 0], block.noise
                outputs, actions, rewards = block.outputs, block.actions, block.rewards[:, 0]
            output = actor(block.observations[t])
            action = sample(output, noise[t])
            try:
                observation, reward, terminated, truncated, _ = copy.step(to_env(action)[0])
                if shape is not None and observation.shape != shape:
                    raise BadValueError(f"its observation is of shape {observation.shape}, and was of {shape}")
                rewards[t] = reward
                observations[t + 1] = encode(observation)
                if not (isfinite(weighted_sum(observations[t + 1])) and isfinite(reward)):
                    require_finite("its observation", observations[t + 1])
                    require_finite("its reward", reward)
            except Exception as error:
                # Raises, but where the environment is to be made anew: then the episode begins anew, and its rows.
                when = in_step(t + 1 - began, self.env_steps + t + 1, to_env(action)[0])
                observations[began] = encode(copy.recover(when, error, t - began))
                t = began
                continue
            outputs[t] = output
            actions[t] = action
            t += 1
            if terminated or truncated:
                block.terminated[t - 1], block.truncated[t - 1] = terminated, truncated
                if seed == last_seed:
                    break
                if not terminated:  # the next episode takes the row of the observation that it is bootstrapped from
                    finals.append((t - 1, 0, observations[t].copy()))
                seed, began = seed + 1, t
                observations[t] = encode(copy.reset(seed, self.env_steps + t))
        # Where an episode ends, a restart breaks none off: that has happened, and is only counted.
        block.remade[t - 1] = copy.times_remade - remade_before
        self._seconds = time.perf_counter() - start
        return block, t, finals

    def _encode_one(self, observation: Any) -> Array:
        row: Array = self._environments.encode(np.asarray(observation)[None])[0]
        return row

    def _prepared(self, block: Block, start: int, end: int) -> Block:
        """The block with noise drawn and flags cleared for rows `start` to `end`; a larger one where it ends before."""
        if end > len(block.rewards):
            larger = self._allocate(2 * len(block.rewards))
            larger.copy_from(block)
            block = larger
        block.noise[start:end] = self._distribution.draw_noise(self._rollout_noise, (end - start, 1))
        block.terminated[start:end] = block.truncated[start:end] = False
        block.remade[start:end] = 0
        return block

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._seconds

    def restart(self, env_seed: int) -> None:
        """Nothing to do: every episode starts anew, and from its own seed."""

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`: a rollout under way is sampled again where a run goes on from a checkpoint."""
        return self.env_steps

    def _stepper_state(self) -> tuple[list[EnvState], Array]:
        """Nothing: every episode starts anew."""
        return [], np.zeros_like(self._blocks[0].observations[0])

    def _load_stepper_state(self, states: list[EnvState], observation: Array) -> None:
        pass

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        under_way = self._under_way
        return {}, {"version": under_way.version, "noise_seed": self._noise_seed} if under_way is not None else None

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        self._under_way = UnderWay(self._next_block(), whole(state, "version"))
        self._noise_seed = whole(state, "noise_seed")

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._environments.close()


def _only_copy(environments: Environments) -> EnvCopy:
    if not isinstance(environments, InTurnEnvironments) or environments.num_envs != 1:
        raise ConfigurationError(
            "whole episodes come from one environment that is stepped by itself, not from a vector of "
            f"{environments.num_envs}: set num_envs=1 "
            "and vectorization='auto' or 'sync', with an environment's id or a function that makes a gymnasium.Env"
        )
    return environments.copies[0]
