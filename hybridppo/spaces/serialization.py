"""Spaces as JSON can hold them."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import ConfigurationError
from hybridppo.spaces.images import ImageLayout
from hybridppo.spaces.masks import MaskedObservation

MOST_NUMBERS = 2**26
"""In an observation or action whose space is read from a file: more is damage, and would only fill the memory."""


def space_to_json(space: gym.Space[Any]) -> dict[str, Any]:
    """A `Box`, `Discrete` or `MaskedObservation` space as JSON can hold it."""
    if isinstance(space, MaskedObservation):
        observation = space_to_json(space.observation)
        return {"type": "MaskedObservation", "observation": observation, "num_actions": space.num_actions}
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    assert isinstance(space, gym.spaces.Box)  # others were refused when the agent was made
    # As text: JSON has no infinity, and not every reader of it keeps 64 bits.
    bounds = {name: [str(x) for x in _bound(space, name)] for name in ("low", "high")}
    return {"type": "Box", "shape": list(space.shape), "dtype": str(np.dtype(space.dtype)), **bounds}


def _bound(space: gym.spaces.Box, name: str) -> list[Any]:
    """A bound of every number; of an image, whose are the same, one."""
    bound: NDArray[Any] = getattr(space, name).ravel()
    is_same = ImageLayout.of(space) is not None and bool((bound == bound[0]).all())
    return list(bound[:1].tolist() if is_same else bound.tolist())


def space_from_json(space: dict[str, Any]) -> gym.Space[Any]:
    """The space that `space_to_json` described."""
    if space["type"] == "MaskedObservation":
        return MaskedObservation(space_from_json(space["observation"]), space["num_actions"])
    if space["type"] == "Discrete":
        return gym.spaces.Discrete(space["n"], start=space["start"])
    dtype = np.dtype(space["dtype"])
    number = int if np.issubdtype(dtype, np.integer) else float
    shape = tuple(space["shape"])
    if math.prod(shape) > MOST_NUMBERS:
        raise ConfigurationError(f"a space may have {MOST_NUMBERS} numbers, and one of shape {shape} has more")

    def bound(values: list[str]) -> NDArray[Any]:
        array = np.array([number(x) for x in values], dtype=dtype)
        return np.full(shape, array[0]) if len(array) == 1 else array.reshape(shape)

    return gym.spaces.Box(bound(space["low"]), bound(space["high"]), dtype=dtype.type)
