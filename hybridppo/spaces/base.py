"""The interface of a kind of space: its observations and masks. Each kind is a class.

To add a kind, add a file with a subclass of `Kind`, and its name to `KINDS` in `kinds.py`. It also needs a line in
`serialization.py`, and a kind of actions a distribution in `distributions/of_space.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium as gym
import numpy as np

from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.rows import ImageLayout

SpaceT = TypeVar("SpaceT", bound="gym.Space[Any]")


class Kind(Generic[SpaceT]):
    """The handling of one space of a kind.

    A kind that cannot be an observation does not define `write` and `checked`. A kind whose actions cannot be masked
    does not define `mask_parts` and `flat_mask`.

    Args:
        space: the space.
        path: where the space is within the whole space, for messages; "" for the whole space.
    """

    of: ClassVar[type[gym.Space[Any]]]
    """The class of its spaces."""
    size: int = 0
    """Length of an observation in a row: in numbers, or in bytes for an image."""
    image: ImageLayout | None = None
    """The layout of the image; None if the space is not an image."""
    is_measured: ClassVar[bool] = False
    """Whether the numbers are quantities, so that a mean and a deviation make sense; false for choices."""

    def __init__(self, space: SpaceT, path: str) -> None:
        self.space, self.path = space, path

    # As an observation

    @property
    def leaves(self) -> Sequence[Kind[Any]]:
        """The parts of a row: the kind itself, or the leaves of a space that contains others."""
        return [self]

    @property
    def by_key(self) -> dict[str, Kind[Any]]:
        """The parts by key, if the space contains others; else empty."""
        return {}

    def values(self, observations: Any) -> Sequence[Any]:
        """The value of each leaf in an observation, or in a batch of observations."""
        return [observations]

    def write(self, observations: Any, rows: Array) -> None:
        """Write an observation into a row `[size]`, or a batch in gymnasium's vector form into rows `[N, size]`.

        Raises:
            BadValueError: if an observation is a choice that the space does not have.
        """
        raise UnsupportedSpaceError(self.space, self.path)

    def checked(self, observation: Any, *, bounds: bool = True) -> Any:
        """The observation in the type of its space, cast if that loses nothing.

        Args:
            observation: one observation.
            bounds: whether numbers must lie within the bounds of their `Box`.

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
        return batch  # type: ignore[no-any-return]

    @property
    def mask_parts(self) -> Sequence[tuple[str, int]]:
        """The choices that a mask covers: the path of each, and its number of options."""
        return []

    def flat_mask(self, mask: Any) -> Array:
        """A mask for `space.sample(mask)` as one float32 array over all choices in turn: 1 for what is allowed.

        Raises:
            BadValueError: if it does not fit the space.
        """
        raise UnsupportedSpaceError(self.space, self.path)
