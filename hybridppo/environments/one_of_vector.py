"""A single environment from a vector of one."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from hybridppo.spaces.kinds import map_parts


class OneOfVector(gym.Env[Any, Any]):
    """Wraps a vector of one, for environments that exist only as vectors: to check, watch or restart them.

    Args:
        vector: a vector of one environment, which resets itself.
        mode: `NEXT_STEP` or `SAME_STEP`, the vector's autoreset mode.
    """

    def __init__(self, vector: "VectorEnv[Any, Any, Any]", mode: AutoresetMode) -> None:
        self.vector = vector
        self._resets_at_once = mode is AutoresetMode.SAME_STEP
        self._begun: Any = None
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed, the one that the vector has already begun, if there is one."""
        begun, self._begun = self._begun, None
        if begun is not None and seed is None:
            return begun, {}
        observations, infos = self.vector.reset(seed=seed, options=options)
        return _first_of_batch(observations), _first_of_infos(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The vector's step."""
        observations, rewards, terminated, truncated, infos = self.vector.step(np.asarray(action)[None])
        observation = _first_of_batch(observations)
        if self._resets_at_once and (terminated[0] or truncated[0]):
            self._begun, observation = observation, _first_of_batch(infos["final_obs"])
            infos = infos.get("final_info", infos)
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _first_of_infos(infos)

    def close(self) -> None:
        """Close the vector."""
        self.vector.close()


def _first_of_batch(batch: Any) -> Any:
    return map_parts(lambda part: part[0], batch)


def _first_of_infos(infos: Any) -> dict[str, Any]:
    """The entries of the vector's only environment, without their masks (`_profit` of `profit`)."""
    arrays = {name: value for name, value in infos.items() if isinstance(value, np.ndarray)}
    masks = {f"_{name}" for name in arrays} & arrays.keys()
    there = (name for name in arrays.keys() - masks if np.all(arrays.get(f"_{name}", True)))
    return {name: arrays[name][0] for name in there}
