"""What an actor is beyond its network: standard deviations, masks."""

import torch
from torch import Tensor, nn

from hybridppo.networks.numpy_forms.actor import FORBIDDEN
from hybridppo.networks.rows import numbers_of
from hybridppo.spaces.rows import RowLayout


class GaussianActor(nn.Module):
    """`[..., inputs] -> [..., n + d]`: what a network gives, means among it, then `d` log standard deviations.

    These depend on no state.
    """

    def __init__(self, mean: nn.Module, size: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((size,), initial_log_std))

    def forward(self, observations: Tensor) -> Tensor:
        """What the network gives, then log standard deviations, along the last dimension."""
        mean: Tensor = self.mean(observations)
        return torch.cat((mean, self.log_std.expand(*mean.shape[:-1], -1)), dim=-1)


class MaskedActor(nn.Module):
    """A network whose first `n` outputs are logits, where the last `n` numbers of a row say which are allowed.

    The logits of the others are replaced by one so low that their probability is 0, and with it every gradient (Huang
    and Ontanon, "A closer look at invalid action masking in policy gradient algorithms", section 3).
    """

    def __init__(self, logits: nn.Module, num_actions: int, layout: RowLayout | None = None) -> None:
        super().__init__()
        self.logits, self.num_actions = logits, num_actions
        self._layout = layout if layout is not None else RowLayout(0)

    def forward(self, observations: Tensor) -> Tensor:
        """What the network gives, but for what is not allowed."""
        outputs: Tensor = self.logits(observations)
        forbidden = numbers_of(observations, self._layout)[..., -self.num_actions :] == 0.0
        if outputs.shape[-1] == self.num_actions:
            return outputs.masked_fill(forbidden, FORBIDDEN)
        logits, others = outputs.tensor_split([self.num_actions], dim=-1)
        return torch.cat((logits.masked_fill(forbidden, FORBIDDEN), others), dim=-1)
