"""The placement that moves the actor between two devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hybridppo.interfaces import Agent, SamplingActor
from hybridppo.networks.parameters import bind
from hybridppo.placements.placement import CopyTimer, Placement, sampling_actor
from hybridppo.system.validation import require_bools


class Migrating(Placement):
    """Moves the actor to the sampling device for a rollout, and back to learn.

    This is the textbook form, tensor by tensor as in `module.to`, and the reference that mirrors are measured against.
    `force_copy=True` also moves between equal devices, which tests the move without a GPU.
    """

    name = "migrate"

    def __init__(
        self, sampling: str | torch.device = "cpu", learning: str | torch.device = "cuda", *, force_copy: bool = False
    ) -> None:
        super().__init__(sampling, learning)
        require_bools(force_copy=force_copy)
        self.force_copy = force_copy
        self._moves = force_copy or self.sampling_device != self.learning_device

    @contextmanager
    def sampling(self, agent: Agent) -> Iterator[SamplingActor]:  # noqa: D102 - as in the base
        if not self._moves:
            yield sampling_actor(agent.actor, self._crossing, agent.version)
            return
        tensors = [*agent.actor.parameters(), *agent.actor.buffers()]
        homes, gradients = [tensor.data for tensor in tensors], [tensor.grad for tensor in tensors]
        with CopyTimer(self.sampling_device, self.learning_device) as timer:
            for tensor in tensors:
                bind(tensor, tensor.data.to(self.sampling_device, copy=True))
        self._count(homes, timer, publishes=1)
        try:
            yield sampling_actor(agent.actor, self._crossing, agent.version)
        finally:  # also if sampling failed: actor and critic must be on one device again
            with CopyTimer(self.sampling_device, self.learning_device) as timer:
                for tensor, home, gradient in zip(tensors, homes, gradients, strict=True):
                    home.copy_(tensor.data)
                    bind(tensor, home)
                    tensor.grad = gradient
            self._count(homes, timer)

    def _count(self, tensors: list[Tensor], timer: CopyTimer, publishes: int = 0) -> None:
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        self.counters.add(num_bytes=num_bytes, seconds=timer.seconds, publishes=publishes)

    def settings(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        return {**super().settings(), "force_copy": self.force_copy}
