"""Checks of values that users set or that come from a file, and of options by the types of their fields."""

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from hybridppo.errors import ConfigurationError, shown

Saved = TypeVar("Saved")
CHANGEABLE = {"changeable": True}
"""In the metadata of an option: a resumed run may have another value of it."""
SECONDS = {"seconds": "a number of at least 0"}
"""In the metadata of an option: it is a number of seconds, and None is infinity, because config.json has none."""
SAME_RESULT = {"changes_result": False}
"""In the metadata of an option: a seed gives the same metrics and the same agent with any value of it, up to
rounding."""


def whole(state: Mapping[str, Any], name: str) -> int:
    """An integer of at least 0, with 64 bits.

    Raises:
        KeyError: if there is no such key.
        ValueError: if it is something else.
    """
    value = state[name]
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return value


def real(value: Any, name: str) -> float:
    """A finite number.

    Raises:
        ValueError: if it is something else.
    """
    if type(value) not in (int, float) or not abs(value) <= 1.7e308 or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number")
    return float(value)


def reals(state: Mapping[str, Any], name: str, *, length: int | None = None) -> list[float]:
    """A list of finite numbers of a given length.

    Raises:
        KeyError: if there is no such key.
        ValueError: if it is something else.
    """
    values = state[name]
    if not isinstance(values, list) or (length is not None and len(values) != length):
        raise ValueError(f"{name} must be a list" + (f" of {length} numbers" if length is not None else ""))
    return [real(value, f"a number in {name}") for value in values]


def part_of(saved: Mapping[str, Saved], prefix: str) -> dict[str, Saved]:
    """The entries whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}


def require_whole(name: str, value: Any, minimum: int = 1, *, below: int = 2**63) -> int:
    """An integer that a user set, Python's or NumPy's.

    Raises:
        ConfigurationError: naming the option, the rule and the value.
    """
    number = int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None
    if number is None or number < minimum:
        is_of_float = isinstance(value, float) and value.is_integer() and minimum <= value < below  # such as 1e6
        remedy = f": write {int(value):_}" if is_of_float else ""
        raise ConfigurationError(f"{name} must be a whole number of at least {minimum}, got {shown(value)}{remedy}")
    if number >= below:
        raise ConfigurationError(f"{name} must be below {below}, got {shown(value)}")
    return number


def require_bools(**values: Any) -> None:
    """Refuse values that are neither True nor False, Python's or NumPy's.

    Raises:
        ConfigurationError: naming the option, the rule and the value.
    """
    for name, value in values.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigurationError(f"{name} must be True or False, got {shown(value)}")


def require_path(name: str, value: Any, rule: str = "a path") -> Path:
    """A path that a user set: a text that a file's name can be, or an object with `__fspath__`; `~` is the home folder.

    Raises:
        ConfigurationError: naming the argument, the rule and the value.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    try:
        if text and b"\0" not in os.fsencode(text):
            return Path(text).expanduser()
    except (TypeError, UnicodeEncodeError):  # bytes; half of a character
        pass
    except RuntimeError:
        raise ConfigurationError(
            f"{name} is {shown(value)}, and there is no such home folder: write ./{text} for a file of that name"
        ) from None
    raise ConfigurationError(f"{name} must be {rule}, got {shown(value)}")


def each_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of pairs, as from JSON (`object_pairs_hook`).

    Raises:
        ValueError: if a key comes twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{shown(key)} comes twice")
        found[key] = value
    return found


def plain(value: Any) -> Any:
    """A number of NumPy's as one of Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def held_by_json(what: str, value: Any) -> Any:
    """A value as JSON holds it: with NumPy's numbers as Python's, and lists for tuples.

    Raises:
        ConfigurationError: if JSON cannot hold it.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=plain))  # which knows no other object
    except (TypeError, ValueError, RecursionError):
        rule = "must be what JSON can hold: numbers, text, lists and dicts"
        raise ConfigurationError(f"{what} {rule}, got {shown(value)}") from None


def require_seconds(name: str, value: Any, rule: str = "a number of at least 0") -> Any:
    """A number of seconds, as one of Python's; None is infinity.

    Raises:
        ConfigurationError: naming the option, the rule and the value.
    """
    seconds = math.inf if value is None else plain(value)
    # nan is not at least 0; an integer may be too large for a float
    if type(seconds) not in (int, float) or not (seconds == math.inf or 0 <= seconds < 2**63):
        raise ConfigurationError(f"{name} must be {rule}, got {shown(value)}")
    return seconds


def is_number(value: Any) -> bool:
    """Whether it is a finite number, Python's or NumPy's."""
    value = plain(value)  # float32 cannot hold the limit
    return type(value) in (int, float) and abs(value) <= 1.7e308


LARGEST_FLOAT = 3.4028234663852886e38
"""The largest float32, the type of all arithmetic."""
MOST_ROWS = 2**31 - 1
"""The largest int32."""

Rule = tuple[str, Callable[[Any], bool]]
"""The rule in words, and whether a value obeys it."""


ANY_TIME = {"may_change": "at any time"}
"""In the metadata of a hyperparameter: another value for an agent (`agent.config = ...`) takes effect at once."""
BETWEEN_TRAININGS = {"may_change": "between trainings"}
"""Another value takes effect in the agent's next training. Without a mark, it needs another agent."""


