"""A small agent that is made by hand, to test what placements move and publish."""

import numpy as np
import torch
from torch import Tensor, nn

from hybridppo.networks.parameters import FlatAdam, FlatParameters

OBSERVATIONS = np.array([[1.0, -2.0], [0.5, 3.0]], dtype=np.float32)


class ScaledActor(nn.Module):
    """Has a buffer, like an actor that normalizes its observations."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, observations: Tensor) -> Tensor:
        return self.linear(observations) * self.scale


class HandmadeAgent:
    """Has the parts of an agent that placements see."""

    def __init__(self) -> None:
        self.actor: nn.Module = ScaledActor()
        self.critic: nn.Module = nn.Linear(2, 1)
        self.parameters = FlatParameters({"actor": self.actor, "critic": self.critic})
        self.optimizer = FlatAdam(self.parameters, {"actor": 0.1, "critic": 0.1})
        self.version = 0

    @property
    def modules(self) -> list[nn.Module]:
        return [self.actor, self.critic]

    def change(self) -> None:
        """Stand in for an update."""
        self.parameters.gradient.zero_()
        self.actor(torch.ones(1, 2, device=self.parameters.values.device)).sum().backward()
        self.optimizer.step()
        self.actor.scale += 1.0
        self.version += 1

    def tensors(self) -> list[Tensor]:
        tensors = [self.parameters.values, *self.actor.parameters(), *self.actor.buffers(), *self.critic.parameters()]
        gradients = [tensor.grad for tensor in tensors if isinstance(tensor, nn.Parameter)]
        return [*tensors, *gradients, *self.optimizer.state[self.parameters.values].values()]
