"""Pickles what is sent to worker processes, and explains why something cannot be pickled."""

import inspect
import sys
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import cloudpickle

from hybridppo.errors import EnvError, shown_error

_DEEPEST = 20
_SCRIPT = "__mp_main__"
"""The name that `multiprocessing` gives the user's script in its processes."""
_OF_ENVIRONMENTS = ("source", "options", "settings")
"""The parts of a setup that make environments."""
IN_THIS_PROCESS = ", or step the environments in this process, with num_workers=0"
ALONE = ", or train in this process, with distributed='local'"


def pack(setup: dict[str, Any], otherwise: str = IN_THIS_PROCESS) -> bytes:
    """Pickle the setup of another process, with a `source` that makes environments.

    Args:
        setup: the setup.
        otherwise: another remedy if it cannot be pickled.

    Raises:
        EnvError: if it cannot be pickled, naming the object.
    """
    try:
        return _pickled(setup)
    except Exception as error:  # objects may raise anything when they are pickled
        name = next((name for name in setup if not _can_pickle(setup[name])), "source")
        path, culprit = find_culprit(setup[name], "env" if name == "source" else name)
        what, where = "environment", "the function that makes the environment"
        if name not in _OF_ENVIRONMENTS:
            what, where = "agent", "what needs it"
        raise EnvError(
            f"the {what} cannot be sent to worker processes: {path} is a {type(culprit).__name__}, which cannot be "
            f"pickled ({shown_error(error)}). Make it within {where}{otherwise}"
        ) from error


def find_culprit(value: Any, path: str) -> tuple[str, Any]:
    """The path of the innermost object in `value` that cannot be pickled, and the object; `value` is at `path`."""
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        seen.add(id(value))
        bad = ((where, part) for where, part in _parts(value, path) if id(part) not in seen and not _can_pickle(part))
        found = next(bad, None)
        if found is None:
            break
        path, value = found
    return path, value


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value that are pickled with it, each with its path."""
    if isinstance(value, partial):
        yield f"{path}.func", value.func
        yield from ((f"{path}.args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f"{path}.keywords[{name!r}]", part) for name, part in value.keywords.items())
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        yield from ((f"{path}'s variable {name!r}", part) for name, part in found.nonlocals.items())
        yield from ((f"{path}'s global variable {name!r}", part) for name, part in found.globals.items())
        yield from ((f"a default value of {path}", part) for part in value.__defaults__ or ())
    elif isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{i}]", part) for i, part in enumerate(value))
    elif not isinstance(value, type):
        yield from ((f"{path}.{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _can_pickle(value: Any) -> bool:
    try:
        _pickled(value)
    except Exception:  # as above
        return False
    return True


def _pickled(value: Any) -> bytes:
    if _SCRIPT in sys.modules:  # pickle its classes by value, like those of `__main__`
        cloudpickle.register_pickle_by_value(sys.modules[_SCRIPT])
    return bytes(cloudpickle.dumps(value))
