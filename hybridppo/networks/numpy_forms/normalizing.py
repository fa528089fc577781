"""A NumPy actor of normalised observations: the same arithmetic as `ObservationNormalizer` to rounding."""

from typing import Any

import numpy as np

from hybridppo.networks.numpy_forms.actor import ArrayActor
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import RowLayout

LIMIT = 10.0
"""Normalised numbers are clipped to +- this."""
_HIGHEST, _LOWEST = np.array(LIMIT, np.float32), np.array(-LIMIT, np.float32)
# As arrays, because NumPy would convert a number in each step.
EPSILON = 1e-8
"""Added to a variance, because it may be 0."""


class NormalizingActor(ArrayActor):
    """Normalises observations for an actor. The moments are copied.

    Args:
        actor: takes normalised observations; any actor of this room.
        layout: the layout of a row.
        mean: mean of each number of a row.
        variance: variance of each number of a row.
    """

    def __init__(self, actor: Any, layout: RowLayout, mean: Array, variance: Array) -> None:
        self.inner: Any = actor
        """The actor of normalised observations."""
        self._layout = layout
        times = layout.num_numbers // len(mean)  # if rows are stacks of frames, all frames are normalised alike
        self._mean = np.tile(mean, times)
        self._scale: Array = np.tile(np.float32(1.0) / np.sqrt(variance + np.float32(EPSILON)), times)
        self._rows = np.empty((0, *layout.shape), layout.dtype)

    @property
    def moments(self) -> Array:
        """`[2, *row]`: what is subtracted from the numbers of an observation, and the factor afterwards."""
        return np.stack((self._mean, self._scale)).astype(np.float32, copy=False)

    @property
    def state(self) -> Array:
        """The recurrent actor's state."""
        state: Array = self.inner.state
        return state

    @state.setter
    def state(self, state: Array) -> None:
        self.inner.state = state

    def forget(self, envs: Array) -> None:
        """The recurrent actor's `forget`."""
        self.inner.forget(envs)

    def explore(self, noise: Array) -> None:
        """The exploring actor's `explore`."""
        self.inner.explore(noise)

    @property
    def perturbation(self) -> Array:
        """The exploring actor's `perturbation`."""
        perturbation: Array = self.inner.perturbation
        return perturbation

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        if len(observations) != len(self._rows):
            self._rows = np.empty(observations.shape, observations.dtype)
            self._numbers = self._layout.numbers(self._rows)
        if self._layout.images:
            self._rows[:] = observations
        numbers = self._numbers
        np.subtract(self._layout.numbers(observations), self._mean, out=numbers)
        np.multiply(numbers, self._scale, out=numbers)
        np.minimum(numbers, _HIGHEST, out=numbers)
        np.maximum(numbers, _LOWEST, out=numbers)
        outputs: Array = self.inner(self._rows)
        return outputs
