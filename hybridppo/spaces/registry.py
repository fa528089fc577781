"""The kinds of spaces that there are. A further kind is a file of its own, and its name here."""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import gymnasium as gym

from hybridppo.errors import EnvError
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
"""The first that has a space's class takes it."""


def kind_of(space: gym.Space[Any], path: str = "") -> Kind[Any]:
    """The kind of a space.

    Raises:
        UnsupportedSpaceError: where there is none.
    """
    for kind in KINDS:
        if isinstance(space, kind.of):
            return kind(space, path, kind_of)
    raise UnsupportedSpaceError(space, path)


def unsupported(role: str, space: gym.Space[Any], error: UnsupportedSpaceError, remedy: str) -> EnvError:
    """What is said of a space that cannot be supported: which part of it, and what can be."""
    which = f"the {role} space {error.space}"
    if error.path:
        which += f", which is at {error.path} of {space},"
    return EnvError(f"{which} is not supported: {error.reason or remedy}")


def each_of(space: gym.Space[Any]) -> Callable[[Any], Iterable[Any]]:
    """What takes apart a batch of actions as gymnasium's vectors have it."""
    try:
        return kind_of(space).each
    except UnsupportedSpaceError:  # which is said where an agent is made for it
        return iter


def first_of(space: gym.Space[Any]) -> Callable[[Any], Any]:
    """What takes the first of such a batch."""
    each = each_of(space)
    return itemgetter(0) if each is iter else lambda batch: next(iter(each(batch)))
