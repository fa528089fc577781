"""A distribution of one's own needs four methods; the base class has the others."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical


class Tilted(Distribution):
    """A normal distribution with a fixed deviation of 0.5, whose mean is the output."""

    def __init__(self, size: int) -> None:
        self.output_size = self.noise_size = size
        self.action_shape = (size,)

    def sample(self, outputs: Any, noise: Any) -> Any:
        return outputs + 0.5 * noise

    def mode(self, outputs: Any) -> Any:
        return outputs

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return (-2.0 * (actions - outputs).square() - math.log(0.5 * math.sqrt(2.0 * math.pi))).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        return torch.full(outputs.shape[:-1], self.output_size * (0.5 + math.log(0.5 * math.sqrt(2.0 * math.pi))))


def test_four_methods_are_enough() -> None:
    distribution, generator = Tilted(2), np.random.default_rng(0)
    outputs = np.zeros((20_000, 2), np.float32)
    actions = distribution.sample(outputs, distribution.draw_noise(generator, (20_000,)))
    assert abs(actions.std() - 0.5) < 0.01
    tensors = torch.from_numpy(outputs), torch.from_numpy(actions)
    log_probs, entropies = distribution.log_prob_and_entropy(*tensors)
    torch.testing.assert_close(-log_probs.mean(), entropies[0], rtol=0.0, atol=0.02)
    assert type(distribution).gradient is Distribution.gradient
    assert distribution.to_env(actions) is actions
    assert [distribution.noise_row(step) for step in range(3)] == [0, 1, 2]
    on_device = distribution.on("cpu")
    words = torch.randint(2**32, (20_000, on_device.num_words))
    assert abs(on_device.sample(tensors[0], on_device.noise_from(words)).std() - 0.5) < 0.01


def test_other_probabilities_have_no_gradient_by_hand() -> None:
    class Cold(Categorical):
        def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            return super().log_prob_and_entropy(2.0 * outputs, actions)

    class Named(Categorical):
        pass

    assert Cold.gradient is Distribution.gradient
    assert Named.gradient is Categorical.gradient
