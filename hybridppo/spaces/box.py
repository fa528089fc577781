"""`Box`: vectors of numbers, images of bytes, actions that are numbers, and stacks of the last observations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import Kind
from hybridppo.spaces.checks import UnsupportedSpaceError, as_numbers, require_finite, reshaped, unsupported
from hybridppo.spaces.rows import SMALLEST, ImageLayout

A_LITTLE = 0.1
"""How far a number of a first observation may lie out of its bounds, as a share of their width. Bounds are often
careless, so a small excess is only a warning; a larger one means that the space does not belong to the observation."""


class BoxKind(Kind[gym.spaces.Box]):
    """Flattened to float32; images (`ImageLayout`) stay bytes. Actions are drawn from normal distributions."""

    of: ClassVar[type[gym.Space[Any]]] = gym.spaces.Box
    is_measured = True

    def __init__(self, space: gym.spaces.Box, path: str) -> None:
        super().__init__(space, path)
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

    def each(self, batch: Any) -> Iterable[Any]:
        """Arrays, also for actions without an axis, which plain iteration would make numbers."""
        return batch if self.space.shape else map(np.asarray, batch)

    def flat_mask(self, mask: Any) -> Array:
        """An empty mask: numbers cannot be forbidden, so gymnasium's mask for them is None."""
        if mask is not None:
            raise BadValueError(f"its action mask{self.path} must be None, for a Box has no choices to allow")
        return np.zeros(0, np.float32)


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

    of: ClassVar[type[gym.Space[Any]]] = StackedFrames

    def _image_of(self, space: gym.spaces.Box) -> ImageLayout | None:
        assert isinstance(space, StackedFrames)  # by its class
        image = space.frames.image
        return None if image is None else replace(image, channels=space.num_frames * image.channels)


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
