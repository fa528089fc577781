"""A distribution of one's own for `Discrete` actions."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from hybridppo import ActionDistribution


class Choice(ActionDistribution):
    """A choice, with an action mask or without."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.output_size = self.noise_size = self.mask_size = int(space.n)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        return (outputs - (-torch.special.log_ndtr(noise)).log()).argmax(-1)

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return Categorical(logits=outputs).log_prob(actions)

    def entropy(self, outputs: Tensor) -> Tensor:
        return Categorical(logits=outputs).entropy()
