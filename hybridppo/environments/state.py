"""The state of an environment: plain data that are written back, and actions that a new environment repeats.

    leaves = Walk(environment).leaves           # by path, such as {".env._elapsed_steps": 7}
    write(another_environment, leaves)

A walk follows attributes, lists and dicts from an environment through its wrappers to numbers, text, arrays and random
generators: the leaves. `write` sets those that differ. It builds no object and imports nothing, and it refuses leaves
that the other environment has no place for. An object with `get_state()` and `set_state(state)` is one leaf.

State outside of attributes (globals, closures, other processes, C++) is not found. `Walk.hidden` names objects that may
have such a state. A replay restores it: a new environment is reset with the random generators from before the reset of
its episode (`EpisodeStart`), and repeats the actions since (`ActionHistory`). Workers use this file without torch.
"""

import ast
import base64
import collections
import contextlib
import copy
import functools
import hashlib
import inspect
import json
import logging
import math
import random
import re
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import PassiveEnvChecker

from hybridppo.environments.base import EnvState, columns_of
from hybridppo.environments.checks import describe_error
from hybridppo.errors import EnvStateError, failures, shown_error
from hybridppo.spaces.arrays import Array
from hybridppo.system.seeds import seed_of

Leaves = dict[str, Any]
"""Values as JSON by path. A dict is a value of another kind, which its first key names."""

REMEDY = "give the environment get_state() and set_state(state) (docs/environments.md, Resumed exactly)"
MAX_LEAVES, MAX_BYTES, MAX_SECONDS = 10**5, 2**26, 5.0
"""The limits of one environment: leaves, bytes of all arrays, and seconds of the walk."""
LARGE = 2**20
"""An array of more bytes is saved as a digest if `Walk.hidden` is not empty: a replay restores it."""
CONSTANTS = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, functools.partial,
    np.dtype, np.ufunc, type(np.ravel), gym.Space, EnvSpec, logging.Logger, re.Pattern, PurePath,
)  # fmt: skip
"""Objects of which a path has the same one in every run; only their names are compared."""
PLAIN_DTYPES = "?biufcmMSU"
NEW_KEY = re.compile(r"(?P<owner>.*)(\.(?P<attribute>(?!__|\d)\w+)|\[(?P<key>'[^'\\]*'|-?\d+|\([-\d, ]*\))\])")
"""A path that may be missing in a new environment: an attribute; or a key of a dict: text, or whole numbers."""
CONTAINERS = (list, tuple, deque, dict, np.ndarray)
"""Objects whose parts have a place in them; of arrays, only those of objects have parts of their own."""
OUTSIDE = {*sys.stdlib_module_names, "torch", "pygame"} - {"__main__", "types", "abc"}
"""Packages whose objects are not walked: they stand for files, processes, devices and windows. A class made by a call,
as by `make_dataclass` before Python 3.12 or cloudpickle 2.2.0 in a worker, names `types` or `abc` as its module."""
PARTIAL = {"dm_control"}
"""Packages whose `get_state()` leaves out a part, such as what a solver starts from: their objects are replayed."""
CLIENTS = {"pybullet_utils"}
"""Packages whose classes, and those derived from them, stand for a simulator: their numbers name it in one process."""


