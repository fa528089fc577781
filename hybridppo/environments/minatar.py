"""MinAtar's games, whose pixels are booleans, as images: ids like `MinAtar/Breakout-v1`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from hybridppo.spaces.arrays import Array

PREFIX = "MinAtar/"


def register() -> None:
    """Register the games with gymnasium. The package does so only if gymnasium loads plugins."""
    import minatar.gym

    minatar.gym.register_envs()


def prepared(env: "gym.Env[Any, Any]") -> "gym.Env[Any, Any]":
    """A game whose pixels are bytes."""
    return TruthsAsPixels(env) if env.observation_space.dtype == np.bool_ else env


class TruthsAsPixels(gym.ObservationWrapper[Any, Any, Any]):
    """Observations `[10, 10, channels]` of bool as bytes, 0 and 255: images, which pass through convolutions."""

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        super().__init__(env)
        self.observation_space = Box(0, 255, env.observation_space.shape, np.uint8)

    def observation(self, observation: Array) -> Array:
        """The observation as bytes."""
        return np.multiply(observation, 255, dtype=np.uint8)
