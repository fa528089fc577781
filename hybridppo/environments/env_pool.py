"""Environments of EnvPool, which steps them by threads in C++: ids like `envpool/Pong-v5`.

The pool is used synchronously. Asynchronously, it returns the environments that are ready first, so that a rollout
would depend on timing and not on the seed alone.
"""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hybridppo.environments.one_of_vector import OneOfVector
from hybridppo.environments.vector import NextStepEnvironments
from hybridppo.errors import ConfigurationError, EnvError

PREFIX = "envpool/"
_SEEDS = 2**31 - 1
"""It takes seeds of 31 bits."""


class EnvPool(NextStepEnvironments):
    """`num_envs` equal environments, each with its own seed.

    Args:
        env_id: like `envpool/Pong-v5`.
        num_envs: number of environments.
        first: number of the first environment among those of the run, for messages.
        episodic_life: whether the loss of a life ends an episode of an Atari game.
        threads: threads that step the environments; 0 for one per core.

    Raises:
        EnvError: if EnvPool has no such environment.
        ConfigurationError: for `episodic_life` without an Atari game.
    """

    def __init__(
        self, env_id: str, num_envs: int, first: int = 0, *, episodic_life: bool = False, threads: int = 0
    ) -> None:
        pool = SeededPool(env_id, num_envs, episodic_life, threads)
        super().__init__(pool, first)
        self.clips_rewards = pool.is_atari


def one_of_pool(env_id: str, episodic_life: bool = False) -> OneOfVector:
    """One environment of a pool as a single environment."""
    return OneOfVector(SeededPool(env_id, 1, episodic_life, threads=1), AutoresetMode.NEXT_STEP)


def is_atari(env_id: str) -> bool:
    """Whether an id is an Atari game."""
    return _is_atari(_spec(env_id))


def _is_atari(spec: Any) -> bool:
    settings = spec.config._asdict()
    return "episodic_life" in settings and "reward_clip" in settings


def _spec(env_id: str) -> Any:
    import envpool

    name = env_id.removeprefix(PREFIX)
    try:
        return envpool.make_spec(name)
    except KeyError:
        raise EnvError(
            f"environment {env_id!r} cannot be made: EnvPool has no {name!r} (envpool.list_all_envs() lists what there "
            "is)"
        ) from None


class SeededPool(VectorEnv[Any, Any, Any]):
    """A pool that is made at its reset, since EnvPool takes the seed when it is made."""

    def __init__(self, env_id: str, num_envs: int, episodic_life: bool, threads: int) -> None:
        self._name, spec = env_id.removeprefix(PREFIX), _spec(env_id)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space = spec.gymnasium_observation_space
        self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.is_atari = _is_atari(spec)
        if episodic_life and not self.is_atari:
            raise ConfigurationError(f"episodic_life=True is for Atari games, and {env_id!r} is not one: leave it out")
        self._options = {"num_threads": threads, **({"episodic_life": episodic_life} if self.is_atari else {})}
        self._pool: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Make the pool again if a seed is given; the `i`-th environment gets `seed + i`."""
        import envpool

        if seed is not None or self._pool is None:
            self.close_extras()
            seeds = [int((seed or 0) + i) % _SEEDS for i in range(self.num_envs)]
            self._pool = envpool.make_gymnasium(self._name, num_envs=self.num_envs, seed=seeds, **self._options)
        return self._pool.reset()

    def step(self, actions: Any) -> Any:
        """The pool's step."""
        return self._pool.step(np.asarray(actions, self.single_action_space.dtype))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