def require_may_change(config: Any, names: Collection[str], *, is_training: bool) -> None:
    """Refuse new hyperparameters for an agent in whose fields `names` another value would have no effect.

    Raises:
        ConfigurationError: with the field, the value and the remedy.
    """
    for field in fields(config):
        may_change = field.metadata.get("may_change")
        fixed = "is fixed when an agent is made: make another one (start_from takes this one's networks)"
        rule = fixed if may_change is None else "cannot change during a training: change it before"
        takes_effect = may_change == "at any time" or (may_change is not None and not is_training)
        require(config, field.name, takes_effect or field.name not in names, rule)


def at_most(limit: int) -> Rule:
    """The rule that a number is not above a limit."""
    return f"must be at most {limit}", lambda value: value <= limit


AT_LEAST_1: Rule = "must be at least 1", lambda value: value >= 1
COUNT = AT_LEAST_1, at_most(MOST_ROWS)
THREADS = AT_LEAST_1, at_most(1024)
POSITIVE: tuple[Rule] = (("must be greater than 0", lambda value: value > 0),)
NOT_NEGATIVE: tuple[Rule] = (("must not be negative", lambda value: value >= 0),)
SHARE: tuple[Rule] = (("must lie between 0 and 1", lambda value: 0 <= value <= 1),)


def require(config: Any, field: str, holds: bool, rule: str) -> None:
    """Refuse a field if a rule does not hold.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    if not holds:
        raise ConfigurationError(f"{field} {rule}, got {shown(getattr(config, field))}")


class OwnSettings(dict[str, Any]):
    """Hyperparameters of the user's, by name."""

    def __missing__(self, name: str) -> Any:
        raise ConfigurationError(
            f"there is no setting {name!r}: the settings are {', '.join(self) or 'none'}. Pass it to train, in "
            f"settings={{{name!r}: ...}}"
        )


def check_fields(config: Any, rules: Mapping[str, tuple[Rule, ...]] = {}) -> None:
    """Refuse fields of another type than theirs, or against a rule; None is allowed if the type says so.

    NumPy's numbers become Python's, integers in fields of floats become floats, and lists become tuples. The metadata
    of a whole number may have its `least`, and what it must be `below`; fields of texts are not checked.

    Args:
        config: a frozen dataclass, during its creation.
        rules: by field.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    for field, kind, may_be_none in _kinds_of(config.__class__):
        value = plain(getattr(config, field.name))
        if rule := field.metadata.get("seconds"):
            value = require_seconds(field.name, value, rule)
        elif value is not None or not may_be_none:
            value = _of_kind(config, field, kind, value, may_be_none)
        object.__setattr__(config, field.name, value)
    for name, of_field in rules.items():
        for text, holds in of_field:
            value = getattr(config, name)
            require(config, name, value is None or holds(value), text)


@cache
def _kinds_of(config_type: Any) -> "list[tuple[Field[Any], Any, bool]]":
    """Each field, its type without None, and whether it may be None."""
    hints, found = get_type_hints(config_type), []
    for field in fields(config_type):
        kind, may_be_none = hints[field.name], NoneType in get_args(hints[field.name])
        found.append((field, get_args(kind)[0] if may_be_none else kind, may_be_none))
    return found


def _of_kind(config: Any, field: "Field[Any]", kind: Any, value: Any, may_be_none: bool) -> Any:
    """The value of a field in the type of the field."""
    name = field.name
    if kind is bool:
        rule = "must be True, False or None" if may_be_none else "must be True or False"
        require(config, name, isinstance(value, bool), rule)
    elif "least" in field.metadata:
        value = require_whole(name, value, field.metadata["least"], below=field.metadata.get("below", 2**63))
    elif kind is int:
        require(config, name, type(value) is int, "must be a whole number")
    elif kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        in_range = is_number and -LARGEST_FLOAT <= value <= LARGEST_FLOAT  # and not NaN
        is_schedule = callable(value) or (isinstance(value, str) and value.isalpha())  # as elsewhere
        remedy = f" (train takes schedules={{{name!r}: ...}})" if is_schedule else ""
        require(config, name, in_range, f"must be a finite number of 32 bits{remedy}")
        value = float(value)  # for an integer, torch would use 64 bits
    elif get_origin(kind) is Literal:
        choices = get_args(kind)
        require(config, name, value in choices, f"must be {'None or ' * may_be_none}one of {', '.join(choices)}")
    elif kind == tuple[int, ...]:
        rule = "must be a tuple of whole numbers, each from 1 to"
        require(config, name, _are_widths(value), f"{rule} {MOST_ROWS}")
        value = tuple(map(plain, value))
    elif kind == tuple[str, ...] and may_be_none:
        are_keys = isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(key, str) for key in value)
        require(config, name, are_keys and len({*value}) == len(value), "must be None, or a tuple of keys, each once")
        value = tuple(value)
    elif kind == dict[str, Any]:
        is_object = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        is_json = field.metadata.get("json", False)
        require(config, name, is_object, f"must be a dict of {'values' if is_json else 'arguments'} by name")
        value = OwnSettings(held_by_json(name, dict(value))) if is_json else value
    elif get_origin(kind) is dict:
        rule = "must be None, or a dict of a part's key to the widths of its layers, each a whole number of at least 1"
        is_one = isinstance(value, dict) and len(value) > 0 and all(isinstance(key, str) for key in value)
        require(config, name, is_one and all(map(_are_widths, value.values())) and all(value.values()), rule)
        value = {key: tuple(map(plain, widths)) for key, widths in value.items()}
    return value


def _are_widths(widths: Any) -> bool:
    is_list = isinstance(widths, (list, tuple))
    return is_list and all(type(width) is int and 1 <= width <= MOST_ROWS for width in map(plain, widths))
