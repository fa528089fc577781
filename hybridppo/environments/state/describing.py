"""The state of an environment as plain data, read from its attributes.

    began = digests(environment)                # made and reset
    described = describe(environment, began)    # some steps later: what JSON can hold
    restore(another_environment, described)     # made and reset in the same way

`describe` describes the attributes of an environment, of its wrappers, and of its copies if it is a vector: numbers,
text, containers, NumPy arrays, random generators and dataclasses. Objects that cannot change (spaces, functions, types,
modules) are only noted, and those of `NAMED` by their names, because another may take their place. A value that has not
changed since the first reset is stored as a digest; the fresh environment must have the same value, or it is another
environment.

Objects of other classes are never inspected, and none of their methods is called. Such an environment cannot be saved,
unless the class belongs to a package in `KNOWN_PACKAGES`, or has the methods `get_state()`, which returns plain data,
and `set_state(state)`. An environment may have these methods, too; then nothing else of it is saved.

Nothing is ever made from names in a description: `restore` sets plain data in existing objects, and in new ones of
their classes. State outside of attributes (globals, closures, other processes) is not saved. Workers use this file
without torch.
"""

import dataclasses
import functools
import inspect
import json
import logging
import math
import random
import re
import types
from collections import deque
from collections.abc import Callable
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
    array_bytes,
    attribute_path,
    class_name,
    full_class_name,
    is_python_object,
    to_text,
)
from hybridppo.environments.state.sharing import Shared
from hybridppo.errors import EnvStateError

FORMAT = 3
"""Format of a description. Format 1, which has no number, inspected objects of any class written in Python. Formats 1
and 2 did not have the names of functions and classes."""
MAX_BYTES = 2**26
"""The largest description of one environment in bytes: an environment that stores its whole past is refused."""
KNOWN_PACKAGES = ("gymnasium", "hybridppo", "minigrid", "minatar", "pettingzoo", "mpe2")
"""Packages whose objects are described like environments."""
DRAWING = ("Surface", "Font", "Clock")
"""Classes of pygame that objects of these packages only draw with: they have nothing of the state."""
OF_FORMAT_1 = ("state_dict", "load_state_dict")
"""The former names of `get_state` and `set_state`."""
REMEDY = "give {owner} get_state() and set_state(state) (docs/environments.md, Resumed exactly)"
CONSTANTS = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial,
    np.dtype, np.ufunc, type(np.ravel), gym.Space, EnvSpec, logging.Logger, re.Pattern, PurePath,
)  # fmt: skip
NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
"""Constants with names, because an attribute may have one after the other. `owner_of` them is described, too."""


PLAIN_TYPES = {bool, int, str, type(None)}
"""Types of values that are stored unchanged."""

Digests = dict[str, str]
"""Digests of attributes, by place."""


def digests(environment: object, shared: Shared | None = None) -> Digests:
    """The digests that `describe` compares with; call it after the first reset.

    Raises:
        EnvStateError: if the environment cannot be saved.
    """
    return Walk(environment, shared).digests()


def describe(environment: object, began: Digests | None = None, shared: Shared | None = None) -> dict[str, Any]:
    """The state of an environment (or of a vector of environments), as JSON.

    Args:
        environment: the environment.
        began: its digests after the first reset; without them, everything is described.
        shared: the common part of environments that are described together; None for a single one.

    Raises:
        EnvStateError: naming the attribute that cannot be saved, and its type.
    """
    walk = Walk(environment, shared)
    described: dict[str, Any] = walk.since(began if began is not None else {})
    return described


