"""Action distributions: everything that follows from the kind of an environment's action space.

An actor maps observations `[..., obs]` to the distribution's parameters, its `outputs` `[..., output_size]`.
Actions are drawn on the host in NumPy, once per environment step, because a torch operation has more overhead than
work there. Probabilities and entropies are batched torch operations. No `torch.distributions` object is made: at these
sizes it costs more than the network.

The noise that makes actions random is drawn for a whole rollout at once and handed in, so that an action
depends on nothing but the outputs and its slice of the noise: not on the device, nor on the sampler.
"""

from typing import Any

import gymnasium as gym

from hybridppo.spaces.base import Distribution
from hybridppo.spaces.categorical import Categorical, MultiCategorical
from hybridppo.spaces.checks import UnsupportedSpaceError, unsupported
from hybridppo.spaces.gaussian import DiagonalGaussian, SquashedGaussian
from hybridppo.spaces.joint import JointDistribution
from hybridppo.spaces.registry import kind_of
from hybridppo.spaces.state_dependent import ExplorationLayout, StateDependentGaussian

__all__ = [
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "JointDistribution",
    "MultiCategorical",
    "SquashedGaussian",
    "StateDependentGaussian",
    "distribution_for",
]

REMEDY = "use Discrete, MultiDiscrete, MultiBinary, a Box of floating-point numbers, or a Dict or Tuple of those"


def distribution_for(
    space: gym.Space[Any], *, squash: bool = False, exploration: ExplorationLayout | None = None
) -> Distribution:
    """The distribution of actions in `space`.

    Args:
        space: the action space.
        squash: squash numbers between the bounds of their `Box` instead of clipping them.
        exploration: for state-dependent exploration, which needs a `Box`; None for none.

    Raises:
        EnvError: for an unsupported space; the message names the supported ones.
    """
    try:
        found = kind_of(space).distribution(squash=squash)
        if exploration is None:
            return found
        if isinstance(found, DiagonalGaussian):
            return StateDependentGaussian(found, exploration)
        reason = "use_sde=True (--use-sde) explores with actions of a single Box: leave it out for others"
        raise UnsupportedSpaceError(space, "", reason)
    except UnsupportedSpaceError as error:
        raise unsupported("action", space, error, REMEDY) from None
