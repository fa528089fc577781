"""What an actor is beyond its network: standard deviations, masks."""

import torch
from torch import Tensor, nn

from hybridppo.networks.numpy_forms.actor import FORBIDDEN


class GaussianActor(nn.Module):
    """`[..., inputs] -> [..., 2 * d]`: means from a network, log standard deviations that depend on no state."""

    def __init__(self, mean: nn.Module, size: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((size,), initial_log_std))

    def forward(self, observations: Tensor) -> Tensor:
        """Means, then log standard deviations, along the last dimension."""
        mean: Tensor = self.mean(observations)
        return torch.cat((mean, self.log_std.expand_as(mean)), dim=-1)


class MaskedActor(nn.Module):
    """`[..., inputs] -> [..., n]`: logits from an MLP, where the last `n` inputs say which actions are allowed.

    The logits of the others are replaced by one so low that their probability is 0, and with it every gradient (Huang
    and Ontanon, "A closer look at invalid action masking in policy gradient algorithms", section 3).
    """

    def __init__(self, logits: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.logits, self._num_actions = logits, num_actions

    def forward(self, observations: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.logits(observations)
        return logits.masked_fill(observations[..., -self._num_actions :] == 0.0, FORBIDDEN)
