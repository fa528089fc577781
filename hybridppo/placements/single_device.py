"""The placement with sampling and learning on one device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hybridppo.interfaces import Agent, SamplingActor
from hybridppo.placements.placement import Placement, sampling_actor


class SingleDevice(Placement):
    """Samples and learns on one device with one set of parameters. On a GPU, observations are copied in every step."""

    name = "single"

    def __init__(self, device: str | torch.device = "cpu") -> None:
        super().__init__(device, device)

    @contextmanager
    def sampling(self, agent: Agent) -> Iterator[SamplingActor]:  # noqa: D102 - as in the base
        yield sampling_actor(agent.actor, self._crossing, agent.version)

    def settings(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        return {"name": self.name, "device": str(self.learning_device)}