class Walk:
    """An environment's nodes, with the digests of its attributes.

    A place is a unique name of a location (`.env.state`, `.envs[1].items{0}`); a path is its name for people.

    Args:
        environment: the environment.
        shared: the common part of environments that are walked together.
        restored: format of a description to restore in this environment; None to describe it.
    """

    def __init__(self, environment: object, shared: Shared | None = None, restored: int | None = None) -> None:
        self._shared = shared if shared is not None else Shared()
        self._restored = restored
        self._num_nodes = 0
        # Objects that may occur again, by identity, with their place; kept alive, so that no identity is reused.
        self._met: dict[int, tuple[str, object]] = {}
        self._arrays: list[tuple[NDArray[Any], str, Node]] = []
        self._kept_always: set[int] = set()
        self.nodes: dict[str, Node] = {}
        """Nodes of attributes that may be left out if they have not changed, by place."""
        self._paths: dict[str, str] = {}
        try:
            self._root = self._node(environment, "", type(environment).__name__)
            self._write_arrays()
            self._note_attributes(self._root, "")
        except RecursionError as error:
            raise EnvStateError(f"{type(environment).__name__} holds data nested too deeply to be saved") from error

    @property
    def objects(self) -> dict[str, object]:
        """Objects that may occur again, by place."""
        return dict(self._met.values())

    def digests(self) -> Digests:
        """The digests of `nodes`."""
        found = {}
        for place, node in self.nodes.items():
            before = self._shared.stopwatch.charge(self._paths[place])
            found[place] = self._shared.digest_of(node)
            self._shared.stopwatch.back_to(before)
        return found

    def since(self, began: Digests) -> Node:
        """The environment's node, with digests in place of unchanged values."""
        digests = self.digests() if began else {}
        self._same = {place: digest for place, digest in digests.items() if began.get(place) == digest}
        self._gone = began.keys() - self.nodes.keys()
        root = self._without_the_same(self._root, "")
        if len(json.dumps(root, allow_nan=False)) > MAX_BYTES:
            raise too_large()
        root["format"] = FORMAT
        return root

    def _node(self, value: Any, place: str, path: str) -> Node:
        self._num_nodes += 1
        if not self._num_nodes % 256:
            self._shared.stopwatch.check()
        if issubclass(type(value), Enum):
            return {"enum": class_name(value), "name": value.name}
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) is bytes:
            return {"bytes": to_text(value)}
        if issubclass(type(value), np.generic) and value.dtype.kind in PLAIN_DTYPES:
            return {"scalar": to_text(value.tobytes()), "dtype": value.dtype.str}
        if id(value) in self._met:
            return {"again": self._met[id(value)][0]}
        self._met[id(value)] = place, value
        return self._new_node(value, place, path)

    def _new_node(self, value: object, place: str, path: str) -> Node:
        if type(value) in (tuple, list, deque):
            assert isinstance(value, (tuple, list, deque))
            if _is_plain(value):
                items: list[Node] = list(value)
            else:
                items = [self._node(item, f"{place}[{i}]", f"{path}[{i}]") for i, item in enumerate(value)]
            node: Node = {type(value).__name__: items}
            return {**node, "maxlen": value.maxlen} if isinstance(value, deque) else node
        if type(value) is dict:
            return {"dict": [self._pair(i, *item, place, path) for i, item in enumerate(value.items())]}
        if type(value) is np.ndarray and value.dtype.kind in PLAIN_DTYPES:
            node = {"array": None, "dtype": value.dtype.str, "shape": list(value.shape)}
            self._arrays.append((value, place, node))  # known only after all arrays were written
            return node
        if type(value) is np.random.Generator:
            return self._generator(value, place, path)
        if type(value) is np.random.RandomState:
            return {"random_state": self._node(value.get_state(legacy=False), f"{place}.state", path)}
        if type(value) is random.Random:
            return {"random": self._node(value.getstate(), f"{place}.state", path)}
        if issubclass(type(value), CONSTANTS) and not _is_seeded_space(value):
            return self._constant(value, place, path)
        if sets_own_state(value, self._restored) is not None:
            state = self._own_state(value, f"{place}.get_state()") if self._restored is None else None
            return {"object": class_name(value), "state": state}
        if is_python_object(value) and (place == "" or self._restored == 1 or is_known(value)):
            return {"object": class_name(value), "attributes": self._attributes(value, place)}
        owner = path.partition(".")[0]
        remedy = f": {REMEDY.format(owner=owner)}" if is_python_object(value) else ""
        raise EnvStateError(f"{path} is of type {full_class_name(value)}, which cannot be saved{remedy}")

    def _constant(self, value: Any, place: str, path: str) -> Node:
        node: Node = {"constant": class_name(value)}
        if not isinstance(value, NAMED) or self._restored not in (None, FORMAT):
            return node
        owner = owner_of(value)
        if not isinstance(owner, (type, types.ModuleType, type(None))):
            node["owner"] = self._node(owner, f"{place}.__self__", f"{path}.__self__")
        return {**node, "name": getattr(value, "__qualname__", node["constant"])}

    def _attributes(self, value: object, place: str) -> list[Node]:
        found = []
        for name, of in vars(value).items():
            path = attribute_path(value, name)
            before = self._shared.stopwatch.charge(path)
            node = {"constant": class_name(of)} if _draws(value, of) else self._node(of, f"{place}.{name}", path)
            found.append([name, node])
            self._shared.stopwatch.back_to(before)
        return found

    def _own_state(self, value: Any, place: str) -> Node:
        path = f"{class_name(value)}.get_state()"
        before = self._shared.stopwatch.charge(path)
        try:
            state = value.get_state()
        except Exception as error:
            raise EnvStateError(f"{path} failed: {type(error).__name__}: {error}") from error
        self._shared.stopwatch.check()
        node = self._node(state, place, path)
        self._shared.stopwatch.back_to(before)
        return node

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
        """Write the memory of all arrays into their nodes, each block once."""
        groups: dict[int, list[tuple[NDArray[Any], str, Node]]] = {}
        for array, place, node in self._arrays:
            groups.setdefault(id(_owner(array)), []).append((array, place, node))
        for group in groups.values():
            (first, at, node), others = group[0], group[1:]
            # Views of one array stay views of one array; a single view does not keep the rest of its array.
            memory = _owner(first) if others else first
            if not isinstance(memory, np.ndarray):
                raise EnvStateError(f"arrays that share the memory of a {full_class_name(memory)} cannot be saved")
            lying = _as_it_lies(memory)
            if not others and not lying.flags.c_contiguous:
                memory = first.copy(order="K")
                lying = _as_it_lies(memory)
            shown = first if others else memory
            node |= {"array": lying, **_layout(shown, memory)}
            for array, _, other in others:
                other |= {"array": None, "memory_of": at, **_layout(array, memory)}
            if others:
                self._kept_always.update(id(other) for _, _, other in group)

    def _note_attributes(self, node: Node, place: str) -> bool:
        """Note the nodes of all attributes within; return whether the node must be kept even if it is unchanged."""
        if isinstance(node, list):  # all of them, whatever `all` returns
            kept = [self._note_attributes(item, f"{place}[{i}]") for i, item in enumerate(node) if type(item) is dict]
            return any(kept)
        if not isinstance(node, dict):
            return False
        if "attributes" in node:
            holds_kept = False
            for name, of in node["attributes"]:
                if self._note_attributes(of, f"{place}.{name}"):
                    holds_kept = True
                elif not _is_object(of):
                    self.nodes[f"{place}.{name}"] = of
                    self._paths[f"{place}.{name}"] = f"{node['object'].rpartition('.')[2]}.{name}"
            return holds_kept and self._restored is None  # earlier releases left out all lists of objects
        kind = next(iter(node), "")
        if kind == "constant":
            return self._note_attributes(node.get("owner"), f"{place}.__self__")
        keep = kind in ("again", "generator", "random_state", "random", "object") or id(node) in self._kept_always
        if kind in ("tuple", "list", "deque"):
            return self._note_attributes(node[kind], place) or keep
        if kind == "dict":
            kept = [self._note_attributes(value, f"{place}{{{i}}}") for i, (_, value) in enumerate(node["dict"])]
            return any(kept) or keep
        return keep

    def _without_the_same(self, node: Node, place: str) -> Node:
        if isinstance(node, list):
            return [
                self._without_the_same(item, f"{place}[{i}]") if type(item) is dict else item
                for i, item in enumerate(node)
            ]
        if not isinstance(node, dict):
            return node
        if "attributes" in node:
            names = {name for name, _ in node["attributes"]}
            changed = [self._changed(name, of, f"{place}.{name}") for name, of in node["attributes"]]
            gone = [at.removeprefix(f"{place}.") for at in self._gone if at.startswith(f"{place}.")]
            gone = [name for name in gone if name.isidentifier() and name not in names]
            return {**node, "attributes": changed + [[name, {"gone": True}] for name in gone]}
        kind = next(iter(node), "")
        if kind in ("tuple", "list", "deque"):
            return {**node, kind: self._without_the_same(node[kind], place)}
        if kind == "dict":
            pairs = enumerate(node["dict"])
            return {"dict": [[k, self._without_the_same(v, f"{place}{{{i}}}")] for i, (k, v) in pairs]}
        if kind == "array":
            return {**node, "array": self._text_of(node["array"])}
        return {name: self._without_the_same(of, place) for name, of in node.items()}

    def _text_of(self, memory: "NDArray[Any] | None") -> str | None:
        if memory is None:
            return None
        if memory.nbytes > MAX_BYTES:
            raise too_large()
        self._shared.stopwatch.check()
        return to_text(array_bytes(memory))

    def _changed(self, name: str, node: Node, place: str) -> list[Node]:
        if place in self._same:
            return [name, {"same": self._same[place]}]
        return [name, self._without_the_same(node, place)]


