"""The last layer of an actor whose exploration depends on the state, with its gradient written out by hand in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import PackedBatch
from hybridppo.agents.ppo.numpy_heads import ActorHead, array_of
from hybridppo.networks.actors import GaussianActor
from hybridppo.networks.exploring import StateDependentActor
from hybridppo.spaces.distributions import DiagonalGaussian, Distribution, StateDependentGaussian
from hybridppo.spaces.state_dependent import VARIANCE_EPSILON

Array = NDArray[Any]


class StateDependentHead:
    """Means by a linear layer, variances by the squares of what it sees; as `ActorHead`.

    Args:
        actor: whose layer it is.
        distribution: of clipped actions.
        gradient_of: of a parameter, the memory that its gradient is to fill.
    """

    def __init__(
        self,
        actor: StateDependentActor,
        distribution: StateDependentGaussian,
        gradient_of: Callable[[Tensor], Array],
    ) -> None:
        self._weight, self._bias = array_of(actor.head.weight), array_of(actor.head.bias)[:, None]
        self._weight_gradient = gradient_of(actor.head.weight)
        self._bias_gradient = gradient_of(actor.head.bias)
        self._log_std = array_of(actor.log_std)
        self._log_std_gradient = gradient_of(actor.log_std)
        self._constant = np.float32(0.5 * np.log(2.0 * np.pi) * distribution.size)
        self._half = np.float32(0.5 * distribution.size)

    def forward(self, last: Array, rows: "PackedBatch") -> tuple[Array, Array]:
        """Log-probabilities and entropies, `[B]`."""
        mean = np.dot(self._weight, last.T)
        mean += self._bias
        self._squares = last * last
        self._entries = np.exp(np.float32(2.0) * self._log_std)
        self._variance = np.dot(self._entries, self._squares.T)  # [d, B]
        self._variance += np.float32(VARIANCE_EPSILON)
        self._precision = np.float32(1.0) / np.sqrt(self._variance)
        self._noise = (rows.actions.T - mean) * self._precision
        log_scale = np.float32(0.5) * np.log(self._variance).sum(0)
        log_prob = np.float32(-0.5) * (self._noise * self._noise).sum(0) - log_scale - self._constant
        return log_prob, log_scale + (self._constant + self._half)

    def backward(self, d_log_prob: Array, d_entropy: np.float32, last: Array, out: Array) -> None:
        """Fill the layer's gradients, and that of `last` into `out`: through the means alone."""
        # d log p / d mean = noise / std;  d log p / d log std = noise^2 - 1;  d H / d log std = 1
        weighted = d_log_prob * self._noise
        d_mean = weighted * self._precision
        np.dot(d_mean, last, out=self._weight_gradient)
        np.add.reduce(d_mean, axis=1, out=self._bias_gradient)
        np.dot(d_mean.T, self._weight, out=out)
        # log std = log(variance) / 2, and d variance / d log_std[i, l] = 2 * last[l]^2 * exp(2 * log_std[i, l])
        d_log_std = weighted * self._noise - d_log_prob + d_entropy
        np.dot(d_log_std / self._variance, self._squares, out=self._log_std_gradient)
        self._log_std_gradient *= self._entries


def head_for(
    actor: nn.Module,
    layer: nn.Linear,
    distribution: Distribution,
    mask_size: int,
    gradient_of: Callable[[Tensor], Array],
) -> ActorHead | StateDependentHead:
    """The last layer of an actor, of a distribution whose gradient is written out."""
    if isinstance(actor, StateDependentActor):
        assert isinstance(distribution, StateDependentGaussian)  # or its configuration would have been refused
        return StateDependentHead(actor, distribution, gradient_of)
    free = actor.log_std if isinstance(actor, GaussianActor) else None
    return ActorHead(layer, free, distribution, mask_size, gradient_of)


def is_known(distribution: Distribution) -> bool:
    """Whether the gradient of actions that depend on the state is written out here: of clipped ones."""
    return isinstance(distribution, StateDependentGaussian) and type(distribution.normal) is DiagonalGaussian
