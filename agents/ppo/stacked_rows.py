"""Stacks of frames that store each frame once; a minibatch makes its stacks when a network needs them."""

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
    """Stands for a tensor `[..., *row]` of stacks in a batch; `made` returns the tensor.

    Args:
        frames: `[F, *frame]`, each stored once.
        index: `[..., K]`, the frames of each stack, the oldest first.
        layout: layout of a stack in a row.
    """

    def __init__(self, frames: Tensor, index: Tensor, layout: FrameLayout) -> None:
        self._frames, self._index, self._layout = frames, index, layout

    @property
    def shape(self) -> torch.Size:
        """The leading dimensions."""
        return self._index.shape[:-1]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, part: slice) -> "StackedRows":
        return self._of(self._index[part])

    def flatten(self, start: int, end: int) -> "StackedRows":
        """As `Tensor.flatten`."""
        return self._of(self._index.flatten(start, end))

    def index_select(self, dim: int, rows: Tensor) -> "StackedRows":
        """As `Tensor.index_select`, of the stacks."""
        return self._of(self._index.index_select(dim, rows))

    def split(self, sizes: Sequence[int]) -> "list[StackedRows]":
        """As `Tensor.split`, along the first dimension."""
        return [self._of(part) for part in torch.split(self._index, list(sizes))]

    def take(self, order: NDArray[Any], axis: int) -> NDArray[Any]:
        """As `ndarray.take` along the first axis: returns the stacks themselves, for gradients by hand."""
        rows: NDArray[Any] = self.index_select(axis, torch.as_tensor(np.asarray(order))).made().numpy()
        return rows

    def made(self) -> Tensor:
        """The stacks as a tensor `[B, *row]`."""
        frames = self._frames.index_select(0, self._index.flatten())
        stacked: Tensor = self._layout.stacked(frames.view(*self._index.shape, *frames.shape[1:]))
        return stacked

    def _of(self, index: Tensor) -> "StackedRows":
        return StackedRows(self._frames, index, self._layout)


def stacked_rows(rollout: Rollout, frames: Tensor, history: Tensor, layout: FrameLayout) -> StackedRows:
    """The stacks of a rollout, `[T + 1, N, *row]`: each frame with those before it in its episode.

    Args:
        rollout: the rollout; an episode begins in the row after an end.
        frames: `[T + 1, N, *frame]`, the newest frame of each stack.
        history: `[K - 1, N, *frame]`, the frames before the first; if an episode is younger, its first frame.
        layout: layout of a stack.
    """
    num_rows, num_envs = frames.shape[:2]
    before = layout.num_frames - 1
    rows = torch.arange(num_rows, device=frames.device).unsqueeze(-1)
    # The row in which the episode of each row begins; -(K - 1), the start of the history, if it began earlier.
    begins = torch.full((num_rows, num_envs), -before, device=frames.device)
    begins[1:] = torch.where(rollout.terminated | rollout.truncated, rows[1:], -before)
    begins = begins.cummax(0).values
    offsets = torch.arange(-before, 1, device=frames.device)
    # [T + 1, N, K]: the frame of that age, or the first of the episode.
    steps = torch.maximum((rows + offsets).unsqueeze(1), begins.unsqueeze(-1))
    columns = torch.arange(num_envs, device=frames.device).unsqueeze(-1)
    everything = torch.cat((history, frames)).flatten(0, 1)
    return StackedRows(everything, (steps + before) * num_envs + columns, layout)


def require_rows(config: PPOConfig, encode: ObservationEncoder) -> None:
    """Refuse settings that cannot learn from stacks of frames.

    Raises:
        ConfigurationError: with the name of the option.
    """
    for field, plain in (("recurrent", None), ("pool_size", 1)):
        value = getattr(config, field)
        if encode.frames is not None and value != plain:
            raise ConfigurationError(
                f"{field}={value!r} does not work with stacks of frames (frame_stack={encode.frames.num_frames}): "
                "leave one of the two out"
            )
