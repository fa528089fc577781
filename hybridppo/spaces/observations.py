"""Observations as rows that networks take: float32, or bytes if there are images."""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import UnsupportedSpaceError, finite_test, is_outside, shown_cast, unsupported
from hybridppo.spaces.frames import StackedFrames
from hybridppo.spaces.items import WITHOUT_LIMIT, VaryingKind, max_items_of
from hybridppo.spaces.kinds import CompositeKind, Kind, kind_of
from hybridppo.spaces.rows import HoldsRows, RowLayout, RowPart, slices

logger = logging.getLogger(__name__)

REMEDY = (
    "use a Box of vectors or images, Discrete, MultiDiscrete, MultiBinary, Text, OneOf, Sequence, Graph, or a Dict or "
    "Tuple of those (gymnasium.wrappers.TransformObservation makes one of most others)"
)


MOST_NUMBERS = 2**26
"""The largest part of a row: a larger one would only fill the memory."""
MOST_KNOWN = 256
"""If a space has at most this number of options, their encoded rows are kept."""


class ObservationEncoder:
    """Encodes observations as rows of float32: `Box` flattened, choices one-hot. A single image stays as it is.

    If there are images beside other parts, a row is bytes: the numbers, of four bytes each, then the images.

    Raises:
        EnvError: for unsupported spaces.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.parts: list[tuple[Kind[Any], slice]] = []
        """The parts of a row and their slices: of the numbers, or of the bytes for images."""
        try:
            self._kind = kind_of(space)
            rows = space if isinstance(space, HoldsRows) else self._laid_out()
        except UnsupportedSpaceError as error:
            raise unsupported("observation", space, error, REMEDY) from None
        self.layout = rows.layout
        """The layout of a row."""
        self.names, self.bounds, self.measured = rows.names, rows.bounds, rows.measured
        """For each number of a row: its place in an observation, the lower and upper bounds, and whether it is a
        quantity; choices and masks are not."""
        self.image = self.layout.images[0] if self.layout.is_one_image else None
        """The layout of the image, if an observation is a single image; else None."""
        self.frames = space.frames if isinstance(space, StackedFrames) else None
        """How frames lie in a row, if observations are stacks of frames; else None."""
        self.dtype, self.shape = self.layout.dtype, self.layout.shape
        self.size = math.prod(self.shape)
        """Length of a row, in numbers or bytes."""
        self.is_array = isinstance(space, gym.spaces.Box)
        """Whether an observation is an array with the numbers of its row."""
        self._known: dict[int, Array] = {}
        if isinstance(space, gym.spaces.Discrete) and space.n <= MOST_KNOWN:
            numbers = range(int(space.start), int(space.start + space.n))
            self._known = dict(zip(numbers, np.eye(int(space.n), dtype=np.float32), strict=True))
        self._is_leaf = self.is_array or self._kind.leaves[0] is self._kind
        self._takes_as_it_is = self.is_array and self.shape == space.shape

    def seeing(self, keys: Sequence[str]) -> "ObservationEncoder":
        """A copy that takes the parts with these keys from a `Dict` or `Tuple`; the others are zeros in its rows."""
        other, kind = copy(self), self._kind
        assert isinstance(kind, CompositeKind)  # it has keys
        other._kind = seen = kind.seeing(keys)
        other.parts = [(leaf, place) for leaf, place in self.parts if leaf in seen.leaves]
        return other

    @property
    def by_key(self) -> dict[str, RowPart]:
        """For a `Dict` or `Tuple`, the slices of each part by key, in the order of a row; else empty."""
        inner = getattr(self.space, "observation", None)  # if the space has a mask
        kind = self._kind if inner is None else kind_of(inner)
        parts = kind.by_key.values()
        numbers = slices(sum(leaf.size for leaf in part.leaves if leaf.image is None) for part in parts)
        images = slices(sum(leaf.image is not None for leaf in part.leaves) for part in parts)
        return dict(zip(kind.by_key, map(RowPart, numbers, images), strict=True))

    @property
    def others(self) -> str:
        """A warning of parts of observations that the space does not have; "" if there were none."""
        kinds = [self._kind]
        for kind in kinds:  # grows
            kinds += kind.by_key.values()
        return next((kind.others for kind in kinds if isinstance(kind, CompositeKind) and kind.others), "")

    def _laid_out(self) -> HoldsRows:
        """Find the `parts` of a row, and describe its numbers."""
        leaves, rows, nothing = self._kind.leaves, HoldsRows(), np.zeros(0, np.float32)
        for leaf in leaves:
            if isinstance(leaf.space, (gym.spaces.Sequence, gym.spaces.Graph)) and not max_items_of(leaf.space):
                raise UnsupportedSpaceError(leaf.space, leaf.path, WITHOUT_LIMIT)
            if leaf.size > MOST_NUMBERS:
                remedy = (
                    "lower max_items (--max-items), or the max_length of a Text"
                    if leaf.items is not None
                    else "give a large choice as its digits, in a MultiDiscrete, or as numbers, in a Box"
                )
                reason = f"networks would see {leaf.size:,} numbers of it, and may see {MOST_NUMBERS:,}: {remedy}"
                raise UnsupportedSpaceError(leaf.space, leaf.path, reason)
        numbers = [leaf for leaf in leaves if leaf.image is None]
        sizes, images = [leaf.size for leaf in numbers], tuple(leaf.image for leaf in leaves if leaf.image is not None)
        places = slices(sizes)
        items = tuple(
            (at.start, leaf.items) for leaf, at in zip(numbers, places, strict=True) if leaf.items is not None
        )
        rows.layout = RowLayout(sum(sizes), images, self._kind.image is not None, items)
        of_numbers, of_images = iter(places), iter(rows.layout.image_slices)
        self.parts = [(leaf, next(of_numbers if leaf.image is None else of_images)) for leaf in leaves]
        rows.names = []
        for leaf in numbers:
            if isinstance(leaf, VaryingKind):
                rows.names += [f"{leaf.path}[]"] * leaf.size
                continue
            shape = leaf.space.shape if leaf.space.shape and math.prod(leaf.space.shape) == leaf.size else (leaf.size,)
            rows.names += [f"{leaf.path}{list(place)}" for place in np.ndindex(*shape)]
        low, high = ([bounds[end] for bounds in (leaf.bounds() for leaf in numbers)] for end in (0, 1))
        rows.bounds = np.concatenate([nothing, *low]), np.concatenate([nothing, *high])
        rows.measured = np.repeat(np.array([leaf.is_measured for leaf in numbers], np.bool_), sizes)
        return rows

    def __call__(self, observations: Any) -> Array:
        """Encode a batch in gymnasium's vector form, `[N, *space]` or a container of such, as rows `[N, *shape]`.

        Raises:
            BadValueError: for a choice that the space does not have.
        """
        if self._takes_as_it_is and getattr(observations, "dtype", None) is self.dtype:
            return observations
        if self.is_array:
            array = np.asarray(observations).reshape(len(observations), *self.shape)
            if self.image is not None and array.dtype != np.uint8:  # cast if that loses nothing
                array = np.array([self.one(image) for image in array], self.dtype).reshape(array.shape)
            return array.astype(self.dtype, copy=False)
        values = self._kind.values(observations)
        rows = np.zeros((len(values[0]), *self.shape), self.dtype)
        self._write(values, rows)
        return rows

    def one(self, observation: Any) -> Array:
        """Encode one observation as a row `[*shape]`, which may be shared: never write to it.

        Raises:
            BadValueError: if its shape is wrong, or it is a choice that the space does not have.
        """
        if self._known:
            with contextlib.suppress(KeyError, TypeError):
                return self._known[observation]
        row = np.zeros(self.shape, self.dtype)
        if self._is_leaf:
            self._kind.write(observation, row if row.ndim == 1 else row.reshape(-1))
        else:
            self._write(self._kind.values(observation), row)
        return row

    def values(self, observations: Any) -> Sequence[Any]:
        """The value of each of the `parts` in an observation, or in a batch of observations.

        Raises:
            BadValueError: if the container does not fit the space.
        """
        return self._kind.values(observations)

    def _write(self, values: Sequence[Any], rows: Array) -> None:
        numbers = self.layout.numbers(rows)
        for (leaf, part), value in zip(self.parts, values, strict=True):
            leaf.write(value, (numbers if leaf.image is None else rows)[..., part])

    def checked(self, observation: Any) -> Any:
        """One observation in the type of its space, cast if that loses nothing.

        Raises:
            BadValueError: if its shape, type or values do not fit the space.
        """
        return self._kind.checked(observation)

    def check_shapes(self, observations: Any, num_envs: int) -> None:
        """Refuse a batch whose shapes do not fit the space.

        Raises:
            BadValueError: naming the part.
        """
        for leaf, value in zip(self._kind.leaves, self._kind.values(observations), strict=True):
            found = (len(value),) if isinstance(leaf, VaryingKind) else np.shape(value)
            expected = (num_envs, *(leaf.space.shape or ()))
            if found != expected:
                raise BadValueError(f"the {num_envs} observations{leaf.path} must be of shape {expected}, not {found}")

    def each(self, observations: Any) -> list[Any]:
        """The observations of a batch, one by one."""
        return list(self._kind.each(observations))

    def finite_test(self, num_rows: int) -> Callable[[Array], Any]:
        """A function of `num_rows` rows as one flat array, whose result is finite if all their numbers are."""
        layout = self.layout
        if not layout.images or layout.num_numbers == 0:
            return finite_test(num_rows * self.size, self.dtype)
        weighted_sum = finite_test(num_rows * layout.num_numbers)
        return lambda flat: weighted_sum(layout.numbers(flat.reshape(num_rows, -1)).ravel())

    def require_finite(self, name: str, row: Array, given: Any = None) -> None:
        """Refuse a row with a number that is not finite; `given` is the observation, None if it is not known.

        Raises:
            BadValueError: naming the part and the number.
        """
        numbers = self.layout.numbers(row).reshape(-1)
        if not np.isfinite(numbers).all():
            at = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise BadValueError(f"{name}{self.names[at]} is {shown_cast(numbers[at], self._number_at(at, given))}")

    def _number_at(self, at: int, observation: Any) -> Any:
        """The number of an observation that is number `at` of its row; None if it is not found."""
        if observation is None:
            return None
        with contextlib.suppress(BadValueError):
            for (leaf, place), value in zip(self.parts, self._kind.values(observation), strict=False):
                if leaf.image is None and place.start <= at < place.stop == place.start + np.size(value):
                    return np.ravel(value)[at - place.start]
        return None

    def warning_of_bounds(self, rows: Array, left_out: Array) -> str | None:
        """A warning that names an entry of rows out of bounds, and its value; None if all are within.

        Args:
            rows: observations, `[T, N, *shape]`.
            left_out: which rows do not count, `[T, N]`.
        """
        encoders: dict[str, ObservationEncoder] = getattr(self.space, "encoders", {})  # of `SpacesOfAgents`
        for slot, (agent, own) in enumerate(encoders.items()):
            each = slice(slot, None, len(encoders))
            of_agent = own.warning_of_bounds(own.layout.own(rows[:, each]), left_out[:, each])
            if of_agent is not None:
                return f"agent {agent!r}: {of_agent}"
        found = self._outside(rows)
        return self._outside(rows[~left_out][None]) if found is not None and left_out.any() else found

    def warned_of_bounds(self, rows: Array, left_out: Array) -> bool:
        """Log `warning_of_bounds`; return whether there was one."""
        warning = self.warning_of_bounds(rows, left_out)
        if warning is not None:
            logger.warning(
                "%s: give the space the true bounds (-inf and inf if there are none), or fix the environment. These "
                "observations are used unchanged, and there is no other warning",
                warning,
            )
        return warning is not None

    def _outside(self, rows: Array) -> str | None:
        bounded: list[Any] = []
        if np.isfinite(self.bounds).any():
            bounded.append((self.names, *self.bounds, self.layout.numbers(rows)))
        for leaf, place in self.parts:
            if leaf.image is not None and (leaf.space.low.any() or (leaf.space.high < 255).any()):
                low, high = leaf.space.low.ravel(), leaf.space.high.ravel()
                bounded.append(([leaf.path] * leaf.size, low, high, rows.reshape(*rows.shape[:2], -1)[..., place]))
        for names, low, high, values in bounded if rows.size else ():
            # Reduce over time first, which is vectorised; reducing over few numbers of a row is not.
            least, most = values.min(0).min(0), values.max(0).max(0)
            if (least >= low).all() and (most <= high).all():  # what rounding explains is not looked for
                continue
            for extreme in (least, most):
                if (outside := is_outside(extreme, low, high)).any():
                    at = int(outside.argmax())
                    was = f"observation{names[at]} was {extreme[at]}"
                    return f"{was}, outside of the bounds of its space, {low[at]} to {high[at]}"
        return None


def encoders_of(spaces: Sequence[gym.Space[Any]]) -> list[ObservationEncoder]:
    """An encoder for each space; equal spaces share one."""
    made: list[ObservationEncoder] = []
    for space in spaces:
        made.append(next((encode for encode in made if encode.space == space), None) or ObservationEncoder(space))
    return made
