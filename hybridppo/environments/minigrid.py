"""MiniGrid's and BabyAI's worlds, without their texts: ids like `MiniGrid-Empty-5x5-v0`."""

from typing import Any

import gymnasium as gym
from gymnasium.spaces import Dict

PREFIXES = ("MiniGrid-", "BabyAI-")
NOTE = "its mission, a text, is left out of what is observed: the image and the direction stay"


def register() -> None:
    """Let gymnasium know of the worlds, where importing the package has not done so: before version 3, it did not."""
    import minigrid

    if "MiniGrid-Empty-5x5-v0" not in gym.registry:
        minigrid.register_minigrid_envs()


def prepared(env: "gym.Env[Any, Any]") -> "gym.Env[Any, Any]":
    """A world without its mission, where it has one."""
    space = env.observation_space
    return WithoutMission(env) if isinstance(space, Dict) and "mission" in space.spaces else env


class WithoutMission(gym.ObservationWrapper[Any, Any, Any]):
    """Observations of the image and the direction alone: the mission is a text, which no network here reads."""

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        super().__init__(env)
        spaces = env.observation_space.spaces if isinstance(env.observation_space, Dict) else {}
        parts = {key: space for key, space in spaces.items() if key != "mission"}
        self.observation_space, self._parts = Dict(parts), list(parts)

    def observation(self, observation: Any) -> Any:
        """The observation's other parts."""
        return {key: observation[key] for key in self._parts}
