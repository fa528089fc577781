"""Atari games through ale-py, by its own vector of emulators in C++: ids like `ALE/Pong-v5`.

Frames are preprocessed as has become usual (Machado et al., "Revisiting the Arcade Learning Environment", 2018): four
frames an action, the brighter of the last two, gray, 84 x 84, the last four stacked, up to 30 idle frames at a game's
start. The id's version says the rest: `v5` repeats the action before with a probability of 0.25, and ends a game after
108,000 frames.

Rewards are the game's own, and are clipped only where they are learned from (`Environments.clips_rewards`): returns and
evaluations are scores.
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
    """`num_envs` games, each with a generator of its own: how they are divided among processes changes nothing.

    Args:
        env_id: like `ALE/Pong-v5`.
        num_envs: how many.
        first: the number of the first among those of the run, for messages.
        episodic_life: whether the loss of a life ends an episode (the game goes on in the next); else only its end.
        threads: that step them; 0 for as many as there are cores.
    """

    def __init__(
        self, env_id: str, num_envs: int, first: int = 0, *, episodic_life: bool = False, threads: int = 0
    ) -> None:
        super().__init__(_vector(env_id, num_envs, episodic_life, threads), first)
        self.clips_rewards = True


def one_game(env_id: str, episodic_life: bool = False) -> OneOfVector:
    """One such game, as an environment by itself."""
    return OneOfVector(_vector(env_id, 1, episodic_life, threads=1), AutoresetMode.SAME_STEP)


class _WithShortSeeds(VectorWrapper[Any, Any, Any]):
    """A vector whose seeds, one for each environment, fit into what it takes."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        seeds = None if seed is None else np.array([(seed + i) % _SEEDS for i in range(self.num_envs)])
        vector: Any = self.env  # which takes them, unlike most
        return vector.reset(seed=seeds, options=options)


def _vector(env_id: str, num_envs: int, episodic_life: bool, threads: int) -> "VectorEnv[Any, Any, Any]":
    spec = gym.spec(env_id)
    # The class writes its mode into the metadata of all vectors there are, which would then declare it as theirs.
    of_all = VectorEnv.metadata
    VectorEnv.metadata = dict(of_all)
    try:
        vector = gym.make_vec(
            spec,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point",
            num_threads=threads,
            # Every row is a step then, also after the loss of a life, where nothing is reset.
            autoreset_mode=AutoresetMode.SAME_STEP,
            reward_clipping=False,
            # What it calls episodic_life begins a new game at the loss of a life, and so never shows the others.
            life_loss_info=episodic_life,
        )
        vector.metadata = VectorEnv.metadata
    finally:
        VectorEnv.metadata = of_all
    return _WithShortSeeds(vector)
