"""An actor whose exploration depends on the state: `hybridppo/spaces/state_dependent.py` says how."""

from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.networks.precision import float32_linear
from hybridppo.networks.trunks import SharedTrunk
from hybridppo.spaces.state_dependent import VARIANCE_EPSILON


class StateDependentActor(nn.Module):
    """`[..., *row] -> [..., 2 * d]`: means, and the log standard deviations of what exploration adds to them.

    Both are of the last hidden layer. No gradient reaches that through the deviations (`learn_features=False` of
    stable-baselines3, its default): features are learned for the means, and the noise follows.

    Args:
        features: all but the last layer, `[..., *row] -> [..., L]`; may be shared with the critic.
        head: the last layer, `L` to `d`.
        initial_log_std: of every entry of a matrix of noise.
    """

    def __init__(self, features: nn.Module, head: nn.Linear, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.features, self.head = features, head
        self.log_std = nn.Parameter(torch.full_like(head.weight, initial_log_std, requires_grad=True))

    @property
    def feature_layers(self) -> nn.Module:
        """What gives the features, shared or not."""
        return self.features.network if isinstance(self.features, SharedTrunk) else self.features

    def forward(self, observations: Tensor, matrices: Tensor | None = None) -> Tensor:
        """Outputs; with matrices of noise, `[..., d, L]`, also what they add to the means, `[..., 3 * d]` in all."""
        features = self.features(observations)
        fixed = features.detach().float()
        # Var(sum over l of features[l] * matrix[i, l]) = sum over l of features[l]^2 * exp(2 * log_std[i, l])
        variance = float32_linear(fixed.square(), (2.0 * self.log_std).exp())
        log_std = 0.5 * (variance + VARIANCE_EPSILON).log()
        outputs = torch.cat((self.head(features), log_std), dim=-1)
        if matrices is None:
            return outputs
        return torch.cat((outputs, (fixed.unsqueeze(-2) * matrices).sum(-1)), dim=-1)

    def scaled(self, noise: Tensor) -> Tensor:
        """Matrices `[N, d, L]` of standard normals, `[N, d * L]`."""
        return noise.view(-1, *self.log_std.shape) * self.log_std.exp()


def exploring_actor_of(network: Any) -> StateDependentActor | None:
    """The actor whose exploration depends on the state, within a network made here; None of any other."""
    inner = getattr(network, "network", network)
    return inner if isinstance(inner, StateDependentActor) else None
