"""Distributions whose actions compiled loops draw, and their constants."""

from typing import TypeGuard

import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.spaces.arrays import Array

FusedDistribution = Categorical | DiagonalGaussian


def is_drawn(distribution: Distribution) -> TypeGuard[FusedDistribution]:
    """Whether compiled loops draw actions from a distribution."""
    return type(distribution) in (Categorical, DiagonalGaussian)


def bounds_of(distribution: FusedDistribution) -> tuple[Array, Array]:
    """The bounds of numbers; or the first number and the size of each choice."""
    if isinstance(distribution, DiagonalGaussian):
        low, high = (np.ascontiguousarray(bound, np.float32) for bound in (distribution.low, distribution.high))
        return low, high
    sizes = np.array(distribution.sizes, np.int64)
    return np.broadcast_to(distribution.start, distribution.shape).reshape(sizes.shape).copy(), sizes
