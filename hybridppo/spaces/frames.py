"""Stacks of the last observations, which a rollout stores frame by frame."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import UnsupportedSpaceError, unsupported
from hybridppo.spaces.rows import SMALLEST, ImageLayout


@dataclass(frozen=True)
class FrameLayout:
    """How `K` frames lie in the row of a stack, oldest first: vectors one after the other, images along channels."""

    num_frames: int
    """`K`."""
    size: int
    """Length of a frame that is not an image."""
    image: ImageLayout | None = None
    """The layout of a frame that is an image; else None."""

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of a stored frame."""
        return (self.size,) if self.image is None else self.image.shape

    def newest(self, rows: Any) -> Any:
        """The newest frame of each row, `[..., *row]` to `[..., *frame]`; a view."""
        return self._frame(rows, self.num_frames - 1)

    def older(self, rows: Array) -> Array:
        """All frames but the newest, `[..., *row]` to `[K - 1, ..., *frame]`."""
        return np.stack([self._frame(rows, k) for k in range(self.num_frames - 1)])

    def repeated(self, frames: Array) -> Array:
        """Each frame as a stack of itself, `[..., *frame]` to `[..., *row]`."""
        leading = frames.shape[: frames.ndim - len(self.frame_shape)]
        flat = frames.reshape(-1, *self.frame_shape)
        rows: Array = self.stacked(np.stack([flat] * self.num_frames, axis=1))
        return rows.reshape(*leading, *rows.shape[1:])

    def _frame(self, rows: Any, k: int) -> Any:
        if self.image is None:
            return rows[..., k * self.size : (k + 1) * self.size]
        channels = slice(k * self.image.channels, (k + 1) * self.image.channels)
        return rows[..., channels, :, :] if self.image.channels_first else rows[..., channels]

    def stacked(self, frames: Any) -> Any:
        """Rows made from frames, `[B, K, *frame]` to `[B, *row]`; takes arrays or tensors."""
        if self.image is None:
            return frames.reshape(len(frames), -1)
        channels, height, width = self.num_frames * self.image.channels, self.image.height, self.image.width
        if self.image.channels_first:
            return frames.reshape(-1, channels, height, width)
        # [B, K, H, W, C] -> [B, H, W, K, C]
        return frames.swapaxes(1, 2).swapaxes(2, 3).reshape(-1, height, width, channels)


class StackedFrames(gym.spaces.Box):
    """The last `K` observations of an episode, oldest first; at its start, the first observation `K` times.

    Images `[height, width, channels]` and `[channels, height, width]` are stacked along channels, and images
    `[height, width]` along a new first axis. All other observations get a new first axis, `[K, *shape]`.

    Args:
        frame: the space of one observation.
        num_frames: `K`.

    Raises:
        EnvError: if the space is not a `Box`, or has images that are too small.
    """

    def __init__(self, frame: gym.Space[Any], num_frames: int) -> None:
        if type(frame) is not gym.spaces.Box:
            raise EnvError(
                f"frame_stack={num_frames} stacks observations of a Box, and these are of {frame}: leave it out, or "
                "stack within the environment"
            )
        self.frame, self.num_frames = frame, num_frames
        image = _image_of(frame)
        self.frames = FrameLayout(num_frames, math.prod(frame.shape), image)
        self.image = None if image is None else replace(image, channels=num_frames * image.channels)
        """The layout of a stack of images; else None."""
        low, high = (self.stack([bound] * num_frames) for bound in (frame.low, frame.high))
        super().__init__(low, high, dtype=frame.dtype)

    def stack(self, observations: list[Array]) -> Array:
        """A stack of `K` observations, oldest first."""
        if self.frames.image is None or self.frame.shape == self.frames.image.shape[1:]:
            return np.stack(observations)
        return np.concatenate(observations, axis=0 if self.frames.image.channels_first else 2)

    def __repr__(self) -> str:
        return f"StackedFrames({self.frame}, {self.num_frames})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StackedFrames) and (self.frame, self.num_frames) == (other.frame, other.num_frames)

    __hash__ = None  # type: ignore[assignment]  # like that of a Box


def num_frames_of(space: gym.Space[Any]) -> int:
    """Number of frames in an observation of the space."""
    return space.num_frames if isinstance(space, StackedFrames) else 1


def _image_of(frame: gym.spaces.Box) -> ImageLayout | None:
    """The layout of a frame that is an image; None if it is not, also for `[height, width]` that are too small."""
    if frame.dtype == np.uint8 and len(frame.shape) == 2:
        if min(frame.shape) < SMALLEST:
            return None
        return ImageLayout(1, *frame.shape, channels_first=True)
    try:
        return ImageLayout.of(frame)
    except UnsupportedSpaceError as error:
        raise unsupported("observation", frame, error, "") from None
