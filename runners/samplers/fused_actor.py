"""An actor as compiled loops take it: its layers in one array."""

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from hybridppo.compiled.perceptrons import up_to_whole
from hybridppo.networks.numpy_forms.actor import NumpyActor
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.spaces.categorical import Categorical, MultiCategorical
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.gaussian import DiagonalGaussian

Array = NDArray[Any]

FusedDistribution = Categorical | MultiCategorical | DiagonalGaussian
"""Those whose actions compiled loops draw."""
FusedActor = NumpyActor | NormalizingActor
"""Those that compiled loops step: a plain MLP, of observations as they are or normalised."""


class CompiledActor:
    """What a compiled loop needs of an actor.

    Args:
        actor: whose parameters stay as they are.
        distribution: of its actions.
    """

    def __init__(self, actor: FusedActor, distribution: FusedDistribution) -> None:
        self.moments: Array = np.zeros((2, 0), np.float32)
        """`[2, obs]`, what is taken from observations and by what they are multiplied then; `[2, 0]` for neither."""
        if isinstance(actor, NormalizingActor):
            self.moments, inner = actor.moments, actor.inner
        else:
            inner = actor
        is_gaussian = isinstance(distribution, DiagonalGaussian)
        parameters = inner.parameters
        self.log_std: Array = np.ascontiguousarray(parameters[0] if is_gaussian else np.zeros(0), np.float32)
        self.scale: Array = np.exp(self.log_std)
        weights, biases = parameters[is_gaussian::2], parameters[is_gaussian + 1 :: 2]
        self.sizes: Array = np.array([weights[0].shape[1], *(len(bias) for bias in biases)], np.int64)
        """`[layers + 1]`, the numbers between layers."""
        widest = up_to_whole(int(self.sizes.max()))
        self.weights: Array = np.zeros((len(weights), 1 + widest, widest), np.float32)
        """`[layers, 1 + inputs, outputs]`, as large as the largest, in whole tiles; biases are the first rows."""
        for layer, weight, bias in zip(self.weights, weights, biases, strict=True):
            layer[0, : len(bias)] = bias
            layer[1 : 1 + weight.shape[1], : len(bias)] = weight.T
        self.is_tanh = inner.activation == "tanh"


def can_be_fused(actor: Any) -> TypeGuard[FusedActor]:
    """Whether an actor is a plain MLP in NumPy's form, of observations as they are or normalised."""
    inner = actor.inner if isinstance(actor, NormalizingActor) else actor
    return type(inner) is NumpyActor and not inner.has_mask


def is_drawn(distribution: Distribution) -> TypeGuard[FusedDistribution]:
    """Whether compiled loops draw actions from a distribution."""
    return type(distribution) in (Categorical, MultiCategorical, DiagonalGaussian)


def bounds_of(distribution: FusedDistribution) -> tuple[Array, Array]:
    """The bounds of numbers; or the first number of each choice, and among how many it is."""
    if isinstance(distribution, DiagonalGaussian):
        low, high = (np.ascontiguousarray(bound, np.float32) for bound in (distribution.low, distribution.high))
        return low, high
    if isinstance(distribution, Categorical):
        return np.array([distribution.start], np.int64), np.array([distribution.output_size], np.int64)
    sizes = np.array(distribution.sizes, np.int64)
    start = np.zeros_like(sizes) if distribution.start is None else distribution.start.ravel().astype(np.int64)
    return start, sizes
