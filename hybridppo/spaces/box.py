"""`Box`: vectors of numbers, images of bytes, and actions that are numbers."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError, ConfigurationError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import FromJson, Json, Kind, KindOf
from hybridppo.spaces.checks import as_numbers, require_finite, reshaped
from hybridppo.spaces.rows import ImageLayout

MOST_NUMBERS = 2**26
"""The largest space that is read from a file: a larger size is damage, and would only fill the memory."""
A_LITTLE = 0.1
"""How far a number of a first observation may lie out of its bounds, as a share of their width. Bounds are often
careless, so a small excess is only a warning; a larger one means that the space does not belong to the observation."""


class BoxKind(Kind[gym.spaces.Box]):
    """Flattened to float32; images (`ImageLayout`) stay bytes. Actions are drawn from normal distributions."""

    type_name = "Box"
    of: ClassVar[type[gym.Space[Any]]] = gym.spaces.Box
    is_measured = True

    def __init__(self, space: gym.spaces.Box, path: str, kind_of: KindOf) -> None:
        super().__init__(space, path, kind_of)
        self.image = self._image_of(space)
        self.size = math.prod(space.shape)

    def _image_of(self, space: gym.spaces.Box) -> ImageLayout | None:
        return ImageLayout.of(space, self.path)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        array = np.asarray(observations)
        if array.shape != (*rows.shape[:-1], *self.space.shape):
            array = reshaped(self.space, array, f"its observation{self.path}")
        if self.image is not None and array.dtype != np.uint8:
            array = np.stack([self.checked(image) for image in array.reshape(-1, *self.space.shape)])
        rows[...] = array.reshape(rows.shape)

    def checked(self, observation: Any, *, bounds: bool = True) -> Array:  # noqa: D102 - as in the base
        space, name = self.space, f"its observation{self.path}"
        array = as_numbers(name, observation)
        require_finite(name, array)
        array = reshaped(space, array, name)
        if self.image is not None and array.dtype == np.bool_:  # black or white, as for MinAtar
            return array * np.uint8(255)
        if np.issubdtype(space.dtype, np.integer) and np.any(array != np.trunc(array)):
            raise BadValueError(
                f"{name} is of {array.dtype} and has numbers that are not whole, but its space is of {space.dtype}: "
                "give the space the type of the observations"
            )
        if not bounds and self.image is None:
            return array
        outside = is_outside(array, space.low, space.high, A_LITTLE if self.image is None else 0.0)
        if outside.any():
            at = tuple(np.argwhere(outside)[0].tolist())
            raise BadValueError(
                f"{name}{list(at) if at else ''} is {array[at]}, outside of the bounds of its space, "
                f"{space.low[at]} to {space.high[at]}: give the space the true bounds (-inf and inf where there are "
                "none)"
            )
        return array

    def bounds(self) -> tuple[Array, Array]:  # noqa: D102 - as in the base
        with np.errstate(over="ignore"):  # a bound that float32 cannot hold becomes infinite
            low, high = (bound.ravel().astype(np.float32) for bound in (self.space.low, self.space.high))
        return low, high

    @property
    def each(self) -> Callable[[Any], Iterable[Any]]:
        """Gives arrays, also for actions without an axis, which plain iteration would make numbers."""
        return iter if self.space.shape else partial(map, np.asarray)

    def flat_mask(self, mask: Any) -> Array:
        """An empty mask: numbers cannot be forbidden, so gymnasium's mask for them is None."""
        if mask is not None:
            raise BadValueError(f"its action mask{self.path} must be None, for a Box has no choices to allow")
        return np.zeros(0, np.float32)

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        # As text: JSON has no infinity, and not every reader of it keeps 64 bits.
        bounds = {name: [str(x) for x in self._bound(name)] for name in ("low", "high")}
        return {"shape": list(self.space.shape), "dtype": str(np.dtype(self.space.dtype)), **bounds}

    def _bound(self, name: str) -> list[Any]:
        """The bound of each number; only one number for an image whose bounds are all equal."""
        bound: Array = getattr(self.space, name).ravel()
        is_same = self.image is not None and bool((bound == bound[0]).all())
        return list(bound[:1].tolist() if is_same else bound.tolist())

    @classmethod
    def from_json(cls, json: Json, from_json: FromJson) -> gym.Space[Any]:  # noqa: D102 - as in the base
        dtype = np.dtype(json["dtype"])
        number: Any = {"f": dtype.type, "b": "True".__eq__}.get(dtype.kind, int)
        shape = tuple(json["shape"])
        if math.prod(shape) > MOST_NUMBERS:
            raise ConfigurationError(f"a space may have {MOST_NUMBERS} numbers, and one of shape {shape} has more")

        def bound(values: list[str]) -> Array:
            array = np.array([number(x) for x in values], dtype=dtype)
            return np.full(shape, array[0]) if len(array) == 1 else array.reshape(shape)

        return gym.spaces.Box(bound(json["low"]), bound(json["high"]), dtype=dtype.type)


def is_outside(array: Array, low: Array, high: Array, share: float = 0.0) -> Array:
    """Where numbers lie outside of their bounds by more than rounding explains.

    Args:
        array: the numbers.
        low: lower bounds, possibly infinite.
        high: upper bounds, possibly infinite.
        share: of the width between two bounds; numbers may lie out of the bounds by so much.
    """
    a_little: Any = 0.0
    if share:  # each bound is scaled by itself, in float64: high - low of the largest bounds would overflow
        both = np.isfinite(low) & np.isfinite(high)
        a_little = share * np.where(both, high, 0.0).astype(np.float64) - share * np.where(both, low, 0.0)
    slack = [
        np.maximum(1e-5 * np.maximum(1.0, np.abs(np.where(np.isfinite(bound), bound, 0.0))), a_little)
        for bound in (low, high)
    ]
    with np.errstate(over="ignore"):
        outside: Array = (array < low - slack[0]) | (array > high + slack[1])
    return outside
