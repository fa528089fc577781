"""The additions of an actor to its network: standard deviations, masks, state-dependent exploration."""

from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.distributions.state_dependent import VARIANCE_EPSILON
from hybridppo.networks.numpy_forms.actor import FORBIDDEN
from hybridppo.networks.precision import float32_linear
from hybridppo.networks.rows import numbers_of
from hybridppo.networks.trunks import SharedTrunk
from hybridppo.spaces.rows import RowLayout


class GaussianActor(nn.Module):
    """`[..., inputs] -> [..., n + d]`: a network's outputs, followed by `d` log standard deviations.

    The log standard deviations are parameters that depend on no observation.
    """

    def __init__(self, mean: nn.Module, size: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((size,), initial_log_std))

    def forward(self, observations: Tensor) -> Tensor:
        """The network's outputs, then the log standard deviations, along the last dimension."""
        mean: Tensor = self.mean(observations)
        return torch.cat((mean, self.log_std.expand(*mean.shape[:-1], -1)), dim=-1)


class MaskedActor(nn.Module):
    """Applies a mask, the last `n` numbers of a row, to a network's first `n` outputs, which are logits.

    A forbidden logit is replaced by one so low that its probability and its gradient are 0 (Huang and Ontanon, "A
    closer look at invalid action masking in policy gradient algorithms", section 3).
    """

    def __init__(self, logits: nn.Module, num_actions: int, layout: RowLayout | None = None) -> None:
        super().__init__()
        self.logits, self.num_actions = logits, num_actions
        self._layout = layout if layout is not None else RowLayout(0)

    def forward(self, observations: Tensor) -> Tensor:
        """The network's outputs with forbidden logits replaced."""
        outputs: Tensor = self.logits(observations)
        forbidden = numbers_of(observations, self._layout)[..., -self.num_actions :] == 0.0
        if outputs.shape[-1] == self.num_actions:
            return outputs.masked_fill(forbidden, FORBIDDEN)
        logits, others = outputs.tensor_split([self.num_actions], dim=-1)
        return torch.cat((logits.masked_fill(forbidden, FORBIDDEN), others), dim=-1)


class StateDependentActor(nn.Module):
    """`[..., *row] -> [..., 2 * d]`: means, and the log standard deviations of the exploration noise.

    Both follow from the last hidden layer. The deviations pass no gradient to that layer (as with
    `learn_features=False`, the default of stable-baselines3): the features are learned for the means alone.

    Args:
        features: all layers but the last, `[..., *row] -> [..., L]`; may be shared with the critic.
        head: the last layer, `L` to `d`.
        initial_log_std: initial value for every entry of a noise matrix.
    """

    def __init__(self, features: nn.Module, head: nn.Linear, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.features, self.head = features, head
        self.log_std = nn.Parameter(torch.full_like(head.weight, initial_log_std, requires_grad=True))

    @property
    def feature_layers(self) -> nn.Module:
        """The layers that give the features, shared or not."""
        return self.features.network if isinstance(self.features, SharedTrunk) else self.features

    def forward(self, observations: Tensor, matrices: Tensor | None = None) -> Tensor:
        """Outputs `[..., 2 * d]`; with noise matrices `[..., d, L]` also the perturbations, `[..., 3 * d]` in all."""
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
        """Noise matrices `[N, d, L]` from standard normal noise `[N, d * L]`."""
        return noise.view(-1, *self.log_std.shape) * self.log_std.exp()


def exploring_actor_of(network: Any) -> StateDependentActor | None:
    """The `StateDependentActor` within a network of this library; None if there is none."""
    inner = getattr(network, "network", network)
    return inner if isinstance(inner, StateDependentActor) else None