class Walk:
    """The leaves of an environment, and their places.

    Args:
        environment: the environment.
        asks: whether `get_state()` is called.

    Raises:
        EnvStateError: if it has too many of them, or one cannot be read, as if its `get_state()` fails.
    """

    def __init__(self, environment: Any, *, asks: bool = True) -> None:
        self._asks = asks
        self.leaves: Leaves = {}
        self.places: dict[str, tuple[Any, Any, Any]] = {}
        """For each path, the container, the key in it, and the value."""
        self.hidden: list[str] = []
        """Objects that are not walked, and are no leaves."""
        self.num_views: collections.Counter[int] = collections.Counter()
        """The number of arrays that share memory, by its identity."""
        self._met: dict[int, str] = {}
        self._arrays: list[str] = []
        self.parents: dict[str, str] = {}
        start, queue = time.perf_counter(), [("", "", None, None, environment)]
        for parent, path, owner, key, value in queue:  # which grows
            self.parents[path], self.places[path] = parent, (owner, key, value)
            try:
                self.leaves[path] = self._leaf(path, value)
                queue += ((path, path + name, *place) for name, *place in self._children(path, value))
            except EnvStateError:
                raise
            except Exception as error:  # of an attribute of the object's
                raise EnvStateError(f"{path} cannot be read ({shown_error(error)}): {REMEDY}") from error
            if len(queue) > MAX_LEAVES or time.perf_counter() - start > MAX_SECONDS:
                name = type(environment).__name__
                raise EnvStateError(f"the state of {name} has too many values, as in {path}: {REMEDY}")
        self._write_arrays(type(environment).__name__)

    def is_own_generator(self, path: str) -> bool:
        """Whether the value at a path is a random generator, and not one of a space."""
        value, parent = (self.places[at][2] for at in (path, self.parents[path]))
        return isinstance(value, GENERATORS) and not isinstance(parent, gym.Space)

    def digests(self) -> dict[str, str]:
        """A digest of each leaf but those of random generators, for `since`."""
        return {path: _digest(leaf) for path, leaf in self.leaves.items() if _kind(leaf) != "generator"}

    def since(self, began: dict[str, str]) -> Leaves:
        """The leaves, with the digests of those that have not changed since the digests `began`."""
        now = self.digests()
        return {
            path: {"same": now[path]} if path in began and began[path] == now.get(path) else leaf
            for path, leaf in self.leaves.items()
        }

    def _leaf(self, path: str, value: Any) -> Any:
        if isinstance(value, Enum):
            return {"enum": value.name, "of": type(value).__qualname__}
        if _is_scalar(value):
            return encoded(value)
        if id(value) in self._met:
            return {"again": self._met[id(value)]}
        if (own := own_state(value)) is not None:
            self._met[id(value)] = path
            return {"own": own[0]() if self._asks else None}
        try:
            return encoded(value, self._met, path)
        except TypeError:  # it is not plain, or has parts that are met elsewhere
            self._met[id(value)] = path
        if type(value) is np.ndarray and value.dtype.kind in PLAIN_DTYPES:
            self._arrays.append(path)
            self.num_views[id(_memory_of(value))] += 1
            return None
        if (generator := state_of_generator(value)) is not None:
            return {"generator": encoded(generator)}
        if isinstance(value, CONSTANTS):
            return {"constant": str(getattr(value, "__qualname__", type(value).__qualname__))}
        if _attributes(value) is None:
            self.hidden.append(f"{path} is of type {_package(type(value))}.{type(value).__qualname__}")
        return {"object": type(value).__qualname__}

    def _children(self, path: str, value: Any) -> Iterator[tuple[str, Any, Any, Any]]:
        """The name, the container, the key and the value of each part of an object."""
        kind = _kind(self.leaves[path])
        if kind == "constant" and isinstance(value, functools.partial):
            yield from ((f".{name}", None, name, getattr(value, name)) for name in ("func", "args", "keywords"))
        elif kind == "constant" and isinstance(value, types.MethodType):
            yield ".__self__", None, "__self__", value.__self__
        elif kind == "constant" and isinstance(value, types.FunctionType):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # it is empty
                    yield f".{name}", _Slots(cell, ["cell_contents"]), "cell_contents", cell.cell_contents
        elif kind == "constant" and isinstance(value, gym.Space):  # which environments may draw from
            parts = (name for name in ("spaces", "_np_random") if name in vars(value))
            yield from ((f".{name}", vars(value), name, vars(value)[name]) for name in parts)
        elif kind == "generator" and isinstance(value, np.random.Generator):
            sequence = getattr(value.bit_generator, "seed_seq", None)
            yield ".spawned", None, "spawned", getattr(sequence, "n_children_spawned", 0)
        elif kind == "object" and (attributes := _attributes(value)) is not None:
            if isinstance(value, dict):
                for i, (key, item) in enumerate(list(value.items())):
                    is_plain = _is_scalar(key) or type(key) is tuple
                    yield f"[{key!r}]" if is_plain else f"[key {i}]", value, key, item
                    if not is_plain:  # an object, with data of its own
                        yield f"[key {i}].key", None, None, key
            elif isinstance(value, CONTAINERS):
                items: Any = value.reshape(-1) if isinstance(value, np.ndarray) else value
                owner = None if isinstance(value, tuple) else items
                yield from ((f"[{i}]", owner, i, item) for i, item in enumerate(items))
            yield from ((f".{name}", attributes, name, item) for name, item in list(attributes.items()))

    def _write_arrays(self, name: str) -> None:
        size = 0
        for path in self._arrays:
            array = self.places[path][2]
            is_large = self.hidden and array.nbytes > LARGE
            size += 0 if is_large else array.nbytes
            if size > MAX_BYTES:
                raise EnvStateError(f"the state of {name} takes more than {MAX_BYTES >> 20} MiB at {path}: {REMEDY}")
            data = {"digest": hashlib.blake2b(array.tobytes()).hexdigest()} if is_large else encoded_array(array)
            self.leaves[path] = data


