"""Observations as networks take them: rows of float32, or images of bytes."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import EnvError
from hybridppo.spaces.images import ImageLayout

Array = NDArray[Any]


_FLOAT32 = np.dtype(np.float32)


class ObservationEncoder:
    """Observations of a space: a `Box` flattened, a `Discrete` one-hot, as float32; images (`ImageLayout`) as they are.

    Raises:
        EnvError: for other spaces.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space
        self.image = ImageLayout.of(space)
        """How they are images, if so."""
        self.dtype = np.dtype(np.uint8) if self.image is not None else _FLOAT32
        self._takes_as_it_is = False
        if isinstance(space, gym.spaces.Discrete):
            self.shape: tuple[int, ...] = (int(space.n),)
            """Of one observation, encoded."""
        elif isinstance(space, gym.spaces.Box):
            self.shape = space.shape if self.image is not None else (int(np.prod(space.shape)),)
            self._takes_as_it_is = self.shape == space.shape
        else:
            raise EnvError(
                f"the observation space {space} is not supported: use a Box of vectors or images, or a Discrete "
                "(gymnasium.wrappers.FlattenObservation makes a Box of most others)"
            )
        self.size = math.prod(self.shape)
        """Numbers in it."""

    def __call__(self, observations: Array) -> Array:
        """`[N, *space] -> [N, *shape]`, of `dtype`."""
        if self._takes_as_it_is and observations.dtype is self.dtype:
            return observations
        if isinstance(self._space, gym.spaces.Discrete):
            choices = np.arange(self._space.start, self._space.start + self._space.n)
            one_hot: Array = np.asarray(observations)[..., None] == choices
            return one_hot.astype(np.float32)
        return np.asarray(observations).reshape(len(observations), *self.shape).astype(self.dtype, copy=False)
