"""The kinds of spaces: the rows of their observations, and their masks. Each kind is a class.

To add a kind, add a subclass of `Kind` to `KINDS`. It also needs a line in `serialization.py`, and a kind of actions a
distribution in `distributions/of_space.py`.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cache
from itertools import accumulate, chain
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium as gym
import numpy as np
from typing_extensions import Self

from hybridppo.errors import BadValueError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import (
    UnsupportedSpaceError,
    as_numbers,
    as_truths,
    checked_whole,
    require_finite,
    reshaped,
)
from hybridppo.spaces.frames import StackedFrames
from hybridppo.spaces.rows import ImageLayout, ItemsLayout

logger = logging.getLogger(__name__)
OBSERVATION = "its observation"
"""What an observation is called in messages."""
SpaceT = TypeVar("SpaceT", bound="gym.Space[Any]")


class Kind(Generic[SpaceT]):
    """The handling of one space of a kind.

    A kind that cannot be an observation does not define `write` and `checked`. A kind whose actions cannot be masked
    does not define `mask_parts` and `flat_mask`.

    Args:
        space: the space.
        path: where the space is within the whole space, for messages; "" for the whole space.
    """

    of: ClassVar[Any]
    """The class of its spaces, or a tuple of classes."""
    size: int = 0
    """Length of an observation in a row: in numbers, or in bytes for an image."""
    image: ImageLayout | None = None
    """The layout of the image; None if the space is not an image."""
    items: ItemsLayout | None = None
    """The layout of the items; None if the space has none."""
    is_measured: bool = False
    """Whether the numbers are quantities, so that a mean and a deviation make sense; false for choices."""

    def __init__(self, space: SpaceT, path: str) -> None:
        self.space, self.path = space, path
        self.leaves: Sequence[Kind[Any]] = [self]
        """The parts of a row: the kind itself, or the leaves of a space that contains others."""
        self.by_key: dict[str, Kind[Any]] = {}
        """The parts by key, if the space contains others; else empty."""
        self.mask_parts: list[tuple[str, int]] = []
        """The choices that a mask covers: the path of each, and its number of options."""

    # As an observation

    def values(self, observations: Any) -> Sequence[Any]:
        """The value of each leaf in an observation, or in a batch of observations."""
        return [observations]

    def write(self, observations: Any, rows: Array) -> None:
        """Write an observation into a row `[size]`, or a batch in gymnasium's vector form into rows `[N, size]`.

        Raises:
            BadValueError: if an observation is a choice that the space does not have.
        """
        raise UnsupportedSpaceError(self.space, self.path)

    def checked(self, observation: Any) -> Any:
        """One observation in the type of its space, cast if that loses nothing. Bounds are not checked.

        Raises:
            BadValueError: if its shape, type or values do not fit the space.
        """
        raise UnsupportedSpaceError(self.space, self.path)

    def bounds(self) -> tuple[Array, Array]:
        """The lower and the upper bounds of the numbers of a row, `[size]` each."""
        return np.zeros(self.size, np.float32), np.ones(self.size, np.float32)

    # As an action

    def each(self, batch: Any) -> Iterable[Any]:
        """The single actions or observations of a batch in gymnasium's vector form."""
        return batch

    def flat_mask(self, mask: Any) -> Array:
        """A mask for `space.sample(mask)` as one float32 array over all choices in turn: 1 for what is allowed.

        Raises:
            BadValueError: if it does not fit the space.
        """
        raise UnsupportedSpaceError(self.space, self.path)


class BoxKind(Kind[gym.spaces.Box]):
    """Flattened to float32; images (`ImageLayout`) stay bytes. Actions are drawn from normal distributions."""

    of = gym.spaces.Box
    is_measured = True

    def __init__(self, space: gym.spaces.Box, path: str) -> None:
        super().__init__(space, path)
        self.image = space.image if isinstance(space, StackedFrames) else ImageLayout.of(space, path)
        self.size = math.prod(space.shape)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        array = as_numbers(f"its observation{self.path}", observations)
        if array.shape != (*rows.shape[:-1], *self.space.shape):
            array = reshaped(array, self.space.shape, f"its observation{self.path}")
        if self.image is not None and array.dtype != np.uint8:
            array = np.stack([self.checked(image) for image in array.reshape(-1, *self.space.shape)])
        rows[...] = array.reshape(rows.shape)

    def checked(self, observation: Any) -> Array:  # noqa: D102 - as in the base
        space, name = self.space, f"its observation{self.path}"
        array = as_numbers(name, observation)
        require_finite(name, array)
        array = reshaped(array, space.shape, name)
        if self.image is not None and array.dtype == np.bool_:  # black or white, as for MinAtar
            return array * np.uint8(255)
        if np.issubdtype(space.dtype, np.integer) and np.any(array != np.trunc(array)):
            raise BadValueError(
                f"{name} is of {array.dtype} and has numbers that are not whole, but its space is of {space.dtype}: "
                "give the space the type of the observations"
            )
        if self.image is not None and array.dtype != np.uint8 and (no_bytes := (array < 0) | (array > 255)).any():
            at = tuple(np.argwhere(no_bytes)[0].tolist())
            raise BadValueError(f"{name}{list(at)} is {array[at]}, and images must be bytes, 0 to 255")
        return array

    def bounds(self) -> tuple[Array, Array]:  # noqa: D102 - as in the base
        with np.errstate(over="ignore"):  # a bound that float32 cannot hold becomes infinite
            low, high = (bound.ravel().astype(np.float32) for bound in (self.space.low, self.space.high))
        return low, high

    def each(self, batch: Any) -> Iterable[Any]:
        """Arrays, also for actions without an axis, which plain iteration would make numbers."""
        return batch if self.space.shape else map(np.asarray, batch)

    def flat_mask(self, mask: Any) -> Array:
        """An empty mask: numbers cannot be forbidden, so gymnasium's mask for them is None."""
        if mask is not None:
            raise BadValueError(f"its action mask{self.path} must be None, for a Box has no choices to allow")
        return np.zeros(0, np.float32)


