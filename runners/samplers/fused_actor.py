"""An actor as compiled loops take it: its layers in one array."""

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from hybridppo.compiled.drawing import FusedDistribution
from hybridppo.compiled.perceptrons import up_to_whole
from hybridppo.networks.numpy_forms.actor import NumpyActor
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.spaces.gaussian import DiagonalGaussian

Array = NDArray[Any]

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
