"""Observations normalised before a NumPy actor: the same arithmetic as `ObservationNormalizer` to rounding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.spaces.rows import RowLayout

Array = NDArray[Any]

LIMIT = 10.0
"""Where what is normalised is clipped."""
EPSILON = 1e-8
"""Added to a variance, which may be 0."""


class NormalizingActor:
    """An actor of normalised observations, with moments that are copied when it is made.

    Args:
        actor: takes them; any of those in this room.
        parameters: all that the actor and this were made of.
        layout: what a row is.
        mean: of each number of a row.
        variance: likewise.
    """

    def __init__(
        self, actor: Any, parameters: Sequence[Array], layout: RowLayout, mean: Array, variance: Array
    ) -> None:
        self.parameters, self.version = parameters, int(actor.version)
        self.inner: Any = actor
        """What takes normalised observations."""
        self._layout = layout
        times = layout.num_numbers // len(mean)  # where rows are stacks of frames, each is normalised alike
        self._mean = np.tile(mean, times)
        self._scale: Array = np.tile(np.float32(1.0) / np.sqrt(variance + np.float32(EPSILON)), times)
        self._rows = np.empty((0, *layout.shape), layout.dtype)

    @property
    def moments(self) -> Array:
        """`[2, *row]`, what is taken from the numbers of an observation, and by what they are multiplied then."""
        return np.stack((self._mean, self._scale)).astype(np.float32, copy=False)

    @property
    def state(self) -> Array:
        """The actor's, where it has a memory."""
        state: Array = self.inner.state
        return state

    @state.setter
    def state(self, state: Array) -> None:
        self.inner.state = state

    def forget(self, envs: Array) -> None:
        """Likewise."""
        self.inner.forget(envs)

    def explore(self, noise: Array) -> None:
        """Likewise, where its exploration depends on the state."""
        self.inner.explore(noise)

    @property
    def perturbation(self) -> Array:
        """Likewise."""
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
        np.minimum(numbers, LIMIT, out=numbers)
        np.maximum(numbers, -LIMIT, out=numbers)
        outputs: Array = self.inner(self._rows)
        return outputs
