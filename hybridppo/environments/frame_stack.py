"""Environments that stack the last observations of an episode."""

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError
from hybridppo.spaces.box import StackedFrames, num_frames_of
from hybridppo.system.validation import require_whole


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """Stacks an environment's last observations, oldest first, as `train(frame_stack=4)` does.

    At the start of an episode, the stack repeats the first observation. An agent trained with `frame_stack` acts on
    these observations.

    Args:
        env: an environment with observations of a `Box`.
        num_frames: observations in a stack.

    Raises:
        ConfigurationError: if `num_frames` is not at least 1.
        EnvError: if the observation space is not a `Box`, or has images that are too small.
    """

    def __init__(self, env: "gym.Env[Any, Any]", num_frames: int) -> None:
        super().__init__(env)
        self._space = StackedFrames(env.observation_space, require_whole("num_frames", num_frames))
        self.observation_space = self._space
        self._stack = np.zeros(self._space.shape, self._space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, repeated.

        Raises:
            BadValueError: if its shape is not that of its space.
        """
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            return cast("tuple[Any, dict[str, Any]]", result)  # refused later, as without stacks
        observation, info = result
        self._stack = self._space.stack([self._checked(observation)] * self._space.num_frames)
        return self._stack.copy(), info

    def step(self, action: Any) -> Any:
        """The last observations.

        Raises:
            BadValueError: as for `reset`.
        """
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        observation, *others = result
        self._stack = self._space.pushed(self._stack, self._checked(observation))
        return (self._stack.copy(), *others)

    def _checked(self, observation: Any) -> Any:
        array = np.asarray(observation)
        if array.shape != self._space.frame.shape:
            raise BadValueError(
                f"its observation is of shape {array.shape}, and its space has {self._space.frame.shape}: give either "
                "the shape of the other"
            )
        return array


def stacked(make: Callable[[], Any], num_frames: int) -> Any:
    """An environment with stacked observations; it may have stacked them already."""
    made = make()
    return made if num_frames_of(made.observation_space) == num_frames else FrameStack(made, num_frames)
