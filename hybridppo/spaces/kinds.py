"""`Dict` and `Tuple`, spaces that contain others; and the list of all kinds of spaces.

A new kind is a new file, and its name in `KINDS`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
from typing_extensions import Self

from hybridppo.errors import BadValueError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import Kind
from hybridppo.spaces.box import BoxKind, StackedFramesKind
from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.choices import ChoicesKind, DiscreteKind, MultiBinaryKind


def map_parts(function: Callable[[Any], Any], value: Any) -> Any:
    """A value, or a container of values as `Dict` and `Tuple` have them, with a function applied to each part."""
    if isinstance(value, dict):
        return {key: map_parts(function, part) for key, part in value.items()}
    return tuple(map_parts(function, part) for part in value) if isinstance(value, tuple) else function(value)


def parts_of(space: Any) -> list[tuple[Any, gym.Space[Any]]]:
    """The parts of a `Dict` or `Tuple` with their keys, sorted: spaces with another order of keys are equal."""
    items = list(space.spaces.items() if isinstance(space.spaces, dict) else enumerate(space.spaces))
    with contextlib.suppress(TypeError):  # keys that cannot be sorted
        items.sort(key=lambda item: item[0])
    return items


class CompositeKind(Kind[Any]):
    """The common part of `Dict` and `Tuple`: parts with keys. A mask is a container of one mask for each part."""

    container: type[Any] = object

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        self._parts: dict[Any, Kind[Any]] = {key: kind_of(part, f"{path}[{key!r}]") for key, part in parts_of(space)}
        if not self._parts:
            raise UnsupportedSpaceError(space, path, "it has no parts")
        self._leaves = [leaf for part in self._parts.values() for leaf in part.leaves]
        self._ignores_others = False

    def seeing(self, keys: Sequence[str]) -> Self:
        """A copy that takes the parts with these keys from observations, and ignores others."""
        other = copy(self)
        other._parts = {key: part for key, part in self._parts.items() if str(key) in keys}
        other._leaves = [leaf for part in other._parts.values() for leaf in part.leaves]
        other._ignores_others = True
        return other

    def joined(self, parts: Sequence[Any]) -> Any:
        """A value of the space, made from the values of its parts."""
        raise NotImplementedError

    def _items(self, value: Any, name: str) -> Iterator[tuple[Kind[Any], Any]]:
        """Each part with its value."""
        if not isinstance(value, self.container):
            raise BadValueError(
                f"{name}{self.path} must be a {self.container.__name__}, as its space is a "
                f"{type(self.space).__name__}, and is {shown(value)}"
            )
        keys = value.keys() if isinstance(value, dict) else range(len(value))
        if self._ignores_others:
            if not self._parts.keys() <= set(keys):
                raise BadValueError(f"{name} needs the parts {list(self._parts)} (actor_keys), and has {list(keys)}")
        elif keys != self._parts.keys() and set(keys) != set(self._parts):
            raise BadValueError(f"{name}{self.path} has the parts {list(keys)}, and its space {list(self._parts)}")
        return ((part, value[key]) for key, part in self._parts.items())

    @property
    def leaves(self) -> Sequence[Kind[Any]]:  # noqa: D102 - as in the base
        return self._leaves

    @property
    def by_key(self) -> dict[str, Kind[Any]]:  # noqa: D102 - as in the base
        return {str(key): part for key, part in self._parts.items()}

    def values(self, observations: Any) -> Sequence[Any]:  # noqa: D102 - as in the base
        return list(chain.from_iterable(part.values(v) for part, v in self._items(observations, "its observation")))

    def checked(self, observation: Any, *, bounds: bool = True) -> Any:  # noqa: D102 - as in the base
        items = self._items(observation, "its observation")
        return self.joined([part.checked(value, bounds=bounds) for part, value in items])

    def each(self, batch: Any) -> Iterator[Any]:  # noqa: D102 - as in the base
        singles = [part.each(batch[key]) for key, part in self._parts.items()]
        return (self.joined(values) for values in zip(*singles, strict=True))

    @property
    def mask_parts(self) -> list[tuple[str, int]]:  # noqa: D102 - as in the base
        return [choice for part in self._parts.values() for choice in part.mask_parts]

    def flat_mask(self, mask: Any) -> Array:
        """The masks of the parts in turn; None allows everything."""
        if mask is None:
            return np.ones(sum(size for _, size in self.mask_parts), np.float32)
        return np.concatenate([part.flat_mask(value) for part, value in self._items(mask, "its action mask")])


class DictKind(CompositeKind):
    """Parts by name."""

    of = gym.spaces.Dict
    container = dict

    def joined(self, parts: Sequence[Any]) -> Any:  # noqa: D102 - as in the base
        return dict(zip(self._parts, parts, strict=True))


class TupleKind(CompositeKind):
    """Parts by number."""

    of = gym.spaces.Tuple
    container = tuple

    def joined(self, parts: Sequence[Any]) -> Any:  # noqa: D102 - as in the base
        found = dict(zip(self._parts, parts, strict=True))
        return tuple(found.get(number) for number in range(len(self.space.spaces)))


KINDS: list[type[Kind[Any]]] = [
    StackedFramesKind,
    BoxKind,
    DiscreteKind,
    ChoicesKind,
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
            return kind(space, path)
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
    return lambda batch: next(iter(each(batch)))