class ChoicesKind(Kind[Any]):
    """One or several choices, one-hot in a row, one after the other.

    A mask has a truth for each option; that of several choices is a tuple with a mask for each, or flat.
    """

    of: ClassVar[Any] = (gym.spaces.Discrete, gym.spaces.MultiDiscrete)

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        sizes, starts = self._options()
        self.sizes: list[int] = np.ravel(sizes).tolist()
        """Number of options of each choice."""
        self.starts: Array = np.ravel(starts).astype(np.int64)
        """Number of the first option of each choice."""
        self.size = sum(self.sizes)
        self._places = np.array([*accumulate(self.sizes[:-1], initial=0)])
        self._is_one = not space.shape
        paths = [path + "".join(f"[{i}]" for i in place) for place in np.ndindex(*space.shape)]
        self.mask_parts = list(zip(paths, self.sizes, strict=True))

    def _options(self) -> tuple[Any, Any]:
        sizes = self.space.n if isinstance(self.space, gym.spaces.Discrete) else self.space.nvec
        return sizes, self.space.start

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        if self._is_one and isinstance(observations, (int, np.integer)):
            index = int(observations) - int(self.starts[0])
            if 0 <= index < self.size:  # a single choice is written at every step: this is five times as fast
                rows.fill(0.0)
                rows[index] = 1.0
                return
        array = checked_whole(observations, (*rows.shape[:-1], *self.space.shape), f"its observation{self.path}")
        # [..., *space] -> [..., choices]
        indices = array.reshape(*rows.shape[:-1], len(self.sizes)) - self.starts
        bad = (indices < 0) | (indices >= np.array(self.sizes))
        if bad.any():
            at = int(np.argwhere(bad)[0][-1])
            number = array.reshape(indices.shape)[bad][0]
            path = self.mask_parts[at][0]
            raise BadValueError(f"its observation{path} is {number}, which is not one of its space, {self.space}")
        rows[...] = 0.0
        np.put_along_axis(rows, (indices + self._places).astype(np.int64), 1.0, -1)

    def checked(self, observation: Any) -> Array:  # noqa: D102 - as in the base
        self.write(observation, np.empty(self.size, np.float32))
        return np.asarray(observation).astype(self.space.dtype).reshape(self.space.shape)

    def flat_mask(self, mask: Any) -> Array:
        """`[sum(sizes)]`: from nested tuples as `sample` takes them, or from such an array; None allows everything."""
        if mask is None:
            return np.ones(sum(self.sizes), np.float32)
        is_flat = isinstance(mask, np.ndarray) or (isinstance(mask, list) and all(np.ndim(part) == 0 for part in mask))
        if self.space.shape and is_flat:
            which = f"those of all choices in turn, of {self.sizes}"
            return as_truths(mask, (sum(self.sizes),), f"its action mask{self.path}", which)
        parts = zip(self._masks(mask, self.space.shape, self.path), self.mask_parts, strict=True)
        which = "one for each action"
        return np.concatenate([as_truths(part, (n,), f"its action mask{path}", which) for part, (path, n) in parts])

    def _masks(self, mask: Any, shape: tuple[int, ...], path: str) -> list[Any]:
        """The masks of all choices in turn."""
        if not shape:
            return [mask]
        if not isinstance(mask, (tuple, list)) or len(mask) != shape[0]:
            found = f"{len(mask)} of them" if isinstance(mask, (tuple, list)) else f"a {type(mask).__name__}"
            raise BadValueError(
                f"its action mask{path} must be a tuple of {shape[0]} masks, one for each choice, and is {found}"
            )
        return [leaf for i, part in enumerate(mask) for leaf in self._masks(part, shape[1:], f"{path}[{i}]")]


