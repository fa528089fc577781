"""A vector of one environment, as the one environment that it is."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv


class OneOfVector(gym.Env[Any, Any]):
    """For environments that there are as vectors alone, where one is wanted: to be checked, watched, or restarted.

    Args:
        vector: of one, that resets itself in the step after an episode's end, or, in `SAME_STEP` mode, within it.
        mode: which of the two.
    """

    def __init__(self, vector: "VectorEnv[Any, Any, Any]", mode: AutoresetMode) -> None:
        self.vector = vector
        self._resets_at_once = mode is AutoresetMode.SAME_STEP
        self._begun: Any = None
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the one that the vector has begun already, where it has and no seed asks for another."""
        begun, self._begun = self._begun, None
        if begun is not None and seed is None:
            return begun, {}
        observations, _ = self.vector.reset(seed=seed, options=options)
        return _first(observations), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The vector's step."""
        observations, rewards, terminated, truncated, infos = self.vector.step(np.asarray(action)[None])
        observation = _first(observations)
        if self._resets_at_once and (terminated[0] or truncated[0]):
            self._begun, observation = observation, _first(infos["final_obs"])
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        """Close the vector."""
        self.vector.close()


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _first(part) for key, part in batch.items()}
    return tuple(map(_first, batch)) if isinstance(batch, tuple) else batch[0]