def write(environment: Any, leaves: Leaves) -> None:
    """Write leaves that differ into an environment.

    Raises:
        EnvStateError: naming a leaf that cannot be written; the environment must then be reset.
    """
    walk = Walk(environment)
    leaves = with_same(walk, leaves)
    differ = {path for path, leaf in leaves.items() if path not in walk.leaves or walk.leaves[path] != leaf}
    # Others of the same object get the new one.
    differ |= {path for path, leaf in leaves.items() if _kind(leaf) == "again" and leaf["again"] in differ}
    try:
        in_order = sorted(differ, key=lambda at: _kind(leaves[at]) == "again")
        writers = [_writer(walk, path, leaves[path]) for path in in_order]
        for path, (owner, key, _) in list(walk.places.items()):
            parent = walk.parents.get(path, "")
            if path not in leaves and leaves.get(parent) == walk.leaves.get(parent) and isinstance(owner, dict):
                owner.pop(key, None)
        for each in writers:
            each()
    except EnvStateError:
        raise
    except Exception as error:  # any error of Python, NumPy or `set_state` for data that it cannot read
        raise EnvStateError(f"{sorted(differ)} cannot be restored: {shown_error(error)}") from error
    found = Walk(environment).leaves  # objects that were one may be two now, and others may be left
    others = [path for path in {**leaves, **found} if found.get(path, found) != leaves.get(path, found)]
    if others:
        raise EnvStateError(f"{others[0]} differs from when it was saved, and cannot be written")


def with_same(walk: Walk, leaves: Leaves) -> Leaves:
    """Replace the digests of leaves that have not changed since the run began by the environment's own leaves.

    Raises:
        EnvStateError: naming a leaf with which the environment began otherwise than the saved one.
    """
    same = [path for path, leaf in leaves.items() if _kind(leaf) == "same"]
    if wrong := [path for path in same if leaves[path]["same"] != _digest(walk.leaves.get(path))]:
        raise EnvStateError(f"{wrong[0]} is not what it was when the run began")
    return {**leaves, **{path: walk.leaves[path] for path in same}}


def _writer(walk: Walk, path: str, leaf: Any) -> Callable[[], object]:
    """A function that writes a leaf."""
    kind = _kind(leaf)
    if path not in walk.places:
        match = NEW_KEY.fullmatch(path)
        if match is None or _kind(walk.leaves.get(match["owner"])) != "object":
            raise EnvStateError(f"{path} is missing in a new environment")
        parent = walk.places[match["owner"]][2]
        if match["key"] and not isinstance(parent, dict):
            raise EnvStateError(f"{path} is missing in a new environment")
        new_key = match["attribute"] or ast.literal_eval(match["key"])
        walk.places[path] = (parent if match["key"] else _attributes(parent)), new_key, None
    owner, key, now = walk.places[path]
    if kind == "again" and owner is not None and leaf["again"] in walk.places:  # once that object is written
        its_owner, its_key, same = walk.places[leaf["again"]]
        return lambda: owner.__setitem__(key, same if its_owner is None else its_owner[its_key])
    if kind == "own" and (own := own_state(now)) is not None:
        return functools.partial(own[1], leaf["own"])
    if kind == "generator" and isinstance(now, GENERATORS):
        return functools.partial(set_generator, now, decoded(leaf["generator"]))
    if kind == "enum" and isinstance(now, Enum) and type(now).__qualname__ == leaf["of"]:
        value: Any = type(now)[leaf["enum"]]
    elif kind in ("again", "constant", "object", "digest", "own", "generator", "enum"):
        raise EnvStateError(f"{path} is another one than when it was saved, and cannot be written")
    else:
        value = decoded(leaf)
    if isinstance(now, np.ndarray) and isinstance(value, np.ndarray) and now.flags.writeable:
        is_view = walk.num_views[id(_memory_of(now))] > 1 and _kind(walk.leaves.get(path)) != "again"
        if is_view and (now.shape, now.dtype) == (value.shape, value.dtype):  # others see its memory, too
            return functools.partial(np.copyto, now, value)
    if owner is None:
        raise EnvStateError(f"{path} differs from when it was saved, and cannot be written")
    return functools.partial(owner.__setitem__, key, value)


