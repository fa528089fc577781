"""Environments whose observations are the last few of their episode."""

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError
from hybridppo.spaces.frames import StackedFrames, num_frames_of


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that gives its last observations in one, the oldest first, as `train(frame_stack=4)` has it.

    At an episode's start, it is the first one over and over. An agent that was trained so acts on what this gives.

    Args:
        env: whose observations are of a `Box`.
        num_frames: how many.

    Raises:
        EnvError: if they are of another space.
    """

    def __init__(self, env: "gym.Env[Any, Any]", num_frames: int) -> None:
        super().__init__(env)
        self._space = StackedFrames(env.observation_space, num_frames)
        self.observation_space = self._space
        self._stack = np.zeros(self._space.shape, self._space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation over and over.

        Raises:
            BadValueError: if it is not of the shape of its space.
        """
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            return cast("tuple[Any, dict[str, Any]]", result)  # which is refused as it would be without stacks
        observation, info = result
        self._stack = self._space.stack([self._checked(observation)] * self._space.num_frames)
        return self._stack.copy(), info

    def step(self, action: Any) -> Any:
        """The last observations.

        Raises:
            BadValueError: likewise.
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
    """An environment that gives stacks, also where it does by itself."""
    made = make()
    return made if num_frames_of(made.observation_space) == num_frames else FrameStack(made, num_frames)
