"""Environments as the published figures used them, made by named functions: `worlds:flat_grid`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FlattenObservation, TransformObservation


def flat_grid(env_id: str) -> "gym.Env[Any, Any]":
    """A world of MiniGrid, flattened as in rl-baselines3-zoo: the image and the letters of the mission, as numbers."""
    from minigrid.wrappers import FlatObsWrapper

    env = FlatObsWrapper(gym.make(env_id))
    seen = Box(0.0, 255.0, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda observation: observation.astype(np.float32), seen)


def flat_minatar(game: str, max_episode_steps: int) -> "gym.Env[Any, Any]":
    """A game of MinAtar as in gymnax, with gymnax-blines' observations: a row of numbers, and no repeated actions."""
    import minatar.gym

    if f"MinAtar/{game}-v1" not in gym.registry:
        minatar.gym.register_envs()
    limits = {"sticky_action_prob": 0.0, "max_episode_steps": max_episode_steps}
    env = FlattenObservation(gym.make(f"MinAtar/{game}-v1", disable_env_checker=True, **limits))
    seen = Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda observation: observation.astype(np.float32), seen)


def control(domain: str, task: str, ends: str = "truncated") -> "gym.Env[Any, Any]":
    """A task of DeepMind's control suite as in CleanRL: by shimmy, flattened, 1,000 steps.

    Args:
        domain: of the suite.
        task: of the domain.
        ends: whether an episode is `truncated` after its steps, as the suite has it, so that its last value is
            bootstrapped; or `terminated`, as CleanRL's PPO takes it.
    """
    from dm_control import suite
    from shimmy import DmControlCompatibilityV0

    env = FlattenObservation(DmControlCompatibilityV0(suite.load(domain, task)))
    return TruncationTerminates(env) if ends == "terminated" else env


class TruncationTerminates(gym.Wrapper[Any, Any, Any, Any]):
    """Ends truncated episodes as if the environment had ended them."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step of the environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info