def _draws(owner: object, value: object) -> bool:
    """Whether an attribute is what an object of a known package draws with."""
    if type(value).__name__ not in DRAWING:
        return False
    # types made by SWIG have no module
    package, of_owner = (str(getattr(type(each), "__module__", "")).partition(".")[0] for each in (value, owner))
    return package == "pygame" and of_owner in KNOWN_PACKAGES


def is_known(value: object) -> bool:
    """Whether an object is described by its attributes: an environment, a dataclass, or from a known package."""
    kind = type(value)
    module = getattr(kind, "__module__", None)
    return (
        issubclass(kind, (gym.Env, gym.vector.VectorEnv))
        or all(hasattr(kind, name) for name in ("reset", "step", "observation_space", "action_space"))
        or dataclasses.is_dataclass(kind)
        or (isinstance(module, str) and module.partition(".")[0] in KNOWN_PACKAGES)
    )


def owner_of(constant: Any) -> Any:
    """The owner of a method, or the function and the arguments of a partial one; None for other constants."""
    if isinstance(constant, functools.partial):
        return (constant.func, *constant.args, *constant.keywords.items())
    return getattr(constant, "__self__", None)


def sets_own_state(value: object, restored: int | None = None) -> "Callable[[Any], object] | None":
    """The method `set_state` of an object, if its class has `get_state()` and `set_state(state)`; else None.

    Methods of these names with other arguments do not count.

    Args:
        value: the object.
        restored: format of a description to restore; format 1 used the names of torch's modules.
    """
    take = _own_methods(type(value)) or (_own_methods(type(value), *OF_FORMAT_1) if restored == 1 else None)
    return functools.partial(take, value) if take is not None else None


