"""The distribution of actions that follows from an action space."""

from functools import singledispatch
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.gaussian import DiagonalGaussian, SquashedGaussian
from hybridppo.distributions.joint import JointDistribution
from hybridppo.distributions.own import MakeDistribution, OwnDistribution
from hybridppo.distributions.state_dependent import ExplorationLayout, StateDependentGaussian
from hybridppo.spaces.checks import REMEDY, UnsupportedSpaceError, can_be_scaled_to, unsupported
from hybridppo.spaces.kinds import BoxKind, ChoicesKind, CompositeKind, Kind, kind_of

MOST_OPTIONS = 64
"""Whole numbers of a `Box` are choices if each has at most this number of values; else they are rounded."""


def distribution_for(
    space: gym.Space[Any],
    *,
    squash: bool = False,
    exploration: ExplorationLayout | None = None,
    own: MakeDistribution | None = None,
) -> Distribution:
    """The distribution of actions in `space`.

    Args:
        space: the action space.
        squash: squash numbers between the bounds of their `Box` instead of clipping them.
        exploration: for state-dependent exploration, which needs a `Box`; None for none.
        own: makes a distribution of one's own in place of the library's; None for the library's.

    Raises:
        ConfigurationError: if one's own is not valid.
        EnvError: for an unsupported space; the message names the supported ones.
    """
    try:
        found = distribution_of(kind_of(space), squash)
        if own is not None:
            return OwnDistribution(own, space, found)
        if exploration is None:
            return found
        if isinstance(found, DiagonalGaussian):
            return StateDependentGaussian(found, exploration)
        reason = "use_sde=True (--use-sde) explores with actions of a single Box: leave it out for others"
        raise UnsupportedSpaceError(space, "", reason)
    except UnsupportedSpaceError as error:
        raise unsupported("action", space, error, REMEDY) from None


@singledispatch
def distribution_of(kind: Kind[Any], squash: bool) -> Distribution:
    """The distribution of the actions of a kind of space; `distribution_of.register` adds that of a further kind.

    Raises:
        UnsupportedSpaceError: if there is none.
    """
    raise UnsupportedSpaceError(kind.space, kind.path)


@distribution_of.register
def _(kind: BoxKind, squash: bool) -> Distribution:
    low, high, dtype = kind.space.low, kind.space.high, kind.space.dtype
    if not np.issubdtype(dtype, np.floating):
        sizes = high.astype(np.float64) - low.astype(np.float64) + 1.0
        if (sizes <= MOST_OPTIONS).all():
            choices = Categorical(sizes.astype(np.int64), low, dtype)
            choices.mask_size = 0  # gymnasium has no masks for a Box
            return choices
    if not squash:
        return DiagonalGaussian(low, high, dtype)
    if not can_be_scaled_to(low, high):
        raise UnsupportedSpaceError(
            kind.space,
            kind.path,
            "squash_actions=True (--squash-actions) scales actions to finite bounds, and some of its bounds are "
            "infinite, or too large for float32: give the space other ones, or leave squash_actions out",
        )
    return SquashedGaussian(low, high, dtype)


@distribution_of.register
def _(kind: ChoicesKind, squash: bool) -> Distribution:
    shape = kind.space.shape
    return Categorical(np.reshape(kind.sizes, shape), kind.starts.reshape(shape), kind.space.dtype)


@distribution_of.register
def _(kind: CompositeKind, squash: bool) -> Distribution:
    return JointDistribution([distribution_of(part, squash) for part in kind.by_key.values()], kind.joined)
