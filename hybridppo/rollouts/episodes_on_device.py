"""Episode statistics where the rollout lies: what `EpisodeStatistics.add` counts, and the host sees no row."""

import torch
from torch import Tensor


class EpisodesOnDevice:
    """Returns and lengths of whole episodes, over the rollouts in which they lie.

    Args:
        num_envs: `N`.
        device: of the rollouts.
        window: how many of the latest episodes are told of.
    """

    def __init__(self, num_envs: int, device: torch.device, window: int) -> None:
        self.running_return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        """`[N]`, of the episodes that are not over."""
        self.running_length = torch.zeros(num_envs, dtype=torch.int64, device=device)
        """`[N]`, likewise."""
        self._window = window

    def add(self, rewards: Tensor, ended: Tensor, valid: Tensor) -> Tensor:
        """Count a block of steps, each `[T, N]`; rows that are not `valid` are no steps.

        Returns:
            `[1 + 2 * window]` float64, still on the device: how many episodes have ended, and the returns and lengths
            of the latest of them, the latest first; of fewer, the first numbers are theirs.
        """
        num_steps, num_envs = rewards.shape
        returns = self.running_return + (rewards * valid).cumsum(0, dtype=torch.float64)
        lengths = self.running_length + valid.cumsum(0)
        rows = torch.arange(num_steps, device=rewards.device)[:, None]
        latest = torch.where(ended, rows, -1).cummax(0).values  # [T, N], the row of the last end up to here
        before = torch.cat((torch.full_like(latest[:1], -1), latest))
        # What there was at the end of the episode before, of each row and of what comes next: [T + 1, N].
        there = before >= 0
        return_before = torch.where(there, returns.gather(0, before.clamp(min=0)), 0.0)
        length_before = torch.where(there, lengths.gather(0, before.clamp(min=0)), 0)
        self.running_return = returns[-1] - return_before[-1]
        self.running_length = lengths[-1] - length_before[-1]
        number = rows * num_envs + torch.arange(num_envs, device=rewards.device)  # in the order in which they ended
        window = min(self._window, number.numel())
        places = torch.where(ended, number, -1).flatten().topk(window).values.clamp(min=0)
        told = torch.zeros(1 + 2 * self._window, dtype=torch.float64, device=rewards.device)
        told[0] = ended.sum()
        told[1 : 1 + window] = (returns - return_before[:-1]).flatten()[places]
        told[1 + self._window : 1 + self._window + window] = (lengths - length_before[:-1]).flatten()[places]
        return told
