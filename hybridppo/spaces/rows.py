"""The layout of an observation's row in memory: float32 numbers, then the bytes of images.

The file also has the convolutions for an image. Workers use it without torch.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import UnsupportedSpaceError

if TYPE_CHECKING:
    from torch import Tensor

_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_NUMBER = 4
"""Bytes of a float32 number."""
CriticObserves = Literal["own", "all", "state"]
ObservesOfAgents = CriticObserves | Mapping[str, CriticObserves] | Callable[[str], CriticObserves]
"""The same for all agents, or by the name of an agent."""
OWN = "own"
"""Key of the part that the actor sees, if critics see more."""
SMALLEST = 3
"""The smallest side of an image, in pixels, that a convolution takes."""
LARGE = 36
"""The smallest side of an image, in pixels, for three convolutions."""


class Convolution(NamedTuple):
    """A layer: `filters` of `kernel` x `kernel` pixels, every `stride` pixels, without padding; then ReLU."""

    filters: int
    kernel: int
    stride: int


FOR_LARGE = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
"""Mnih et al., "Human-level control through deep reinforcement learning", 2015, "Methods", "Model architecture"."""
FOR_SMALL = (Convolution(16, 3, 1),)
"""Young and Tian, "MinAtar: An Atari-inspired testbed", 2019, section 3."""


def slices(sizes: Iterable[int], first: int = 0) -> list[slice]:
    """Neighbouring slices of these sizes."""
    ends = itertools.accumulate(sizes, initial=first)
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


@dataclass(frozen=True)
class ImageLayout:
    """An image of bytes, `[channels, height, width]` or `[height, width, channels]`."""

    channels: int
    height: int
    width: int
    channels_first: bool

    @classmethod
    def of(cls, space: gym.Space[Any], path: str = "") -> "ImageLayout | None":
        """The layout of a space's images; None if its observations are not images.

        An image has three dimensions of bytes. Its channels are the first or the last dimension: the one that differs
        if the two others are equal, else the smaller.

        Raises:
            UnsupportedSpaceError: if the images are too small for a convolution.
        """
        if not (isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3):
            return None
        first, middle, last = space.shape
        channels_first = last == middle if first != last and middle in (first, last) else first < last
        channels, height, width = space.shape if channels_first else (space.shape[2], *space.shape[:2])
        if min(height, width) < SMALLEST:
            reason = f"images need at least {SMALLEST} pixels a side (gymnasium.wrappers.FlattenObservation makes a "
            raise UnsupportedSpaceError(space, path, f"{reason}vector of it)")
        return cls(channels, height, width, channels_first)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape in an observation."""
        if self.channels_first:
            return self.channels, self.height, self.width
        return self.height, self.width, self.channels

    @property
    def num_bytes(self) -> int:
        """Bytes of an image."""
        return math.prod(self.shape)

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The convolutions, first to last."""
        return FOR_LARGE if min(self.height, self.width) >= LARGE else FOR_SMALL

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """Height, width and channels of the image, and of the output of each convolution."""
        sizes = [(self.height, self.width, self.channels)]
        for filters, kernel, stride in self.convolutions:
            height, width, _ = sizes[-1]
            sizes.append(((height - kernel) // stride + 1, (width - kernel) // stride + 1, filters))
        return sizes

    @property
    def num_features(self) -> int:
        """Length of the last convolution's output."""
        return math.prod(self.sizes[-1])


@dataclass(frozen=True)
class ItemsLayout:
    """Places for items among the numbers of a row: of each item 1 if it is there, and its numbers; else zeros."""

    places: tuple[tuple[int, int], ...]
    """The number of places, and the numbers of each; of a graph, those of nodes and those of edges."""
    num_characters: int = 0
    """If items are characters, how many there are."""

    @property
    def size(self) -> int:
        """Numbers of all places."""
        return sum(map(math.prod, self.places))

    def tables(self, numbers: Any) -> list[Any]:
        """The places in numbers `[..., size]`, `[..., places, numbers]` each; views of an array or a tensor."""
        parts = zip(slices(map(math.prod, self.places)), self.places, strict=True)
        return [numbers[..., part].reshape(*numbers.shape[:-1], *places) for part, places in parts]


