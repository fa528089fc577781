"""The library's errors. A message names the fault, the value, and the remedy, such as a name that was meant."""

import difflib
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import resources
from importlib.util import find_spec
from typing import Any


class HybridPPOError(Exception):
    """Base class of the library's errors. The command line exits with 1, or 2 for a `ConfigurationError`."""


class ConfigurationError(HybridPPOError, ValueError):
    """An invalid setting: names the field and the rule."""


class DeviceError(HybridPPOError, RuntimeError):
    """A requested device is missing, or a copy between devices failed."""


class EnvError(HybridPPOError, RuntimeError):
    """An environment failed, cannot be made, or has unsupported spaces or an unsupported autoreset mode."""


class EnvStateError(EnvError):
    """The state of an environment cannot be saved or restored."""


class TrainingError(HybridPPOError, ArithmeticError):
    """A loss, a gradient or a parameter is not finite: the agent cannot learn any more."""


class DistributedError(HybridPPOError, RuntimeError):
    """One of several processes that train together is lost."""


class LearnerLostError(DistributedError):
    """One of several learners has died or does not answer."""


class OutOfMemoryError(HybridPPOError, MemoryError):
    """A device or the machine lacks the memory that the configuration needs."""


class CheckpointError(HybridPPOError, RuntimeError):
    """A checkpoint is missing or damaged, or does not fit."""


class RunDirectoryError(HybridPPOError, RuntimeError):
    """A run directory exists already, or a folder is not a run directory."""


class CallbackError(HybridPPOError, RuntimeError):
    """A callback failed; the message names it, and its error is the cause."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or another signal ended a training, which was saved if it has a run directory.

    `train` and `resume` raise it after saving and closing, so that Ctrl-C also ends a loop around them.
    """

    def __init__(self, result: Any) -> None:
        where = f"go on with hybridppo.resume({str(result.run_dir)!r})" if result.saved else "nothing was saved of it"
        super().__init__(f"the training was interrupted: {where}; the result so far is this exception's `result`")
        self.result = result
        """The `TrainResult` that `train(..., on_interrupt="return")` would have returned."""


def failures() -> tuple[type[BaseException], ...]:
    """The errors of failing user code, for an `except` clause: all but Ctrl-C, which passes.

    `sys.exit()`, `asyncio.CancelledError` or an own `BaseException` must not end a training without a message.
    """
    return () if isinstance(sys.exc_info()[1], KeyboardInterrupt) else (BaseException,)


def message_of(error: BaseException) -> str:
    """The message of an error, whose `__str__` may fail."""
    try:
        return str(error)
    except failures() as own:
        return f"(no message: its __str__ raises {type(own).__name__})"


def shown_error(error: BaseException) -> str:
    """The type and the message of an error."""
    return f"{type(error).__name__}: {message_of(error)}"


class BadValueError(Exception):
    """An environment returned an invalid value.

    The caller of the environment turns it into an `EnvError` that names the environment and the step.
    """


class MissingEntryError(BadValueError):
    """An info lacks an entry that an option asks for, which a restart of the environment cannot change."""


def add_advice(error: BaseException, advice: str) -> None:
    """Add a remedy to an error: to the message of the library's errors, as a note to others."""
    if isinstance(error, HybridPPOError):
        error.args = (f"{error}; {advice}",)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), advice]


def shown(value: Any, limit: int = 200) -> str:
    """A value as text for a message, cut if it is long; of an array with several lines, its shape."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python prints
        return "a number of thousands of digits"
    except failures() as error:
        return f"{type(value).__name__} (its __repr__ raises {type(error).__name__})"
    if "\n" in text and hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {list(value.shape)}"
    text = "; ".join(text.splitlines())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def shown_name(part: object) -> str:
    """The name of a function or class, also if `functools.partial` binds its arguments; of an object, its class's."""
    while isinstance(part, partial):
        part = part.func
    return str(getattr(part, "__qualname__", type(part).__name__))


def command(*words: object) -> str:
    """A command for this system's shell; words are quoted if necessary, such as a path with spaces."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def pip_install(extra: str) -> str:
    """The command that installs an extra; hybridppo is installed from a clone, since no index has it."""
    return f"{command('pip', 'install', f'.[{extra}]')} in your clone of hybridppo"


def is_installed(package: str) -> bool:
    """Whether Python finds a package, and not only a folder of that name; imports nothing."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


_NAMES_ELSEWHERE = "names_elsewhere.json"
"""Names of other libraries, or of older versions, by ours; behind a comma the unit, if it is another one."""
_UNITS: dict[str, tuple[Callable[[Any, Mapping[str, int]], Any], str]] = {
    "": (lambda x, sizes: x, ""),
    "twice": (lambda x, sizes: 2.0 * x, "the value loss is half the squared error here, and in CleanRL"),
    "logarithm": (lambda x, sizes: round(math.log(x), 4), "the logarithm"),
    "complement": (lambda x, sizes: round(1.0 - x, 10), "1 minus it"),
    "per environment": (lambda x, sizes: round(x / sizes["num_envs"]), "of each of {num_envs} environments"),
    "vector steps": (lambda x, sizes: round(x * sizes["num_envs"]), "steps of {num_envs} environments"),
    "iterations": (
        lambda x, sizes: round(x * sizes["num_envs"] * sizes["num_steps"]),
        "iterations of {num_envs} x {num_steps} steps",
    ),
}
"""For each unit, the conversion of a value with the numbers of environments and steps, and the reason."""


def as_argument(name: str, value: Any) -> str:
    """An argument in Python; None for an unknown value."""
    return name if value is None else f"{name}={shown(value)}"


def hint(
    name: str,
    value: Any,
    ours: Iterable[str],
    sizes: Mapping[str, int] = {},
    write: Callable[[str, Any], str] = as_argument,
) -> str:
    """The end of a message about an unknown name: what was probably meant; empty if nothing is like it.

    Args:
        name: the unknown name.
        value: its value.
        ours: the names that there are.
        sizes: `num_envs` and `num_steps`, with which a value in another unit is converted.
        write: how a name and a value are written; None is an unknown value.
    """
    ours, found, why = [*ours], name if name in ours else None, ""
    table = json.loads((resources.files("hybridppo") / _NAMES_ELSEWHERE).read_text(encoding="utf-8"))
    for own, theirs in table.items():
        if found is None and name in theirs.split():
            found, _, unit = own.partition(", ")
            if found not in ours:
                return ""
            convert, why = _UNITS[unit]
            try:
                value, why = convert(value, sizes), why.format(**sizes)
            except (TypeError, ValueError, KeyError):  # a schedule, text; an agent without rollouts
                value, why = None, ""
    found = found or next(iter(difflib.get_close_matches(name, ours, 1)), None)
    return f": did you mean {write(found, value)}?{f' ({why})' if why else ''}" if found else ""