def _kind(leaf: Any) -> str:
    return next(iter(leaf), "") if isinstance(leaf, dict) else ""


def _digest(leaf: Any) -> str:
    return hashlib.blake2b(json.dumps(leaf, allow_nan=False).encode(), digest_size=8).hexdigest()


def _memory_of(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def own_state(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """Functions that get and set an object's state as JSON, if its class has methods for it; else None."""
    kind: Any = type(value)
    if hasattr(kind, "cloneSystemState") and hasattr(kind, "restoreSystemState"):  # of Atari's emulator
        return (
            lambda: {"bytes": to_text(value.cloneSystemState().serialize())},
            lambda state: value.restoreSystemState(type(value.cloneSystemState())(decoded(state))),
        )
    if any(_package(cls) in PARTIAL for cls in kind.__mro__):
        return None
    methods: list[Any] = [getattr(kind, name, None) for name in ("get_state", "set_state")]
    if isinstance(value, (*GENERATORS, types.ModuleType)) or not all(map(inspect.isfunction, methods)):
        return None
    try:
        for method, arguments in zip(methods, ((None,), (None, None)), strict=True):
            inspect.signature(method).bind(*arguments)
    except TypeError:
        return None

    def get() -> Any:
        try:
            return encoded(value.get_state())
        except failures() as error:  # any error of the user's
            what = f"get_state() of {kind.__qualname__} failed"
            raise EnvStateError(f"{what}: {shown_error(error)}") from error

    return get, lambda state: value.set_state(decoded(state))


GENERATORS: tuple[type, ...] = (np.random.Generator, np.random.RandomState, random.Random)


def state_of_generator(value: Any) -> Any:
    """The state of a random generator as plain data; None for other values."""
    if type(value) is np.random.Generator:
        return value.bit_generator.state
    if type(value) is np.random.RandomState:
        return value.get_state(legacy=False)
    return value.getstate() if type(value) is random.Random else None


GLOBAL_GENERATORS: list[Any] = [random.getstate.__self__, np.random.get_state.__self__]  # type: ignore[attr-defined]


def encoded_globals() -> Any:
    """The states of Python's and NumPy's global generators as JSON."""
    return encoded([*map(state_of_generator, GLOBAL_GENERATORS)])


def restore_globals(saved: Any) -> None:
    """Restore the result of `encoded_globals`."""
    for generator, state in zip(GLOBAL_GENERATORS, decoded(saved), strict=True):
        set_generator(generator, state)


def _own_spaces(env: Any) -> None:
    """Give an environment copies of the spaces of its class, from which all environments of the class would sample."""
    for name in ("observation_space", "action_space"):
        space = getattr(type(env), name, None)
        if isinstance(env, gym.Env) and isinstance(space, gym.Space) and name not in vars(env):
            setattr(env, name, copy.deepcopy(space))


def _lacks_seed(value: Any) -> bool:
    """Whether a space or a generator of NumPy has no seed, or the 128 bits of the operating system."""
    if isinstance(value, gym.Space):
        if hasattr(value, "spaces"):  # its parts are asked
            return False
        value = vars(value).get("_np_random")
        if value is None:
            return True
    if not isinstance(value, GENERATORS):
        return False
    bits = getattr(value, "_bit_generator", None) or getattr(value, "bit_generator", None)
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    return isinstance(entropy, int) and entropy >= 2**64


def _seed(value: Any, seed: int) -> None:
    """Seed a space or a generator of NumPy."""
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = type(value.bit_generator)(seed).state
    else:
        value.seed(seed)


def set_generator(generator: Any, state: Any) -> None:
    """Set the state of a random generator, as `state_of_generator` returned it for one of its kind.

    Raises:
        EnvStateError: if NumPy would read beyond the state.
    """
    if isinstance(generator, random.Random):
        generator.setstate(state)
        return
    words = state["state"] if isinstance(state["state"], dict) else {}
    if not 0 <= words.get("pos", 0) <= 624 or not 0 <= state.get("buffer_pos", 0) <= 4:
        raise EnvStateError("a generator's position lies outside of its state")
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _is_scalar(value: Any) -> bool:
    is_of_numpy = isinstance(value, np.generic) and value.dtype.kind in PLAIN_DTYPES
    return value is None or type(value) in (bool, int, float, str, bytes) or is_of_numpy


def _is_noted(value: Any) -> bool:
    """Whether a replay brings the value back to what it was before the reset."""
    return _is_scalar(value) or type(value) in GENERATORS


def encoded(value: Any, met: dict[int, str] | None = None, path: str = "") -> Any:
    """Plain data as JSON.

    Args:
        value: numbers, text, arrays, and containers of them.
        met: paths of objects by identity, to which the containers are added.
        path: their path.

    Raises:
        TypeError: if there is anything else, or an object of `met`.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is bytes:
        return {"bytes": to_text(value)}
    if isinstance(value, np.generic) and value.dtype.kind in PLAIN_DTYPES:
        return {"number": encoded_array(np.asarray(value))}
    kind = type(value)
    if kind not in (list, tuple, dict, deque, set, np.ndarray) or (kind is not tuple and id(value) in (met or ())):
        raise TypeError(f"{kind.__qualname__} is no plain data")
    if kind is np.ndarray:
        if met is not None or value.dtype.kind not in PLAIN_DTYPES:  # arrays are leaves of their own
            raise TypeError("an array of objects is no plain data")
        return encoded_array(value)
    items = [part for pair in value.items() for part in pair] if kind is dict else value
    node: dict[str, Any] = {kind.__name__: [encoded(item, met, f"{path}[...]") for item in items]}
    if kind is set:
        node["set"].sort(key=repr)
    if met is not None and kind is not tuple:
        met[id(value)] = path
    return {**node, "maxlen": value.maxlen} if kind is deque else node


def decoded(node: Any) -> Any:
    """The data that `encoded` wrote."""
    if not isinstance(node, dict):
        return node
    (kind, content), *_ = node.items()  # a ValueError if there is none
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "number":
        return decoded(content)[()]
    if kind == "array":
        dtype = np.dtype(str(node["dtype"]))
        if dtype.kind not in PLAIN_DTYPES:
            raise ValueError(f"{dtype} is no type of plain numbers or text")
        return np.frombuffer(base64.b64decode(content, validate=True), dtype).reshape(node["shape"]).copy()
    items = [decoded(item) for item in content]
    if kind == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    if kind == "deque":
        return deque(items, node["maxlen"])
    return {"list": list, "tuple": tuple, "set": set}[kind](items)


def encoded_array(array: Any) -> dict[str, Any]:
    """An array of plain numbers or text as JSON."""
    data = np.ascontiguousarray(array).tobytes()
    return {"array": to_text(data), "dtype": array.dtype.str, "shape": list(array.shape)}


def to_text(data: bytes) -> str:
    """Bytes as text for JSON."""
    return base64.b64encode(data).decode("ascii")


def _attributes(value: Any) -> Any:
    """The attributes of an object whose classes are written in Python; None for an object that is not walked."""
    kind: Any = type(value)
    attributes = getattr(value, "__dict__", None)
    if isinstance(value, np.ndarray):
        return {} if kind is np.ndarray and value.dtype == object else None
    if isinstance(value, CONTAINERS):
        return attributes or {}
    makers = (cls.__dict__.get("__new__") for cls in kind.__mro__[:-1])
    is_of_c = not all(isinstance(make, (staticmethod, types.NoneType)) for make in makers)
    if is_of_c or _package(kind) in OUTSIDE or any(_package(cls) in CLIENTS for cls in kind.__mro__):
        return None
    slots = (name for cls in kind.__mro__ for name in np.atleast_1d(cls.__dict__.get("__slots__", ())).tolist())
    names = [name for name in slots if name not in ("__dict__", "__weakref__")]
    if not names:
        return attributes
    return _Slots(value, names) if attributes is None and not any(name.startswith("__") for name in names) else None


class _Slots(dict[str, Any]):
    """The attributes of an object with slots, which are written into it."""

    def __init__(self, owner: Any, names: list[str]) -> None:
        super().__init__({name: getattr(owner, name) for name in names if hasattr(owner, name)})
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._owner, name, value)


def _package(kind: type) -> str:
    """The package of a class; classes made by SWIG have none."""
    return str(getattr(kind, "__module__", "")).partition(".")[0]


LONGEST = 60.0
"""An episode whose sampling took longer is not replayed."""
OTHER_ROWS = (
    "the replay of its episode led to another observation: it draws from a global generator, or something that lives "
    "across episodes is not plain data"
)


class EpisodeStart:
    """How the present episode of an environment began."""

    def __init__(self) -> None:
        self._start: dict[str, Any] = {}
        """The seed and the options of the reset, and values before it: "random" are the states of the environment's
        random generators; if there are hidden objects, "others" are those of its spaces, and numbers and text."""
        self._began: dict[str, str] = {}
        """Digests of the data after the first reset."""
        self._places: list[tuple[str, str, Any, Any, Any]] = []
        """For each of these values, "random" or "others", the path, the container, the key and the value."""
        self._without_seed: dict[str, Any] = {}
        """Spaces and random generators that were made without a seed, by path."""
        self._resets = 0

    def note(self, env: Any, seed: int | None, options: dict[str, Any] | None) -> None:
        """Note what a replay of the episode needs, before the reset that begins it.

        A seed also reaches what was made without one, whose draws would else differ in every run: spaces, which an
        environment may sample from, and generators of NumPy.
        """
        if self._resets < 2:  # gymnasium makes its generator in the first
            self._resets += 1
            _own_spaces(getattr(env, "unwrapped", env))
            with contextlib.suppress(EnvStateError):  # `state` raises it again
                walk = Walk(env, asks=False)
                # What the checker has checked fits to the observation that it keeps, which is not noted.
                checker = {path for path, place in walk.places.items() if isinstance(place[2], PassiveEnvChecker)}
                noted = [path for path, place in walk.places.items() if _is_noted(place[2])]
                found = [(path, *walk.places[path]) for path in noted if walk.parents[path] not in checker]
                kinds = ["random" if walk.is_own_generator(path) else "others" for path, *_ in found]
                pairs = zip(kinds, found, strict=True)
                self._places = [(kind, *place) for kind, place in pairs if kind == "random" or walk.hidden]
                self._without_seed |= {path: each for path, (*_, each) in walk.places.items() if _lacks_seed(each)}
        if seed is not None:
            for path, each in self._without_seed.items():
                _seed(each, seed_of(seed, path))
        self._start = {"seed": seed, "options": options, "random": {}, "others": {}}
        for kind, path, owner, key, value in self._places:
            with contextlib.suppress(LookupError, AttributeError):  # it has gone
                value = value if owner is None else owner[key]
                if _is_noted(value):
                    self._start[kind][path] = state_of_generator(value) if type(value) in GENERATORS else value

    def remember(self, env: Any) -> None:
        """Remember the data after the first reset: `state` leaves out what has not changed since."""
        self._began = self._began or Walk(env).digests()

    def state(self, env: Any) -> dict[str, Any]:
        """The state of an environment for `restore`: its plain data, and the start of its episode."""
        walk = Walk(env)
        return {"leaves": walk.since(self._began), "hidden": walk.hidden[:1], "started": encoded(self._start)}

    def restore(
        self,
        env: Any,
        saved: dict[str, Any],
        actions: Sequence[Any] | None,
        reset: Callable[[int | None, dict[str, Any] | None], Any],
        step: Callable[[Any], Any],
        is_as_saved: Callable[[Any], bool],
    ) -> None:
        """Restore the result of `state` in a new environment that was reset.

        If all of it is plain data, the data is written. Otherwise, the episode is replayed, and then the data written.

        Args:
            env: the environment.
            saved: the state.
            actions: the actions of its episode; None if they were not saved.
            reset: resets the environment, and returns its rows.
            step: its `step`.
            is_as_saved: whether the last rows of a replay are those that were saved; None for those of the reset.

        Raises:
            EnvStateError: if the state does not fit, or the episode cannot be replayed.
        """
        start, hidden, problem = decoded(saved["started"]), saved["hidden"], "its actions were not saved"
        has_begun = bool(hidden) and saved["started"] == encoded(self._start)  # with all that no walk finds
        with_same(Walk(env), saved["leaves"])  # before an episode is replayed in vain
        if not has_begun:
            self._start = start
            try:
                write(env, saved["leaves"])
                if not hidden:
                    return
            except EnvStateError as error:  # what it names may come to exist in the replay
                problem = str(error)
        if actions is None:
            raise EnvStateError(problem)
        if hidden and not has_begun and start["seed"] is None and not start["random"]:
            raise EnvStateError(f"it has no random generator that the library knows, and {hidden[0]}: {REMEDY}")
        rows, values = None, start["random"] | start.get("others", {})
        try:
            if not has_begun:
                for path, (owner, key, now) in Walk(env, asks=False).places.items():
                    if path in values and isinstance(now, GENERATORS):
                        set_generator(now, values[path])
                    elif path in values and owner is not None:
                        owner[key] = values[path]
                rows = reset(start["seed"], start["options"])
            for action in actions:
                rows = step(action)[0]
        except failures() as error:
            raise EnvStateError(f"its episode cannot be replayed: {describe_error(error)}") from error
        if not is_as_saved(rows):
            raise EnvStateError(f"{OTHER_ROWS} ({' '.join(hidden)}): {REMEDY}")
        write(env, saved["leaves"])


class ActionHistory:
    """The last actions of environments that may have to replay them."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[Array, float]] = deque()

    def add(self, actions: Array, seconds: float, longest: int | None) -> None:
        """Add the actions of some steps.

        Args:
            actions: `[t, N, *action]`; copied.
            seconds: how long the steps took.
            longest: steps of the longest unfinished episode; older actions are dropped. None if it is not known.
        """
        self._blocks.append((actions.copy(), seconds))
        while len(self._blocks) > 1:
            steps_but_first = sum(len(block) for block, _ in self._blocks) - len(self._blocks[0][0])
            total = sum(taken for _, taken in self._blocks)
            if total <= LONGEST and (longest is None or steps_but_first < longest):
                break
            self._blocks.popleft()

    def put_into(self, states: list[EnvState]) -> None:
        """Add the actions of its episode to each state.

        Raises:
            EnvStateError: if a state that is not plain data has an episode that is too long.
        """
        block = np.concatenate([block for block, _ in self._blocks]) if self._blocks else None
        for number, (state, columns) in enumerate(zip(states, columns_of(states), strict=True)):
            steps = state.get("episode_steps", 0)
            if block is not None and 0 < steps <= len(block):
                state["actions"] = encoded(block[len(block) - steps :, columns])
            elif steps and (hidden := state["state"]["hidden"]):
                raise EnvStateError(
                    f"the episode of environment {number} of {len(states)} takes more than {LONGEST:g} seconds, "
                    f"too long to be replayed, and {hidden[0]}: {REMEDY}"
                )

    def take_from(self, states: list[EnvState], row: Array) -> Array:
        """The actions of saved states, `[t, N, *action]`, in their last steps; they become the history.

        Args:
            states: the states.
            row: `[N, *action]`, for the steps before an environment's episode.
        """
        found = [decoded(state["actions"]) if "actions" in state else row[:0, None] for state in states]
        actions = np.repeat(row[None], max(map(len, found), default=0), 0)
        for own, columns in zip(found, columns_of(states), strict=True):
            if len(own):
                actions[len(actions) - len(own) :, columns] = own
        self._blocks.clear()
        self.add(actions, 0.0, None)
        return actions
