"""The list of all kinds of spaces. A new kind is a new file, and its name here."""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import gymnasium as gym

from hybridppo.spaces.base import Kind
from hybridppo.spaces.box import BoxKind
from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.choices import DiscreteKind, MultiBinaryKind, MultiDiscreteKind
from hybridppo.spaces.composite import DictKind, TupleKind
from hybridppo.spaces.frames import StackedFramesKind

KINDS: list[type[Kind[Any]]] = [
    StackedFramesKind,
    BoxKind,
    DiscreteKind,
    MultiDiscreteKind,
    MultiBinaryKind,
    DictKind,
    TupleKind,
]
"""The first kind whose class fits a space takes it."""


def kind_of(space: gym.Space[Any], path: str = "") -> Kind[Any]:
    """The kind of a space.

    Raises:
        UnsupportedSpaceError: if no kind fits.
    """
    for kind in KINDS:
        if isinstance(space, kind.of):
            return kind(space, path, kind_of)
    raise UnsupportedSpaceError(space, path)


def each_of(space: gym.Space[Any]) -> Callable[[Any], Iterable[Any]]:
    """A function that iterates over a batch of actions in gymnasium's vector form."""
    try:
        return kind_of(space).each
    except UnsupportedSpaceError:  # reported when an agent is made for the space
        return iter


def first_of(space: gym.Space[Any]) -> Callable[[Any], Any]:
    """A function that returns the first action of such a batch."""
    each = each_of(space)
    return itemgetter(0) if each is iter else lambda batch: next(iter(each(batch)))
