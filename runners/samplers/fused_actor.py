"""An actor for compiled loops: its layers in one array."""

from typing import Any, TypeGuard

import numpy as np

from hybridppo.compiled.drawing import FusedDistribution
from hybridppo.compiled.perceptrons import up_to_whole
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.networks.numpy_forms.actor import NumpyActor
from hybridppo.networks.numpy_forms.encoders import NumpyFeaturesActor
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor

FusedActor = NumpyActor | NormalizingActor | NumpyFeaturesActor
"""Actors for compiled loops: plain MLPs of an agent's own observation, normalised or not."""


def compiled_actor(actor: FusedActor, distribution: FusedDistribution) -> tuple[Any, ...]:
    """The arrays of an actor for a compiled loop, see `kernels.rollout`; its parameters must not change meanwhile.

    Returns:
        Moments, weights, the sizes of the layers, whether hidden layers use tanh, log standard deviations, and their
            exponentials.
    """
    mlp, own = _plain(actor)
    moments = np.zeros((2, 0), np.float32)
    if isinstance(actor, NormalizingActor):
        moments = np.ascontiguousarray(actor.moments[:, own])
    is_gaussian = isinstance(distribution, DiagonalGaussian)
    parameters = mlp.parameters
    log_std = np.ascontiguousarray(parameters[0] if is_gaussian else np.zeros(0), np.float32)
    weights, biases = parameters[is_gaussian::2], parameters[is_gaussian + 1 :: 2]
    sizes = np.array([weights[0].shape[1], *(len(bias) for bias in biases)], np.int64)
    widest = up_to_whole(int(sizes.max()))
    packed = np.zeros((len(weights), 1 + widest, widest), np.float32)
    for layer, weight, bias in zip(packed, weights, biases, strict=True):
        layer[0, : len(bias)] = bias
        layer[1 : 1 + weight.shape[1], : len(bias)] = weight.T
    return moments, packed, sizes, mlp.activation == "tanh", log_std, np.exp(log_std)


def can_be_fused(actor: Any) -> TypeGuard[FusedActor]:
    """Whether an actor is a plain MLP in NumPy's form, of one part of normalised observations or others."""
    inner = _plain(actor)[0]
    return type(inner) is NumpyActor and not inner.has_mask


def _plain(actor: Any) -> tuple[Any, slice]:
    """An actor without what precedes its layers, and the numbers of a row that it takes."""
    inner = actor.inner if isinstance(actor, NormalizingActor) else actor
    if isinstance(inner, NumpyFeaturesActor) and inner.numbers is not None:
        return inner.mlp, inner.numbers
    return inner, slice(None)
