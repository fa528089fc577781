"""A vector of one environment, as the one environment that it is."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv


class OneOfVector(gym.Env[Any, Any]):
    """For environments that there are as vectors alone, where one is wanted: to be checked, watched, or restarted.

    Args:
        vector: of one, in `NEXT_STEP` mode: what its steps return at an episode's end is the final observation.
    """

    def __init__(self, vector: "VectorEnv[Any, Any, Any]") -> None:
        self.vector = vector
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observations, _ = self.vector.reset(seed=seed, options=options)
        return _first(observations), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The vector's step."""
        observations, rewards, terminated, truncated, _ = self.vector.step(np.asarray(action)[None])
        return _first(observations), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        """Close the vector."""
        self.vector.close()


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _first(part) for key, part in batch.items()}
    return tuple(map(_first, batch)) if isinstance(batch, tuple) else batch[0]
