"""A copy of an actor that training does not change."""

import copy

import torch
from torch import Tensor

from hybridppo.interfaces import Agent, SamplingActor, has_policies
from hybridppo.networks.of_policies import actors_of
from hybridppo.placements.acting import sampling_actor
from hybridppo.placements.crossing import Counters, Crossing
from hybridppo.system.validation import part_of


def snapshot(agent: Agent, device: torch.device, tensors: dict[str, Tensor] | None = None) -> SamplingActor:
    """A copy of the agent's actor on a device; the counters do not count it.

    The training's own replica and its publishes stay as they are, so an evaluation during training changes nothing.

    Args:
        agent: an agent that is not updating.
        device: device of the copy.
        tensors: tensors of another time, with the names of `Agent.state`; None for the present ones.
    """
    network = copy.deepcopy(agent.actor).to(device)
    if tensors is not None:
        parts = [f"policies.{name}.actor." for name in agent.agents] if has_policies(agent) else ["actor."]
        for actor, part in zip(actors_of(network), parts, strict=True):
            actor.load_state_dict(part_of(tensors, part))
    return sampling_actor(network, Crossing(device, Counters()), agent.version)
