"""`StateDependentActor` in NumPy: the same arithmetic to rounding."""

import numpy as np

from hybridppo.distributions.state_dependent import VARIANCE_EPSILON
from hybridppo.networks.numpy_forms.actor import ArrayActor, NumpyActor
from hybridppo.networks.numpy_forms.encoders import NumpyFeaturesActor
from hybridppo.spaces.arrays import Array


class NumpyExploringActor(ArrayActor):
    """Means and log standard deviations, and the perturbation by a noise matrix.

    The outputs for an observation do not depend on the number of observations: each sum over features is of one row, in
    an order that follows from the number of features alone.

    Args:
        actor: gives the means and the features.
        log_std: log standard deviations of the entries of a matrix, `[d, L]`; copied.
    """

    def __init__(self, actor: NumpyActor | NumpyFeaturesActor, log_std: Array) -> None:
        self._actor = actor
        self._scale: Array = np.exp(log_std)
        self._variance: Array = self._scale * self._scale
        self._matrices: Array | None = None
        self.perturbation: Array = np.zeros((0, len(log_std)), np.float32)
        """The noise that the last call added, `[N, d]`; reused by the next call."""
        self._outputs = np.zeros((0, 2 * len(log_std)), np.float32)

    def explore(self, noise: Array) -> None:
        """Use standard normal noise `[N, d * L]` for the next calls."""
        self._matrices = noise.reshape(len(noise), *self._scale.shape) * self._scale

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, 2 * d]`; the result is reused by the next call."""
        means = self._actor(observations)
        num_rows, size = means.shape
        if len(self._outputs) != num_rows:
            self._outputs = np.empty((num_rows, 2 * size), np.float32)
            self._products = np.empty((num_rows, *self._scale.shape), np.float32)
            self.perturbation = np.zeros((num_rows, size), np.float32)
        features = self._actor.features[:, None, :]
        products, log_std = self._products, self._outputs[:, size:]
        self._outputs[:, :size] = means
        # [N, 1, L] and [d, L] -> [N, d, L] -> [N, d]
        np.multiply(features * features, self._variance, out=products)
        log_std[:] = np.float32(0.5) * np.log(products.sum(-1) + np.float32(VARIANCE_EPSILON))
        if self._matrices is not None and len(self._matrices) == num_rows:
            np.multiply(features, self._matrices, out=products)
            np.add.reduce(products, axis=-1, out=self.perturbation)
        return self._outputs
