"""Action distributions: everything that follows from the kind of an environment's action space.

An actor maps observations `[..., obs]` to the distribution's parameters, its `outputs` `[..., output_size]`.
Choosing actions happens on the host in NumPy, once per environment step, where the overhead of a torch
operation would cost more than its work; probabilities and entropies are batched torch operations.
No `torch.distributions` object is made: at these sizes it costs more than the network.

The noise that makes actions random is drawn for a whole rollout at once and handed in, so that an action
depends on nothing but the outputs and its own slice of the noise: not on the device, nor on who samples.
"""

from typing import Any

import gymnasium as gym

from hybridppo.spaces.base import Distribution, UnsupportedSpaceError
from hybridppo.spaces.categorical import Categorical, MultiCategorical
from hybridppo.spaces.gaussian import DiagonalGaussian, SquashedGaussian
from hybridppo.spaces.joint import JointDistribution
from hybridppo.spaces.registry import kind_of, unsupported

__all__ = [
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "JointDistribution",
    "MultiCategorical",
    "SquashedGaussian",
    "distribution_for",
]

REMEDY = "use Discrete, MultiDiscrete, MultiBinary, a Box of floating-point numbers, or a Dict or Tuple of those"


def distribution_for(space: gym.Space[Any], *, squash: bool = False) -> Distribution:
    """The distribution of actions in `space`.

    Args:
        space: of the actions.
        squash: whether numbers are squashed between the bounds of their `Box`, and not clipped.

    Raises:
        EnvError: for a space in which no actor can act, with those in which one can.
    """
    try:
        return kind_of(space).distribution(squash=squash)
    except UnsupportedSpaceError as error:
        raise unsupported("action", space, error, REMEDY) from None
