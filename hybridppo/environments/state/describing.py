"""What an environment is in the middle of, as plain data: taken from its attributes, and put back into a fresh one.

    began = digests(environment)                # made and reset
    described = describe(environment, began)    # some steps later: what JSON can hold
    restore(another_environment, described)     # made and reset in the same way

`describe` walks an environment, its wrappers, its copies where it is a vector, and whatever objects of Python classes
they hold. Numbers, text, containers, NumPy arrays and random generators are written down; what cannot change while
an environment runs (spaces, functions, types, modules) is only noted. Of what has not changed since it began there is
only a digest: it must be the same in the fresh environment, for else that is another one. Objects of any other kind,
such as the world of a physics engine, cannot be saved, and neither can the environment.

Nothing is ever made from what a description names: `restore` sets plain data in objects that are there already. It
does not see what an environment keeps elsewhere than in attributes, as in globals, closures or other processes.

An object can speak for itself with two methods: `state_dict()` returns plain data (as above), and
`load_state_dict(state)` takes it back. This file does not import torch, so that worker processes need not.
"""

import functools
import hashlib
import json
import logging
import math
import random
import re
import types
from collections import deque
from enum import Enum
from pathlib import PurePath
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from hybridppo.environments.state.nodes import (
    BIT_GENERATORS,
    PLAIN_DTYPES,
    Node,
    attribute_path,
    class_name,
    full_class_name,
    is_python_object,
    to_text,
)
from hybridppo.errors import EnvStateError

MAX_BYTES = 2**26
"""The most that the description of one environment may take: an environment that keeps its whole past is refused."""
CONSTANTS = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial,
    np.dtype, np.ufunc, type(np.ravel), gym.Space, EnvSpec, logging.Logger, re.Pattern, PurePath,
)  # fmt: skip


Digests = dict[str, str]
"""Of attributes, by where they are."""


def digests(environment: object) -> Digests:
    """What `describe` compares with, to be taken when the environment has been reset for the first time.

    Raises:
        EnvStateError: where it cannot be saved.
    """
    return Walk(environment).digests


def describe(environment: object, began: Digests | None = None) -> dict[str, Any]:
    """The state of an environment (or vector of environments), as JSON can hold it.

    Args:
        environment: what to save.
        began: its digests from when it began; without them, all of it is written down.

    Raises:
        EnvStateError: where it cannot be saved, naming the attribute and its type.
    """
    walk = Walk(environment)
    described: dict[str, Any] = walk.since(began if began is not None else {})
    return described


