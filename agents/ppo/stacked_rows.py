"""Stacks of frames, each stored once, that are made where they are looked at: of a minibatch, and no more at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.errors import ConfigurationError
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.frames import FrameLayout
from hybridppo.spaces.observations import ObservationEncoder


class StackedRows:
    """Of a tensor `[..., *row]` of stacks, what a batch does with it; `made` is the tensor.

    Args:
        frames: `[F, *frame]`, each stored once.
        index: `[..., K]`, the frames of each stack, the oldest first.
        layout: how they lie in a row.
    """

    def __init__(self, frames: Tensor, index: Tensor, layout: FrameLayout) -> None:
        self._frames, self._index, self._layout = frames, index, layout

    @property
    def shape(self) -> torch.Size:
        """The leading dimensions alone."""
        return self._index.shape[:-1]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, part: slice) -> "StackedRows":
        return self._of(self._index[part])

    def flatten(self, start: int, end: int) -> "StackedRows":
        """As a tensor's."""
        return self._of(self._index.flatten(start, end))

    def index_select(self, dim: int, rows: Tensor) -> "StackedRows":
        """As a tensor's: of the stacks, and of no frames."""
        return self._of(self._index.index_select(dim, rows))

    def split(self, sizes: Sequence[int]) -> "list[StackedRows]":
        """As a tensor's, of the first dimension."""
        return [self._of(part) for part in torch.split(self._index, list(sizes))]

    def take(self, order: NDArray[Any], axis: int) -> NDArray[Any]:
        """As an array's, of the first axis: the stacks themselves, for gradients by hand."""
        rows: NDArray[Any] = self.index_select(axis, torch.as_tensor(np.asarray(order))).made().numpy()
        return rows

    def made(self) -> Tensor:
        """`[B, *row]`, of one leading dimension."""
        frames = self._frames.index_select(0, self._index.flatten())
        stacked: Tensor = self._layout.stacked(frames.view(*self._index.shape, *frames.shape[1:]))
        return stacked

    def _of(self, index: Tensor) -> "StackedRows":
        return StackedRows(self._frames, index, self._layout)


def stacked_rows(rollout: Rollout, frames: Tensor, history: Tensor, layout: FrameLayout) -> StackedRows:
    """The stacks of a rollout, `[T + 1, N, *row]`: a frame, and those before it in its episode.

    Args:
        rollout: whose ends say where episodes begin: in the row after.
        frames: `[T + 1, N, *frame]`, the newest of each stack.
        history: `[K - 1, N, *frame]`, those before the first; where an episode is younger, its first frame.
        layout: of a stack.
    """
    num_rows, num_envs = frames.shape[:2]
    before = layout.num_frames - 1
    rows = torch.arange(num_rows, device=frames.device).unsqueeze(-1)
    # The row in which the episode of each row begins; -(K - 1), where the history does, for one that began before.
    begins = torch.full((num_rows, num_envs), -before, device=frames.device)
    begins[1:] = torch.where(rollout.terminated | rollout.truncated, rows[1:], -before)
    begins = begins.cummax(0).values
    offsets = torch.arange(-before, 1, device=frames.device)
    # [T + 1, N, K]: as old as it is meant to be, or the first of its episode.
    steps = torch.maximum((rows + offsets).unsqueeze(1), begins.unsqueeze(-1))
    columns = torch.arange(num_envs, device=frames.device).unsqueeze(-1)
    everything = torch.cat((history, frames)).flatten(0, 1)
    return StackedRows(everything, (steps + before) * num_envs + columns, layout)


def require_rows(config: PPOConfig, encode: ObservationEncoder) -> None:
    """Refuse what cannot learn from stacks of frames.

    Raises:
        ConfigurationError: naming the option.
    """
    for field, plain in (("recurrent", None), ("pool_size", 1)):
        value = getattr(config, field)
        if encode.frames is not None and value != plain:
            raise ConfigurationError(
                f"{field}={value!r} cannot be had with stacks of frames (frame_stack={encode.frames.num_frames}): "
                "leave one of the two out"
            )
