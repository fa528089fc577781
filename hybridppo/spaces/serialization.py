"""Spaces as JSON: each class of spaces has a line in `FORMATS`."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import ConfigurationError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.frames import StackedFrames
from hybridppo.spaces.items import LimitedGraph, LimitedSequence
from hybridppo.spaces.kinds import parts_of
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import MOST_NUMBERS
from hybridppo.spaces.of_agents import SpacesOfAgents

Json = dict[str, Any]


def space_to_json(space: gym.Space[Any]) -> Json:
    """A supported space as a JSON object.

    Raises:
        UnsupportedSpaceError: for another space.
    """
    for name, (of, fields, _) in FORMATS.items():
        if isinstance(space, of):
            return {"type": name, **fields(space)}
    raise UnsupportedSpaceError(space)


def space_from_json(json: Json) -> gym.Space[Any]:
    """The space from the result of `space_to_json`.

    Raises:
        ConfigurationError: if the type is unknown, or the space is implausibly large.
    """
    if json["type"] not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigurationError(f"there is no space of type {shown(json['type'])}: the types are {known}")
    return FORMATS[json["type"]][2](json)


def are_same(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Whether two spaces have the same members, even if they are not equal: `MultiBinary(3)` and `MultiBinary([3])`."""
    try:
        return one == other or space_to_json(one) == space_to_json(other)
    except UnsupportedSpaceError:
        return False


def _of_box(space: gym.spaces.Box) -> Json:
    # As text: JSON has no infinity, and not every reader of it keeps 64 bits.
    bounds = {name: [str(x) for x in _bound(getattr(space, name))] for name in ("low", "high")}
    return {"shape": list(space.shape), "dtype": str(np.dtype(space.dtype)), **bounds}


def _bound(bound: Array) -> list[Any]:
    """The bound of each number; only one number if all are equal."""
    flat: list[Any] = bound.ravel().tolist()
    return flat[:1] if bound.size and (bound == bound.flat[0]).all() else flat


def _box(json: Json) -> gym.spaces.Box:
    dtype, shape = np.dtype(json["dtype"]), _shape(json)
    number: Any = {"f": dtype.type, "b": "True".__eq__}.get(dtype.kind, int)

    def bound(values: list[str]) -> Array:
        array = np.array([number(x) for x in values], dtype=dtype)
        return np.full(shape, array[0]) if len(array) == 1 else array.reshape(shape)

    return gym.spaces.Box(bound(json["low"]), bound(json["high"]), dtype=dtype.type)


def _shape(json: Json) -> tuple[int, ...]:
    shape = tuple(json["shape"])
    if math.prod(shape) > MOST_NUMBERS:
        raise ConfigurationError(f"a space may have {MOST_NUMBERS} numbers, and one of shape {shape} has more")
    return shape


def _of_discrete(space: Any) -> Json:
    dtype = np.dtype(space.dtype)  # older releases of gymnasium have no argument for it
    return {"n": int(space.n), "start": int(space.start), **({} if dtype == np.int64 else {"dtype": str(dtype)})}


def _discrete(json: Json) -> gym.Space[Any]:
    own: dict[str, Any] = {"dtype": np.dtype(json["dtype"])} if "dtype" in json else {}
    return gym.spaces.Discrete(json["n"], start=json["start"], **own)


def _parts(items: Iterable[tuple[Any, gym.Space[Any]]]) -> Json:
    return {"spaces": [[key_to_json(key), space_to_json(part)] for key, part in items]}


def key_to_json(key: Any) -> Any:
    """A key as JSON: a tuple becomes a list."""
    key = key.item() if isinstance(key, np.generic) else key
    if isinstance(key, tuple):
        return [key_to_json(part) for part in key]
    if not isinstance(key, (str, int)) and not (isinstance(key, float) and math.isfinite(key)):
        raise ConfigurationError(
            f"the key {shown(key)} of a Dict space cannot be saved: use text, numbers, or tuples of those"
        )
    return key


def _key(json: Any) -> Any:
    return tuple(map(_key, json)) if isinstance(json, list) else json


def _node_and_edge(parts: list[Json]) -> tuple[Any, Any]:
    node, *edge = map(space_from_json, parts)
    return node, edge[0] if edge else None


FORMATS: dict[str, tuple[type, Callable[[Any], Json], Callable[[Json], gym.Space[Any]]]] = {
    "MaskedObservation": (
        MaskedObservation,
        lambda space: {"observation": space_to_json(space.observation), "action": space_to_json(space.action)},
        lambda json: MaskedObservation(space_from_json(json["observation"]), space_from_json(json["action"])),
    ),
    "SpacesOfAgents": (
        SpacesOfAgents,
        lambda space: _parts(space.spaces.items()),
        lambda json: SpacesOfAgents({name: space_from_json(own) for name, own in json["spaces"]}),
    ),
    "StackedFrames": (
        StackedFrames,
        lambda space: {"frame": space_to_json(space.frame), "num_frames": space.num_frames},
        lambda json: StackedFrames(space_from_json(json["frame"]), int(json["num_frames"])),
    ),
    "Box": (gym.spaces.Box, _of_box, _box),
    "Discrete": (gym.spaces.Discrete, _of_discrete, _discrete),
    "MultiDiscrete": (
        gym.spaces.MultiDiscrete,
        lambda space: {
            "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(np.dtype(space.dtype))
        },
        lambda json: gym.spaces.MultiDiscrete(
            json["nvec"], dtype=np.dtype(json["dtype"]).type, start=json["start"]
        ),
    ),
    "MultiBinary": (
        gym.spaces.MultiBinary,
        lambda space: {"shape": list(space.shape)},
        lambda json: gym.spaces.MultiBinary(_shape(json) if len(json["shape"]) > 1 else _shape(json)[0]),
    ),
    "Dict": (
        gym.spaces.Dict,
        lambda space: _parts(parts_of(space)),
        lambda json: gym.spaces.Dict([(_key(key), space_from_json(part)) for key, part in json["spaces"]]),
    ),
    "OneOf": (
        gym.spaces.OneOf,
        lambda space: {"spaces": [space_to_json(part) for part in space.spaces]},
        lambda json: gym.spaces.OneOf([space_from_json(part) for part in json["spaces"]]),
    ),
    "Text": (
        gym.spaces.Text,
        lambda space: {"lengths": [space.min_length, space.max_length], "charset": "".join(sorted(space.characters))},
        lambda json: gym.spaces.Text(json["lengths"][1], min_length=json["lengths"][0], charset=json["charset"]),
    ),
    "Sequence": (
        LimitedSequence,
        lambda space: {"item": space_to_json(space.feature_space), "stack": space.stack, "max_items": space.max_items},
        lambda json: LimitedSequence(
            gym.spaces.Sequence(space_from_json(json["item"]), stack=json["stack"]), json["max_items"]
        ),
    ),
    "Graph": (
        LimitedGraph,
        lambda space: {
            "parts": [space_to_json(part) for part in (space.node_space, space.edge_space) if part is not None],
            "max_items": space.max_items,
        },
        lambda json: LimitedGraph(
            gym.spaces.Graph(*_node_and_edge(json["parts"])), json["max_items"]
        ),
    ),
    "Tuple": (
        gym.spaces.Tuple,
        lambda space: {"spaces": [space_to_json(part) for part in space.spaces]},
        lambda json: gym.spaces.Tuple([space_from_json(part) for part in json["spaces"]]),
    ),
}  # fmt: skip
"""For each type: its class, its fields as JSON, and the space made from them; a subclass comes before its base."""
