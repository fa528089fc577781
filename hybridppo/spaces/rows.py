"""How a row of an observation lies in memory: numbers of float32, then the bytes of images."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hybridppo.spaces.images import ImageLayout

Array = NDArray[Any]

_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_NUMBER = 4
"""Bytes of a number."""


@dataclass(frozen=True)
class RowLayout:
    """What a row is: `num_numbers` of float32, and images after them.

    Without images it is an array of float32. One image alone stays as it is, `[*image]` of bytes. Numbers beside
    images are stored as their four bytes, so that the images stay bytes.
    """

    num_numbers: int
    images: tuple[ImageLayout, ...] = ()
    is_one_image: bool = False
    """Whether it is an image as it is."""

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Of a row."""
        return _UINT8 if self.images else _FLOAT32

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row."""
        if self.is_one_image:
            return self.images[0].shape
        return (self.num_bytes,) if self.images else (self.num_numbers,)

    @property
    def num_bytes(self) -> int:
        """Of a row."""
        return _NUMBER * self.num_numbers + sum(image.num_bytes for image in self.images)

    @property
    def end_of_numbers(self) -> int:
        """Where in a row of bytes the numbers end, and the first image begins."""
        return _NUMBER * self.num_numbers

    @property
    def image_slices(self) -> list[slice]:
        """Where in a row of bytes each image is."""
        ends = np.cumsum([self.end_of_numbers, *(image.num_bytes for image in self.images)]).tolist()
        return [slice(start, end) for start, end in itertools.pairwise(ends)]

    @property
    def num_features(self) -> int:
        """What is left of a row for a multilayer perceptron: its numbers, and what convolutions make of images."""
        return self.num_numbers + sum(image.num_features for image in self.images)

    def numbers(self, rows: Array) -> Array:
        """The numbers of rows `[..., *shape]`: a view `[..., num_numbers]` of float32."""
        if not self.images:
            return rows
        if self.is_one_image:
            return np.empty((*rows.shape[:-3], 0), np.float32)
        return rows[..., : self.end_of_numbers].view(np.float32)

    def with_numbers(self, more: int) -> "RowLayout":
        """The layout of such rows with more numbers after those they have."""
        return RowLayout(self.num_numbers + more, self.images)


class RowPart(NamedTuple):
    """What belongs to one part of an observation."""

    numbers: slice
    """Among the numbers of a row."""
    images: slice
    """Among its images."""


@runtime_checkable
class HoldsRows(Protocol):
    """A space whose observations are rows already."""

    layout: RowLayout
    names: Sequence[str]
    """Of each number of a row, for messages."""
    bounds: tuple[Array, Array]
    """What each lies between."""
    measured: Array
    """Whether each is a quantity, and no part of a choice."""


def size_of(shape: tuple[int, ...]) -> int:
    """How many numbers an array of that shape has."""
    return math.prod(shape)
