"""Images: how they lie in an observation, and which convolutions suit them. Free of torch, for worker processes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from hybridppo.spaces.unsupported import UnsupportedSpaceError

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
    def of(cls, space: "gym.Space[Any]", path: str = "") -> "ImageLayout | None":
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