class MultiBinaryKind(ChoicesKind):
    """Each binary choice is one number in a row. A mask has 0 or 1 for a value that is required, and 2 for either."""

    of = gym.spaces.MultiBinary

    def __init__(self, space: gym.spaces.MultiBinary, path: str) -> None:
        super().__init__(space, path)
        self.size = math.prod(space.shape)

    def _options(self) -> tuple[Any, Any]:
        return np.full(self.space.shape, 2), np.zeros(self.space.shape)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        array = checked_whole(observations, (*rows.shape[:-1], *self.space.shape), f"its observation{self.path}")
        bad = (array != 0) & (array != 1)
        if bad.any():
            at = np.argwhere(bad)[0].tolist()
            raise BadValueError(f"its observation{self.path}{at} is {array[tuple(at)]}, which is neither 0 nor 1")
        rows[...] = array.reshape(rows.shape)

    def flat_mask(self, mask: Any) -> Array:
        """`[2 * size]`, from an array of 0, 1 and 2 in the shape of the space; None allows everything."""
        if mask is None:
            return np.ones(2 * self.size, np.float32)
        array = np.asarray(mask)
        if array.shape != self.space.shape or not np.isin(array, (0, 1, 2)).all():
            found = array.tolist() if array.size < 100 else f"of shape {array.shape}"
            raise BadValueError(
                f"its action mask{self.path} must be of shape {self.space.shape}, with 0 or 1 for what an action must "
                f"be there and 2 for either, and is {found}"
            )
        # [size] -> [size, 2]: whether 0 is allowed, whether 1 is allowed
        return np.stack((array != 1, array != 0), axis=-1).ravel().astype(np.float32)


@cache
def warn_of_others(warning: str) -> None:
    """Log this warning of parts that are ignored; once in a process, since several objects read the same space."""
    logger.warning("%s. They are ignored, and there is no other warning", warning)


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
    """Parts with keys: by name in a `Dict`, by number in a `Tuple`. A mask is a container of one mask for each part."""

    of = gym.spaces.Dict, gym.spaces.Tuple

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        self._container: type[Any] = dict if isinstance(space, gym.spaces.Dict) else tuple
        self._ignores_others = False
        self.others = ""
        """A warning of parts of observations that the space does not have, if there were any."""
        self._set_parts({key: kind_of(part, f"{path}[{key!r}]") for key, part in parts_of(space)})
        if not self._parts:
            raise UnsupportedSpaceError(space, path, "it has no parts")

    def _set_parts(self, parts: dict[Any, Kind[Any]]) -> None:
        self._parts = parts
        self.by_key = {str(key): part for key, part in parts.items()}
        self.leaves = [leaf for part in parts.values() for leaf in part.leaves]
        self.mask_parts = [choice for part in parts.values() for choice in part.mask_parts]

    def seeing(self, keys: Sequence[str]) -> Self:
        """A copy that takes the parts with these keys from observations, and ignores others."""
        other = copy(self)
        other._set_parts({key: part for key, part in self._parts.items() if str(key) in keys})
        other._ignores_others = True
        return other

    def joined(self, parts: Sequence[Any]) -> Any:
        """A value of the space, made from the values of its parts."""
        found = dict(zip(self._parts, parts, strict=True))
        return found if self._container is dict else tuple(map(found.get, range(len(self.space.spaces))))

    def _items(self, value: Any, name: str) -> Iterator[tuple[Kind[Any], Any]]:
        """Each part with its value."""
        is_list = isinstance(value, list) and name == OBSERVATION and self._container is tuple
        if not isinstance(value, self._container) and not is_list:
            raise BadValueError(
                f"{name}{self.path} must be a {self._container.__name__}, as its space is a "
                f"{type(self.space).__name__}, and is {shown(value)}"
            )
        keys = value.keys() if isinstance(value, dict) else range(len(value))
        if self._ignores_others:
            if not self._parts.keys() <= set(keys):
                raise BadValueError(f"{name} needs the parts {list(self._parts)} (actor_keys), and has {list(keys)}")
        elif keys != self._parts.keys() and set(keys) != set(self._parts):
            if not (isinstance(value, dict) and name == OBSERVATION and set(self._parts) < set(keys)):
                raise BadValueError(f"{name}{self.path} has the parts {list(keys)}, and its space {list(self._parts)}")
            if not self.others:
                others = ", ".join(repr(key) for key in keys if key not in self._parts)
                self.others = f"{name}{self.path} has parts that its space does not have: {others}"
                warn_of_others(self.others)
        return ((part, value[key]) for key, part in self._parts.items())

    def values(self, observations: Any) -> Sequence[Any]:  # noqa: D102 - as in the base
        return list(chain.from_iterable(part.values(v) for part, v in self._items(observations, OBSERVATION)))

    def checked(self, observation: Any) -> Any:  # noqa: D102 - as in the base
        items = self._items(observation, OBSERVATION)
        return self.joined([part.checked(value) for part, value in items])

    def each(self, batch: Any) -> Iterator[Any]:  # noqa: D102 - as in the base
        singles = [part.each(batch[key]) for key, part in self._parts.items()]
        return (self.joined(values) for values in zip(*singles, strict=True))

    def flat_mask(self, mask: Any) -> Array:
        """The masks of the parts in turn; None allows everything."""
        if mask is None:
            return np.ones(sum(size for _, size in self.mask_parts), np.float32)
        return np.concatenate([part.flat_mask(value) for part, value in self._items(mask, "its action mask")])


KINDS: list[type[Kind[Any]]] = [BoxKind, ChoicesKind, MultiBinaryKind, CompositeKind]
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