@dataclass(frozen=True)
class RowLayout:
    """The layout of a row: `num_numbers` float32 numbers, then images.

    Without images, a row is a float32 array. A single image stays a byte array `[*image]`. Beside images, numbers are
    stored as four bytes each, so that the whole row is bytes.
    """

    num_numbers: int
    images: tuple[ImageLayout, ...] = ()
    is_one_image: bool = False
    """Whether a row is a single image."""
    items: tuple[tuple[int, ItemsLayout], ...] = ()
    """The layouts of items among the numbers, each with the index of its first."""

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Type of a row."""
        return _UINT8 if self.images else _FLOAT32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        if self.is_one_image:
            return self.images[0].shape
        return (self.num_bytes,) if self.images else (self.num_numbers,)

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return _NUMBER * self.num_numbers + sum(image.num_bytes for image in self.images)

    @property
    def end_of_numbers(self) -> int:
        """Where the numbers end and the first image begins, in bytes."""
        return _NUMBER * self.num_numbers

    @property
    def image_slices(self) -> list[slice]:
        """The slice of each image, in bytes."""
        return slices((image.num_bytes for image in self.images), self.end_of_numbers)

    def numbers(self, rows: Any) -> Any:
        """The numbers of rows `[..., *shape]`, float32 `[..., num_numbers]`; a view, but of tensors of bytes a copy.

        In an exported policy, tensors with images are float32, with a number for each byte of an image, since network
        formats cannot read four bytes as a number.
        """
        if not self.images:
            return rows
        if isinstance(rows, np.ndarray):
            if self.is_one_image:
                return np.empty((*rows.shape[:-3], 0), np.float32)
            return rows[..., : self.end_of_numbers].view(np.float32)
        import torch

        if not self.num_numbers:
            return rows.new_empty((*rows.shape[:-1], 0), dtype=torch.float32)
        if rows.is_floating_point():
            return rows[..., : self.num_numbers]
        # A copy, because bytes can be viewed as float32 only if each row begins at a multiple of four bytes.
        return rows[..., : self.end_of_numbers].clone(memory_format=torch.contiguous_format).view(torch.float32)

    def replaced(self, rows: "Tensor", numbers: "Tensor") -> "Tensor":
        """Rows with the same images and other numbers `[..., num_numbers]`."""
        import torch

        if not self.images:
            return numbers
        if not rows.is_floating_point():
            numbers = numbers.clone(memory_format=torch.contiguous_format).view(rows.dtype)
        return torch.cat((numbers, rows[..., numbers.shape[-1] :]), dim=-1)

    def pixels(self, rows: "Tensor") -> "list[Tensor]":
        """The images of rows `[..., *shape]`, `[B, *image]` each."""
        if not self.images:  # a graph cannot be saved with a split into nothing
            return []
        import torch

        if self.is_one_image:
            return [rows.reshape(-1, *rows.shape[-3:])]
        images = rows[..., self.num_numbers if rows.is_floating_point() else self.end_of_numbers :]
        parts = torch.split(images, [image.num_bytes for image in self.images], dim=-1)
        return [part.reshape(-1, *image.shape) for image, part in zip(self.images, parts, strict=True)]

    def own(self, rows: Any) -> Any:
        """The rows `[..., *shape]` of agents with this layout, from rows `[..., W]` of agents with different spaces."""
        own = rows[..., : math.prod(self.shape)]
        if not self.images:
            return own
        if isinstance(own, np.ndarray):
            with np.errstate(invalid="ignore"):  # of the mark by `among_others`
                return own.astype(_UINT8).reshape(*rows.shape[:-1], *self.shape)
        return own.byte().reshape(*rows.shape[:-1], *self.shape)

    def among_others(self, row: Array) -> Array:
        """A row as the first numbers of one among agents with different spaces; its last is nan if a number is bad."""
        if not self.images:
            return row
        numbers = row.ravel().astype(_FLOAT32)
        if not np.isfinite(self.numbers(row)).all():
            numbers[-1] = np.nan
        return numbers

    def with_numbers(self, more: int) -> "RowLayout":
        """The layout with `more` numbers after the present ones."""
        return RowLayout(self.num_numbers + more, self.images, items=self.items)


class RowPart(NamedTuple):
    """The slices of a row that belong to one part of an observation."""

    numbers: slice
    """Of the numbers."""
    images: slice
    """Of the images."""


class HoldsRows:
    """A space whose observations are already rows."""

    layout: RowLayout
    names: Sequence[str]
    """A name for each number of a row, for messages."""
    bounds: tuple[Array, Array]
    """Lower and upper bounds of the numbers."""
    measured: Array
    """Whether each number is a quantity; false for choices."""
