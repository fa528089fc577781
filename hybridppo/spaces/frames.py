"""Stacks of the last observations of an episode, and how frames lie in them. Workers use this file without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from hybridppo.errors import EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import FromJson, Json, KindOf
from hybridppo.spaces.box import BoxKind
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
        frames = [self._frame(rows, k) for k in range(self.num_frames - 1)]
        return np.stack(frames)

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
        self.frames = FrameLayout(num_frames, int(np.prod(frame.shape)), image)
        self.axis = 0 if image is None or image.channels_first else 2
        """The axis along which frames are stacked."""
        low, high = (self.stack([bound] * num_frames) for bound in (frame.low, frame.high))
        super().__init__(low, high, dtype=frame.dtype)

    def stack(self, observations: list[Array]) -> Array:
        """A stack of `K` observations, oldest first."""
        if self.frames.image is None or self.frame.shape == self.frames.image.shape[1:]:
            return np.stack(observations)
        return np.concatenate(observations, axis=self.axis)

    def pushed(self, stack: Array, observation: Array) -> Array:
        """A new stack without the oldest observation and with a new one."""
        oldest = stack.shape[self.axis] // self.num_frames
        others = stack[oldest:] if self.axis == 0 else stack[:, :, oldest:]
        newest = observation.reshape(
            self.frames.image.shape if self.frames.image is not None else (1, *self.frame.shape)
        )
        return np.concatenate((others, newest), axis=self.axis)

    def __repr__(self) -> str:
        return f"StackedFrames({self.frame}, {self.num_frames})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StackedFrames) and (self.frame, self.num_frames) == (other.frame, other.num_frames)

    __hash__ = None  # type: ignore[assignment]  # like that of a Box


class StackedFramesKind(BoxKind):
    """Rows like those of a `Box`; the axis of the channels follows from a frame."""

    type_name = "StackedFrames"
    of: ClassVar[type[gym.Space[Any]]] = StackedFrames

    def __init__(self, space: gym.spaces.Box, path: str, kind_of: KindOf) -> None:
        super().__init__(space, path, kind_of)
        assert isinstance(space, StackedFrames)  # by its class
        self._frame, self._num_frames = BoxKind(space.frame, path, kind_of), space.num_frames

    def _image_of(self, space: gym.spaces.Box) -> ImageLayout | None:
        assert isinstance(space, StackedFrames)  # by its class
        image = space.frames.image
        return None if image is None else replace(image, channels=space.num_frames * image.channels)

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        return {"frame": {"type": BoxKind.type_name, **self._frame.to_json()}, "num_frames": self._num_frames}

    @classmethod
    def from_json(cls, json: Json, from_json: FromJson) -> gym.Space[Any]:  # noqa: D102 - as in the base
        return StackedFrames(from_json(json["frame"]), int(json["num_frames"]))


def frames_of(space: gym.Space[Any]) -> FrameLayout | None:
    """How frames lie in a row of the space; None if it does not stack frames."""
    return space.frames if isinstance(space, StackedFrames) else None


def num_frames_of(space: gym.Space[Any]) -> int:
    """Number of frames in an observation of the space."""
    return space.num_frames if isinstance(space, StackedFrames) else 1


def _image_of(frame: gym.spaces.Box) -> ImageLayout | None:
    """The layout of a frame that is an image; None if it is not, also for `[height, width]` that are too small."""
    if frame.dtype == np.uint8 and len(frame.shape) == 2:
        if min(frame.shape) < SMALLEST:
            return None
        return ImageLayout.of(gym.spaces.Box(0, 255, (1, *frame.shape), np.uint8))
    try:
        return ImageLayout.of(frame)
    except UnsupportedSpaceError as error:
        raise unsupported("observation", frame, error, "") from None