class Walk:
    """An environment's nodes, with the digests of its attributes.

    A place is a unique name for where something is (`.env.state`, `.envs[1].items{0}`); a path is what people read.
    """

    def __init__(self, environment: object) -> None:
        # What may be met again, by identity, with its place; kept here so that no identity is given twice.
        self._met: dict[int, tuple[str, object]] = {}
        self._arrays: list[tuple[NDArray[Any], str, Node]] = []
        self._kept_always: set[int] = set()
        self.digests: Digests = {}
        try:
            self._root = self._node(environment, "", type(environment).__name__)
            self._write_arrays()
            self._digest(self._root, "")
        except RecursionError as error:
            raise EnvStateError(f"{type(environment).__name__} holds data nested too deeply to be saved") from error

    @property
    def objects(self) -> dict[str, object]:
        """What may be met again, by its place."""
        return dict(self._met.values())

    def since(self, began: Digests) -> Node:
        """The environment's node, with digests in place of what has not changed since."""
        self._gone = began.keys() - self.digests.keys()
        root = self._without_the_same(self._root, "", began)
        if len(json.dumps(root)) > MAX_BYTES:
            raise EnvStateError(f"its state takes more than {MAX_BYTES >> 20} MiB")
        return root

    def _node(self, value: object, place: str, path: str) -> Node:
        if isinstance(value, Enum):
            return {"enum": class_name(value), "name": value.name}
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) is bytes:
            return {"bytes": to_text(value)}
        if isinstance(value, np.generic) and value.dtype.kind in PLAIN_DTYPES:
            return {"scalar": to_text(value.tobytes()), "dtype": value.dtype.str}
        if id(value) in self._met:
            return {"again": self._met[id(value)][0]}
        self._met[id(value)] = place, value
        return self._new_node(value, place, path)

    def _new_node(self, value: object, place: str, path: str) -> Node:
        if type(value) in (tuple, list, deque):
            assert isinstance(value, (tuple, list, deque))
            items = [self._node(item, f"{place}[{i}]", f"{path}[{i}]") for i, item in enumerate(value)]
            node: Node = {type(value).__name__: items}
            return {**node, "maxlen": value.maxlen} if isinstance(value, deque) else node
        if type(value) is dict:
            return {"dict": [self._pair(i, *item, place, path) for i, item in enumerate(value.items())]}
        if type(value) is np.ndarray and value.dtype.kind in PLAIN_DTYPES:
            node = {"array": None, "dtype": value.dtype.str, "shape": list(value.shape)}
            self._arrays.append((value, place, node))  # what is written is known once all arrays are
            return node
        if type(value) is np.random.Generator:
            return self._generator(value, place, path)
        if type(value) is np.random.RandomState:
            return {"random_state": self._node(value.get_state(legacy=False), f"{place}.state", path)}
        if type(value) is random.Random:
            return {"random": self._node(value.getstate(), f"{place}.state", path)}
        if isinstance(value, CONSTANTS) and not _is_seeded_space(value):
            return {"constant": class_name(value)}
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            state = value.state_dict()  # type: ignore[attr-defined]
            return {
                "object": class_name(value),
                "state": self._node(state, f"{place}.state_dict()", f"{path}.state_dict()"),
            }
        if is_python_object(value):
            attributes = [
                [name, self._node(of, f"{place}.{name}", attribute_path(value, name))]
                for name, of in vars(value).items()
            ]
            return {"object": class_name(value), "attributes": attributes}
        raise EnvStateError(f"{path} is of type {full_class_name(value)}, which cannot be saved")

    def _pair(self, i: int, key: object, value: object, place: str, path: str) -> list[Node]:
        of_key = self._node(key, f"{place}{{{i}}}.key", f"a key of {path}")
        return [of_key, self._node(value, f"{place}{{{i}}}", f"{path}[{key!r}]")]

    def _generator(self, generator: np.random.Generator, place: str, path: str) -> Node:
        name = type(generator.bit_generator).__name__
        if name not in BIT_GENERATORS:
            raise EnvStateError(f"{path} draws from a {name}, which cannot be saved")
        seed = getattr(generator.bit_generator, "seed_seq", None)
        seeds = ("entropy", "spawn_key", "pool_size", "n_children_spawned")
        kept = {key: getattr(seed, key) for key in seeds} if type(seed) is np.random.SeedSequence else None
        state = self._node(generator.bit_generator.state, f"{place}.state", path)
        return {"generator": name, "state": state, "seed": self._node(kept, f"{place}.seed", path)}

    def _write_arrays(self) -> None:
        """Write the memory of all arrays into their nodes, each memory once."""
        groups: dict[int, list[tuple[NDArray[Any], str, Node]]] = {}
        for array, place, node in self._arrays:
            groups.setdefault(id(_owner(array)), []).append((array, place, node))
        for group in groups.values():
            (first, at, node), others = group[0], group[1:]
            # Views of one array stay views of one array; a view alone need not keep what it was cut from.
            memory = _owner(first) if others else first.copy(order="K")
            if not isinstance(memory, np.ndarray):
                raise EnvStateError(f"arrays that share the memory of a {full_class_name(memory)} cannot be saved")
            # As it lies in memory: an array that owns its memory fills it, whatever the order of its axes.
            axes = sorted(range(memory.ndim), key=lambda axis: -memory.strides[axis])
            shown = first if others else memory
            node |= {"array": to_text(memory.transpose(axes).tobytes()), **_layout(shown, memory)}
            for array, _, other in others:
                other |= {"array": None, "memory_of": at, **_layout(array, memory)}
            if others:
                self._kept_always.update(id(other) for _, _, other in group)

    def _digest(self, node: Node, place: str) -> bool:
        """Note the digests of all attributes within; whether the node must be kept even where it is the same."""
        if isinstance(node, list):
            kept = [self._digest(item, f"{place}[{i}]") for i, item in enumerate(node)]  # all of them, whatever it says
            return any(kept)
        if not isinstance(node, dict):
            return False
        if "attributes" in node:
            for name, of in node["attributes"]:
                if not self._digest(of, f"{place}.{name}") and not _is_object(of):
                    self.digests[f"{place}.{name}"] = _digest_of(of)
            return False
        kind = next(iter(node), "")
        keep = kind in ("again", "generator", "random_state", "random", "object") or id(node) in self._kept_always
        if kind in ("tuple", "list", "deque"):
            return self._digest(node[kind], place) or keep
        if kind == "dict":
            kept = [self._digest(value, f"{place}{{{i}}}") for i, (_, value) in enumerate(node["dict"])]
            return any(kept) or keep
        return keep

    def _without_the_same(self, node: Node, place: str, began: Digests) -> Node:
        if isinstance(node, list):
            return [self._without_the_same(item, f"{place}[{i}]", began) for i, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if "attributes" in node:
            names = {name for name, _ in node["attributes"]}
            changed = [self._changed(name, of, f"{place}.{name}", began) for name, of in node["attributes"]]
            gone = [at.removeprefix(f"{place}.") for at in self._gone if at.startswith(f"{place}.")]
            gone = [name for name in gone if name.isidentifier() and name not in names]
            return {**node, "attributes": changed + [[name, {"gone": True}] for name in gone]}
        kind = next(iter(node), "")
        if kind in ("tuple", "list", "deque"):
            return {**node, kind: self._without_the_same(node[kind], place, began)}
        if kind == "dict":
            pairs = enumerate(node["dict"])
            return {"dict": [[k, self._without_the_same(v, f"{place}{{{i}}}", began)] for i, (k, v) in pairs]}
        return node

    def _changed(self, name: str, node: Node, place: str, began: Digests) -> list[Node]:
        digest = self.digests.get(place)
        if digest is not None and began.get(place) == digest:
            return [name, {"same": digest}]
        return [name, self._without_the_same(node, place, began)]


def _is_seeded_space(value: object) -> bool:
    return isinstance(value, gym.Space) and value._np_random is not None


def _is_object(node: Node) -> bool:
    return isinstance(node, dict) and "object" in node


def _digest_of(node: Node) -> str:
    return hashlib.blake2b(json.dumps(node).encode(), digest_size=12).hexdigest()


def _layout(array: NDArray[Any], memory: NDArray[Any]) -> Node:
    offset = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return {"strides": list(array.strides), "offset": offset}


def _owner(array: NDArray[Any]) -> object:
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base
