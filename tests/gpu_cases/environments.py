"""Environments that cases train in, besides gymnasium's own: small, deterministic, without other packages."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from numpy.typing import NDArray

Step = tuple[NDArray[Any], float, bool, bool, dict[str, Any]]


class Colours(gym.Env[Any, Any]):
    """An image of one color; the action that names the color is rewarded."""

    action_space = Discrete(3)
    length = 20

    def __init__(self, pixels: int = 36) -> None:
        self.observation_space = Box(0, 255, (pixels, pixels, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Show an image."""
        super().reset(seed=seed)
        self._steps = 0
        return self._image(), {}

    def step(self, action: int) -> Step:
        """Show another image."""
        reward = float(action == self._colour)
        self._steps += 1
        return self._image(), reward, False, self._steps >= self.length, {}

    def _image(self) -> NDArray[Any]:
        image = self.np_random.integers(0, 64, self.observation_space.shape, dtype=np.uint8)
        self._colour = int(self.np_random.integers(3))
        image[:, :, self._colour] += 128
        return image


class Enormous(gym.Env[Any, Any]):
    """Rewards so large that learning from them leads to numbers that are not finite."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return only noise."""
        super().reset(seed=seed)
        return self._noise(), {}

    def step(self, action: int) -> Step:
        """Return too large a reward."""
        return self._noise(), 1e38, False, bool(self.np_random.random() < 0.1), {}

    def _noise(self) -> NDArray[Any]:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


class Lengths(gym.Env[Any, Any]):
    """Episodes of any length, so that rollouts of whole episodes have minibatches of any size."""

    observation_space = Box(-1.0, 1.0, (3,), np.float32)
    action_space = Discrete(2)
    shortest, longest = 20, 180

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the length."""
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(self.shortest, self.longest))
        return self._noise(), {}

    def step(self, action: int) -> Step:
        """One step less is left."""
        self._left -= 1
        return self._noise(), float(action), self._left == 0, False, {}

    def _noise(self) -> NDArray[Any]:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)


class Parts(gym.Env[Any, Any]):
    """An image, numbers and a choice; the choices shown are rewarded."""

    observation_space = Dict(
        eye=Box(0, 255, (12, 12, 1), np.uint8), arm=Box(-1.0, 1.0, (3,), np.float32), hand=Discrete(3)
    )
    action_space = MultiDiscrete([3, 2], start=[1, 0])
    length = 20

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """All parts."""
        super().reset(seed=seed)
        self._steps = 0
        return self._parts(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """All parts, of other choices."""
        reward = float(action[0] - 1 == self._hand) + float(action[1] == self._is_bright)
        self._steps += 1
        return self._parts(), reward, False, self._steps >= self.length, {}

    def _parts(self) -> dict[str, Any]:
        self._hand, self._is_bright = int(self.np_random.integers(3)), int(self.np_random.integers(2))
        image = self.np_random.integers(0, 64, (12, 12, 1), dtype=np.uint8) + np.uint8(128 * self._is_bright)
        arm = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        return {"eye": image, "arm": arm, "hand": self._hand}
