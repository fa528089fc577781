"""MiniGrid's and BabyAI's worlds, without their texts: ids like `MiniGrid-Empty-5x5-v0`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

PREFIXES = ("MiniGrid-", "BabyAI-")
NOTE = "its mission, a text, is left out of what is observed: the image, as numbers, and the direction stay"


def register() -> None:
    """Register the worlds with gymnasium, if importing the package has not done so (before version 3)."""
    import minigrid

    if "MiniGrid-Empty-5x5-v0" not in gym.registry:
        minigrid.register_minigrid_envs()


def prepared(env: "gym.Env[Any, Any]") -> "gym.Env[Any, Any]":
    """A world without its mission, if it has one."""
    space = env.observation_space
    return WithoutMission(env) if isinstance(space, Dict) and "mission" in space.spaces else env


class WithoutMission(gym.ObservationWrapper[Any, Any, Any]):
    """Observations without the mission, a text, which no network here reads.

    The image becomes numbers, which are normalised instead of divided by 255: it has codes from 0 to 10 of the objects
    in each cell, and no brightness.
    """

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        super().__init__(env)
        spaces = env.observation_space.spaces if isinstance(env.observation_space, Dict) else {}
        parts = {key: space for key, space in spaces.items() if key != "mission"}
        self._codes = [key for key, space in parts.items() if space.dtype == np.uint8]
        codes = {key: Box(0.0, 255.0, parts[key].shape, np.float32) for key in self._codes}
        self.observation_space, self._parts = Dict({**parts, **codes}), list(parts)

    def observation(self, observation: Any) -> Any:
        """The other parts of the observation."""
        codes = {key: observation[key].astype(np.float32) for key in self._codes}
        return {**{key: observation[key] for key in self._parts}, **codes}
