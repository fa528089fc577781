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

from hybridppo.spaces.base import Distribution
from hybridppo.spaces.categorical import Categorical, MultiCategorical
from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.gaussian import DiagonalGaussian, SquashedGaussian
from hybridppo.spaces.joint import JointDistribution
from hybridppo.spaces.registry import kind_of, unsupported
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
        space: of the actions.
        squash: whether numbers are squashed between the bounds of their `Box`, and not clipped.
        exploration: where it depends on the state, which only the actions of a `Box` can.

    Raises:
        EnvError: for a space in which no actor can act, with those in which one can.
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
