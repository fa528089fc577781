"""`Dict` and `Tuple`, spaces that contain others; and the list of all kinds of spaces.

A new kind is a new file, and its name in `KINDS`.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from typing_extensions import Self

from hybridppo.errors import BadValueError, ConfigurationError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import Json, Kind
from hybridppo.spaces.box import BoxKind, StackedFramesKind
from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.choices import DiscreteKind, MultiBinaryKind, MultiDiscreteKind


def map_parts(function: Callable[[Any], Any], value: Any) -> Any:
    """A value, or a container of values as `Dict` and `Tuple` have them, with a function applied to each part."""
    if isinstance(value, dict):
        return {key: map_parts(function, part) for key, part in value.items()}
    return tuple(map_parts(function, part) for part in value) if isinstance(value, tuple) else function(value)


class CompositeKind(Kind[Any]):
    """The common part of `Dict` and `Tuple`: parts with keys. A mask is a container of one mask for each part."""

    type_name = ""
    container: type[Any] = object

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        items = list(space.spaces.items() if isinstance(space.spaces, dict) else enumerate(space.spaces))
        # Spaces with another order of keys are equal, so their rows must be, too.
        with contextlib.suppress(TypeError):  # keys that cannot be sorted
            items.sort(key=lambda item: item[0])
        self._parts: dict[Any, Kind[Any]] = {key: kind_of(part, f"{path}[{key!r}]") for key, part in items}
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

    @property
    def each(self) -> Callable[[Any], Iterator[Any]]:  # noqa: D102 - as in the base
        return self._each

    def _each(self, batch: Any) -> Iterator[Any]:
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

    type_name = "Dict"
    of = gym.spaces.Dict
    container = dict

    def joined(self, parts: Sequence[Any]) -> Any:  # noqa: D102 - as in the base
        return dict(zip(self._parts, parts, strict=True))

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        parts = self._parts.items()
        return {"spaces": [[_key_to_json(key), kind_to_json(part)] for key, part in parts]}

    @classmethod
    def from_json(cls, json: Json) -> gym.Space[Any]:  # noqa: D102 - as in the base
        return gym.spaces.Dict([(_key_from_json(key), space_of_kind(part)) for key, part in json["spaces"]])


class TupleKind(CompositeKind):
    """Parts by number."""

    type_name = "Tuple"
    of = gym.spaces.Tuple
    container = tuple

    def joined(self, parts: Sequence[Any]) -> Any:  # noqa: D102 - as in the base
        found = dict(zip(self._parts, parts, strict=True))
        return tuple(found.get(number) for number in range(len(self.space.spaces)))

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        return {"spaces": [kind_to_json(part) for part in self._parts.values()]}

    @classmethod
    def from_json(cls, json: Json) -> gym.Space[Any]:  # noqa: D102 - as in the base
        return gym.spaces.Tuple([space_of_kind(part) for part in json["spaces"]])


def _key_to_json(key: Any) -> Any:
    """A key as JSON.

    Raises:
        ConfigurationError: for a key that JSON cannot hold.
    """
    key = key.item() if isinstance(key, np.generic) else key
    if isinstance(key, tuple):
        return [_key_to_json(part) for part in key]
    if not isinstance(key, (str, int, float)) or key != key or key in (math.inf, -math.inf):
        raise ConfigurationError(f"the key {shown(key)} of a Dict space cannot be saved: use text, numbers, or tuples")
    return key


def _key_from_json(key: Any) -> Any:
    return tuple(map(_key_from_json, key)) if isinstance(key, list) else key


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
    return itemgetter(0) if each is iter else lambda batch: next(iter(each(batch)))


def kind_to_json(kind: Kind[Any]) -> Json:
    """A space as a JSON object."""
    return {"type": kind.type_name, **kind.to_json()}


def space_of_kind(json: Json) -> gym.Space[Any]:
    """The space from the result of `kind_to_json`.

    Raises:
        ConfigurationError: if the type is unknown, or the space is implausibly large.
    """
    for kind in KINDS:
        if json["type"] == kind.type_name:
            return kind.from_json(json)
    known = ", ".join(kind.type_name for kind in KINDS)
    raise ConfigurationError(f"there is no space of type {shown(json['type'])}: the types are {known}")
