"""Atari games through ale-py's vector of emulators in C++: ids like `ALE/Pong-v5`.

Preprocessing is the usual one (Machado et al., "Revisiting the Arcade Learning Environment", 2018): four frames per
action, the maximum of the last two, gray, 84 x 84, the last four stacked, up to 30 no-op frames at the start of a game.
The version of the id sets the rest: `v5` repeats the last action with probability 0.25, and ends a game after 108,000
frames.

Rewards are the game's. They are clipped only for learning (`Environments.clips_rewards`), so returns and evaluations
are scores.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from hybridppo.environments.one_of_vector import OneOfVector
from hybridppo.environments.vector import SameStepEnvironments

PREFIX = "ALE/"
_SEEDS = 2**31 - 1
"""ale-py takes seeds of 31 bits."""


class Atari(SameStepEnvironments):
    """`num_envs` games, each with its own generator, so that their division among processes changes nothing.

    Args:
        env_id: like `ALE/Pong-v5`.
        num_envs: number of games.
        first: number of the first game among those of the run, for messages.
        episodic_life: whether the loss of a life ends an episode; the game then continues in the next episode.
        threads: threads that step the games; 0 for one per core.
    """

    def __init__(
        self, env_id: str, num_envs: int, first: int = 0, *, episodic_life: bool = False, threads: int = 0
    ) -> None:
        super().__init__(_vector(env_id, num_envs, episodic_life, threads), first)
        self.clips_rewards = True


def one_game(env_id: str, episodic_life: bool = False) -> OneOfVector:
    """One game as a single environment."""
    return OneOfVector(_vector(env_id, 1, episodic_life, threads=1), AutoresetMode.SAME_STEP)


class _WithShortSeeds(VectorWrapper):  # not generic in older releases of gymnasium
    """A vector that gets one seed of 31 bits for each environment."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        seeds = None if seed is None else np.array([(seed + i) % _SEEDS for i in range(self.num_envs)])
        vector: Any = self.env  # unlike most vectors, it takes a list of seeds
        return vector.reset(seed=seeds, options=options)


def _vector(env_id: str, num_envs: int, episodic_life: bool, threads: int) -> "VectorEnv[Any, Any, Any]":
    spec = gym.spec(env_id)
    # The class writes its mode into the metadata of all vectors, which would then declare it as theirs.
    of_all = VectorEnv.metadata
    VectorEnv.metadata = dict(of_all)
    try:
        vector = gym.make_vec(
            spec,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point",
            num_threads=threads,
            # Every row is then a step, also after the loss of a life, which resets nothing.
            autoreset_mode=AutoresetMode.SAME_STEP,
            reward_clipping=False,
            # ale-py's episodic_life begins a new game at the loss of a life, so the other lives are never played.
            life_loss_info=episodic_life,
        )
        vector.metadata = VectorEnv.metadata
    finally:
        VectorEnv.metadata = of_all
    return _WithShortSeeds(vector)