def _own_methods(kind: Any, getter: str = "get_state", setter: str = "set_state") -> "Callable[..., object] | None":
    get, take = (getattr(kind, name, None) for name in (getter, setter))
    if not (callable(get) and callable(take)):
        return None
    try:
        inspect.signature(get).bind(None)
        inspect.signature(take).bind(None, None)
    except (TypeError, ValueError):  # ValueError: Python cannot inspect it
        return None
    found: Callable[..., object] = take
    return found


def too_large() -> EnvStateError:
    """The error for a state that is too large for a checkpoint."""
    return EnvStateError(f"its state takes more than {MAX_BYTES >> 20} MiB")


def _is_plain(items: "tuple[Any, ...] | list[Any] | deque[Any]") -> bool:
    """Whether all items are stored unchanged."""
    kinds = set(map(type, items))
    return kinds <= PLAIN_TYPES or (kinds == {float} and all(map(math.isfinite, items)))


def _is_seeded_space(value: object) -> bool:
    return isinstance(value, gym.Space) and value._np_random is not None


def _is_object(node: Node) -> bool:
    return isinstance(node, dict) and "object" in node


def _as_it_lies(memory: NDArray[Any]) -> NDArray[Any]:
    """An array with its axes in memory order, so that an array that owns its memory fills it."""
    axes = sorted(range(memory.ndim), key=lambda axis: -memory.strides[axis])
    return memory.transpose(axes)


def _layout(array: NDArray[Any], memory: NDArray[Any]) -> Node:
    offset = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return {"strides": list(array.strides), "offset": offset}


def _owner(array: NDArray[Any]) -> object:
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base
