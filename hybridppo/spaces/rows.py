"""How a row of an observation lies in memory: numbers of float32, then the bytes of images.

Also which convolutions suit an image. Free of torch, for worker processes.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.spaces.checks import UnsupportedSpaceError

Array = NDArray[Any]

_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_NUMBER = 4
"""Bytes of a number."""
CriticObserves = Literal["own", "all", "state"]
OWN = "own"
"""The part of an observation that is the agent's own, if critics see more."""
SMALLEST = 3
"""Pixels that a side must have, for a convolution to see more than one at a time."""
LARGE = 36
"""From so many pixels a side on, three convolutions leave something to look at."""


class Convolution(NamedTuple):
    """A layer: `filters` of `kernel` x `kernel` pixels, every `stride` pixels, without padding; then ReLU."""

    filters: int
    kernel: int
    stride: int


FOR_LARGE = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
"""Mnih et al., "Human-level control through deep reinforcement learning", 2015, "Methods", "Model architecture"."""
FOR_SMALL = (Convolution(16, 3, 1),)
"""Young and Tian, "MinAtar: An Atari-inspired testbed", 2019, section 3."""


@dataclass(frozen=True)
class ImageLayout:
    """An image of bytes, `[channels, height, width]` or `[height, width, channels]`."""

    channels: int
    height: int
    width: int
    channels_first: bool

    @classmethod
    def of(cls, space: gym.Space[Any], path: str = "") -> "ImageLayout | None":
        """That of a space's observations; None where they are no images.

        Images are what three dimensions of bytes are. Their channels are the first or the last, whichever has fewer.

        Raises:
            UnsupportedSpaceError: where they are too small for a convolution.
        """
        if not (isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3):
            return None
        channels_first = space.shape[0] < space.shape[2]
        channels, height, width = space.shape if channels_first else (space.shape[2], *space.shape[:2])
        if min(height, width) < SMALLEST:
            reason = f"images need at least {SMALLEST} pixels a side (gymnasium.wrappers.FlattenObservation makes a "
            raise UnsupportedSpaceError(space, path, f"{reason}vector of it)")
        return cls(channels, height, width, channels_first)

    @property
    def shape(self) -> tuple[int, int, int]:
        """As it is in an observation."""
        if self.channels_first:
            return self.channels, self.height, self.width
        return self.height, self.width, self.channels

    @property
    def num_bytes(self) -> int:
        """Of an image."""
        return math.prod(self.shape)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The layers, first to last."""
        return FOR_LARGE if min(self.height, self.width) >= LARGE else FOR_SMALL

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """Height, width and channels of the image, and of what each convolution makes of the one before."""
        return layer_sizes(self, self.convolutions)

    @property
    def num_features(self) -> int:
        """Numbers that the last convolution gives."""
        return math.prod(self.sizes[-1])


def layer_sizes(image: ImageLayout, convolutions: Sequence[Convolution]) -> list[tuple[int, int, int]]:
    """Height, width and channels of an image, and of what each convolution makes of the one before."""
    sizes = [(image.height, image.width, image.channels)]
    for filters, kernel, stride in convolutions:
        height, width, _ = sizes[-1]
        sizes.append(((height - kernel) // stride + 1, (width - kernel) // stride + 1, filters))
    return sizes


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
