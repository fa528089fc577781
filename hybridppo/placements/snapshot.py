"""A copy of an actor that no training changes any more."""

import copy

import torch
from torch import Tensor

from hybridppo.interfaces import Agent, SamplingActor
from hybridppo.placements.acting import sampling_actor
from hybridppo.placements.crossing import Counters, Crossing


def snapshot(agent: Agent, device: torch.device, tensors: dict[str, Tensor] | None = None) -> SamplingActor:
    """The agent's actor as it is now, on a device, counted nowhere.

    What samples for the training, and what was published to it and when, stay as they are: an evaluation in the midst
    of a training changes nothing of it.

    Args:
        agent: at rest.
        device: where the copy is to act.
        tensors: of another moment, as `Agent.state` names them; None for those of now.
    """
    network = copy.deepcopy(agent.actor).to(device)
    if tensors is not None:
        network.load_state_dict({n.removeprefix("actor."): t for n, t in tensors.items() if n.startswith("actor.")})
    return sampling_actor(network, Crossing(device, Counters()), agent.version)
