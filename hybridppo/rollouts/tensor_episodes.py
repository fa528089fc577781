"""Episode statistics of rollouts of tensors: counted on their device, without a loop over columns."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.rollouts.episodes import EpisodeStatistics


class TensorStatistics(EpisodeStatistics):
    """`EpisodeStatistics` of rollouts on a device; only the latest episodes are copied to the host.

    Args:
        num_envs: `N`.
        device: device of the rollouts.
        window: number of latest episodes for the means.
    """

    def __init__(self, num_envs: int, device: torch.device, window: int = 100) -> None:
        super().__init__(num_envs, window)
        self._window = window
        precise = torch.float32 if device.type == "mps" else torch.float64  # which has no other
        self._sums = torch.zeros(num_envs, dtype=precise, device=device)
        self._counts = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def measured(self, rewards: Tensor, ended: Tensor, valid: Tensor) -> Tensor:
        """Count a block of steps; return one tensor of numbers for `read`.

        Args:
            rewards: `[T, N]`.
            ended: `[T, N]` bool; only for steps.
            valid: `[T, N]` bool, which rows are steps.
        """
        num_steps, num_envs = rewards.shape
        rows = torch.arange(num_steps, device=rewards.device)[:, None]
        # Sums of each column up to each row, as if no episode had ended in the block.
        sums = self._sums + (rewards * valid).to(self._sums.dtype).cumsum(0)
        counts = self._counts + valid.cumsum(0)
        ends = torch.where(ended, rows, -1).cummax(0).values  # the last end up to each row, or -1
        before = torch.cat((torch.full_like(ends[:1], -1), ends[:-1]))
        is_later, index = before >= 0, before.clamp(min=0)
        # The sum of an episode is the difference between its end and the end before.
        returns = sums - torch.where(is_later, sums.gather(0, index), 0.0)
        lengths = counts - torch.where(is_later, counts.gather(0, index), 0)
        has_ended, last = ends[-1] >= 0, ends[-1:].clamp(min=0)
        self._sums = sums[-1] - torch.where(has_ended, sums.gather(0, last)[0], 0.0)
        self._counts = counts[-1] - torch.where(has_ended, counts.gather(0, last)[0], 0)
        # The latest episodes in the order of their ends: rows before columns.
        places = torch.arange(num_steps * num_envs, device=rewards.device)
        order = torch.where(ended.flatten(), places, -1).topk(min(self._window, len(places))).values
        latest = order.clamp(min=0)
        found = (ended.sum().reshape(1), returns.flatten()[latest], lengths.flatten()[latest])
        return torch.cat([numbers.to(self._sums.dtype) for numbers in found])

    def read(self, numbers: list[float]) -> None:
        """Read the result of `measured` on the host."""
        num_ended, size = int(numbers[0]), (len(numbers) - 1) // 2
        known = min(num_ended, size)
        returns, lengths = numbers[1 : 1 + known][::-1], numbers[1 + size : 1 + size + known][::-1]
        self.add_ended(returns, [int(length) for length in lengths], num_ended)

    def drop_running(self, envs: slice | NDArray[Any] = slice(None)) -> None:  # noqa: D102 - as in the base
        columns = envs if isinstance(envs, slice) else torch.tensor(envs, device=self._sums.device)
        self._sums[columns] = 0.0
        self._counts[columns] = 0

    def state(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        self._running_return = np.array(self._sums.tolist())
        self._running_length = np.array(self._counts.tolist(), dtype=np.int64)
        return super().state()

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        super().load_state(state)
        self._sums.copy_(torch.from_numpy(self._running_return))
        self._counts.copy_(torch.from_numpy(self._running_length))
