"""Restores saved states in environments that were made and reset in the same way."""

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.state.describing import FORMAT, Walk, owner_of, sets_own_state
from hybridppo.environments.state.nodes import (
    BIT_GENERATORS,
    MISSING,
    Node,
    attribute_path,
    class_name,
    full_class_name,
    is_python_object,
    plain_dtype,
    to_bytes,
)
from hybridppo.environments.state.sharing import Shared
from hybridppo.errors import EnvStateError, shown

_IMMUTABLE = (int, float, str, bytes, np.generic)


def restore(environment: object, described: dict[str, Any], shared: Shared | None = None) -> None:
    """Restore the result of `describe` in an environment that was made and reset in the same way.

    It restores everything or nothing, unless a `set_state` of the environment fails.

    Args:
        environment: a fresh environment.
        described: the state.
        shared: the common part of environments that are restored together; None for a single one.

    Raises:
        EnvStateError: if the state does not fit this environment.
    """
    # everything is read before anything is changed
    restorer = Restorer(environment, described, shared if shared is not None else Shared())
    restorer.apply()


class Restorer:
    """Reads a described state against a fresh environment; nothing is changed before `apply`."""

    def __init__(self, environment: object, described: dict[str, Any], shared: Shared) -> None:
        self._format = described.get("format", 1)
        if self._format not in range(1, FORMAT + 1):
            raise EnvStateError(f"its state is of format {shown(self._format)}, and this release reads up to {FORMAT}")
        walk = Walk(environment, shared, self._format)
        self._nodes, self._fresh, self._shared = walk.nodes, walk.objects, shared
        self._met: dict[str, Any] = {}
        self._taken: set[int] = set()
        """The identities of the fresh environment's objects that are restored."""
        self._memory: dict[str, NDArray[Any]] = {}
        self._changes: list[Callable[[], object]] = []
        try:
            self._value(described, environment, "", type(environment).__name__)
        except EnvStateError:
            raise
        except Exception as error:  # any error of Python or NumPy for a node that `describe` never writes
            message = f"the saved state of {type(environment).__name__} cannot be read"
            raise EnvStateError(f"{message}: {type(error).__name__}: {error}") from error

    def apply(self) -> None:
        """Set all values."""
        for change in self._changes:
            change()

    def _value(self, node: Node, fresh: Any, place: str, path: str) -> Any:
        """The value of a node; `fresh` is the value of the fresh environment in the same place."""
        if node is None or type(node) in (bool, int, float, str):
            return node
        kind = next(iter(node))
        if kind == "same":
            if place not in self._nodes or not self._shared.is_digest_of(node[kind], self._nodes[place]):
                raise EnvStateError(f"{path} is not what it was when the run began")
            return fresh
        if kind == "enum":
            self._require_class(node[kind], fresh, path)
            return type(fresh)[node["name"]]
        if kind == "float":
            return float(node[kind])
        if kind == "bytes":
            return to_bytes(node[kind])
        if kind == "scalar":
            return np.frombuffer(to_bytes(node[kind]), plain_dtype(node["dtype"]), 1)[0]
        if kind == "again":
            return self._met[node[kind]] if node[kind] in self._met else self._fresh[node[kind]]
        value = self._new_value(kind, node, fresh, place, path)
        self._met[place] = value
        return value

    def _new_value(self, kind: str, node: Node, fresh: Any, place: str, path: str) -> Any:
        if kind in ("list", "deque"):
            items: Any = [] if kind == "list" else deque(maxlen=node["maxlen"])
            self._met[place] = items  # before its items, which may contain it
            items.extend(self._items(node[kind], fresh, place, path))
            return items
        if kind == "tuple":
            return tuple(self._items(node[kind], fresh, place, path))
        if kind == "dict":
            mapping: dict[Any, Any] = {}
            self._met[place] = mapping
            before = fresh if isinstance(fresh, dict) else {}
            for i, (key_node, value_node) in enumerate(node[kind]):
                key = self._value(key_node, MISSING, f"{place}{{{i}}}.key", f"a key of {path}")
                of = before.get(key, MISSING)
                mapping[key] = self._value(value_node, of, f"{place}{{{i}}}", f"{path}[{key!r}]")
            return mapping
        if kind == "array":
            return self._array(node, place)
        if kind == "generator":
            return self._generator(node, place)
        if kind == "random_state":
            generator = np.random.RandomState(0)
            generator.set_state(checked_state(self._value(node[kind], MISSING, f"{place}.state", path)))
            return generator
        if kind == "random":
            python_generator = random.Random(0)
            python_generator.setstate(self._value(node[kind], MISSING, f"{place}.state", path))
            return python_generator
        if kind == "constant":
            self._require_class(node[kind], fresh, path)
            if "name" in node and node["name"] != getattr(fresh, "__qualname__", node[kind]):
                raise EnvStateError(
                    f"{path} was {node['name']} when it was saved, and is {fresh.__qualname__} after a reset: "
                    "functions and classes are not restored"
                )
            if "owner" in node:
                owner = owner_of(fresh)
                if not _is_same(self._value(node["owner"], owner, f"{place}.__self__", f"{path}.__self__"), owner):
                    of = "partial, with other or mutable arguments"
                    if not isinstance(fresh, functools.partial):
                        of = f"a method of a {full_class_name(owner)}"
                    raise EnvStateError(f"{path} is {of}, which is not restored")
            return fresh
        if kind == "object":
            return self._object(node, fresh, place, path)
        raise ValueError(f"unknown kind {kind!r}")

    def _items(self, nodes: list[Node], fresh: Any, place: str, path: str) -> list[Any]:
        before = list(fresh) if isinstance(fresh, (tuple, list, deque)) else []
        before += [MISSING] * (len(nodes) - len(before))
        return [self._value(node, before[i], f"{place}[{i}]", f"{path}[{i}]") for i, node in enumerate(nodes)]

    def _object(self, node: Node, fresh: Any, place: str, path: str) -> Any:
        self._require_class(node["object"], fresh, path)
        before = vars(fresh) if is_python_object(fresh) else {}
        if id(fresh) in self._taken:  # such as the goal of an agent, and the landmark that is the goal after the reset
            if "state" in node or not is_python_object(fresh):
                raise EnvStateError(f"{path} was an object of its own when it was saved, and is shared after a reset")
            fresh = object.__new__(type(fresh))
        self._taken.add(id(fresh))
        self._met[place] = fresh
        if "state" in node:
            set_state = sets_own_state(fresh, self._format)
            if set_state is None:
                raise EnvStateError(f"{path} has no get_state() and set_state(state), and had them when it was saved")
            got = "get_state()" if self._format > 1 else "state_dict()"
            state = self._value(node["state"], MISSING, f"{place}.{got}", f"{path}.{got}")
            self._changes.append(functools.partial(_call, set_state, state, path))
            return fresh
        if not is_python_object(fresh):
            raise EnvStateError(f"{path} is of type {full_class_name(fresh)}, which cannot be restored")
        after: dict[str, Any] = {}
        gone = []
        for name, of in node["attributes"]:
            if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
                raise ValueError(f"{name!r} is no attribute's name")
            if isinstance(of, dict) and "gone" in of:
                gone.append(name)
            else:
                after[name] = self._value(of, before.get(name, MISSING), f"{place}.{name}", attribute_path(fresh, name))
        self._changes.append(functools.partial(vars(fresh).update, after))
        self._changes += [functools.partial(vars(fresh).pop, name, None) for name in gone]
        return fresh

    def _array(self, node: Node, place: str) -> NDArray[Any]:
        if "memory_of" in node:
            memory = self._memory[node["memory_of"]]
        else:  # new arrays that own their memory
            memory = self._memory[place] = np.frombuffer(to_bytes(node["array"]), np.uint8).copy()
        dtype, strides = plain_dtype(node["dtype"]), tuple(node["strides"])
        return np.ndarray(tuple(node["shape"]), dtype, buffer=memory, offset=node["offset"], strides=strides)

    def _generator(self, node: Node, place: str) -> np.random.Generator:
        state = checked_state(self._value(node["state"], MISSING, f"{place}.state", "a generator's state"))
        seed = self._value(node["seed"], MISSING, f"{place}.seed", "a generator's seed")
        sequence = np.random.SeedSequence(**seed) if seed is not None else np.random.SeedSequence(0)
        bit_generator = BIT_GENERATORS[node["generator"]](sequence)
        bit_generator.state = state
        return np.random.Generator(bit_generator)

    def _require_class(self, name: str, fresh: Any, path: str) -> None:
        if fresh is MISSING:
            raise EnvStateError(f"{path} was a {name} when it was saved; a freshly reset environment has none there")
        if class_name(fresh) != name:
            raise EnvStateError(f"{path} was a {name} when it was saved, and is a {class_name(fresh)} now")


def _call(set_state: Callable[[Any], object], state: Any, path: str) -> None:
    try:
        set_state(state)
    except Exception as error:
        raise EnvStateError(f"set_state() of {path} failed: {type(error).__name__}: {error}") from error


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are one object, or tuples or plain values that are equal."""
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return all(map(_is_same, one, other))
    return one is other or (type(one) is type(other) and isinstance(one, _IMMUTABLE) and one == other)


def checked_state(state: dict[str, Any]) -> dict[str, Any]:
    """A bit generator's state; refused if NumPy would read beyond its arrays."""
    position = state["state"].get("pos", 0) if isinstance(state["state"], dict) else 0
    if not 0 <= position <= 624 or not 0 <= state.get("buffer_pos", 0) <= 4:
        raise ValueError("a generator's position lies outside of its state")
    return state
