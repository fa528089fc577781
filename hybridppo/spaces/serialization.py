"""Spaces as JSON."""

from typing import Any

import gymnasium as gym

from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.kinds import kind_of, kind_to_json, space_of_kind
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.of_agents import SpacesOfAgents


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """A supported space, or a `MaskedObservation`, as a JSON object."""
    if isinstance(space, MaskedObservation):
        observation = space_to_json(space.observation)
        if isinstance(space.action, gym.spaces.Discrete):  # only its number of actions matters
            return {"type": "MaskedObservation", "observation": observation, "num_actions": space.num_actions}
        return {"type": "MaskedObservation", "observation": observation, "action": space_to_json(space.action)}
    if isinstance(space, SpacesOfAgents):
        each = [[name, space_to_json(own)] for name, own in space.spaces.items()]
        return {"type": "SpacesOfAgents", "spaces": each}
    return kind_to_json(kind_of(space))  # other spaces were refused when the agent was made


def are_same(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Whether two spaces have the same members, even if they are not equal: `MultiBinary(3)` and `MultiBinary([3])`."""
    try:
        return one == other or space_to_json(one) == space_to_json(other)
    except UnsupportedSpaceError:
        return False


def space_from_json(space: dict[str, Any]) -> gym.Space[Any]:
    """The space from the result of `space_to_json`.

    Raises:
        ConfigurationError: if the type is unknown, or the space is implausibly large.
    """
    if space["type"] == "MaskedObservation":
        action = space_from_json(space["action"]) if "action" in space else space["num_actions"]
        return MaskedObservation(space_from_json(space["observation"]), action)
    if space["type"] == "SpacesOfAgents":
        return SpacesOfAgents({name: space_from_json(own) for name, own in space["spaces"]})
    return space_of_kind(space)
