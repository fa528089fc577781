"""Checks of configurations by their fields' types and by rules. Each refuses a field with its rule and its value."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hybridppo.errors import ConfigurationError, shown
from hybridppo.system.validation import held_by_json, plain

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


def check_fields(config: Any, rules: Mapping[str, tuple[Rule, ...]]) -> None:
    """Refuse fields of another type than theirs, or against a rule; None is allowed if the type says so.

    NumPy's numbers become Python's, integers in fields of floats become floats, and lists become tuples.

    Args:
        config: a frozen dataclass, during its creation.
        rules: by field.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    for name, kind, may_be_none in _kinds_of(config.__class__):
        value = plain(getattr(config, name))
        if value is not None or not may_be_none:
            value = _of_kind(config, name, kind, value, "None or " if may_be_none else "")
        object.__setattr__(config, name, value)
    for name, of_field in rules.items():
        for text, holds in of_field:
            value = getattr(config, name)
            require(config, name, value is None or holds(value), text)


@cache
def _kinds_of(config_type: Any) -> list[tuple[str, Any, bool]]:
    """The name of each field, its type without None, and whether it may be None."""
    hints, found = get_type_hints(config_type), []
    for field in fields(config_type):
        kind, may_be_none = hints[field.name], NoneType in get_args(hints[field.name])
        found.append((field.name, get_args(kind)[0] if may_be_none else kind, may_be_none))
    return found


def _of_kind(config: Any, name: str, kind: Any, value: Any, none: str) -> Any:
    """The value of a field in the type of the field."""
    if kind is bool:
        require(config, name, isinstance(value, bool), "must be True or False")
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
        require(config, name, value in choices, f"must be {none}one of {', '.join(choices)}")
    elif kind == tuple[int, ...]:
        rule = "must be a tuple of whole numbers, each from 1 to"
        require(config, name, _are_widths(value), f"{rule} {MOST_ROWS}")
        value = tuple(map(plain, value))
    elif kind == tuple[str, ...]:
        are_keys = isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(key, str) for key in value)
        require(config, name, are_keys and len({*value}) == len(value), "must be None, or a tuple of keys, each once")
        value = tuple(value)
    elif kind == dict[str, Any]:
        is_object = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        require(config, name, is_object, "must be a dict by name")
        try:
            value = held_by_json(dict(value))
        except ValueError as error:
            require(config, name, False, f"must be what JSON can hold ({error})")
    elif get_origin(kind) is dict:
        rule = "must be None, or a dict of a part's key to the widths of its layers, each a whole number of at least 1"
        is_one = isinstance(value, dict) and len(value) > 0 and all(isinstance(key, str) for key in value)
        require(config, name, is_one and all(map(_are_widths, value.values())) and all(value.values()), rule)
        value = {key: tuple(map(plain, widths)) for key, widths in value.items()}
    return value


def _are_widths(widths: Any) -> bool:
    is_list = isinstance(widths, (list, tuple))
    return is_list and all(type(width) is int and 1 <= width <= MOST_ROWS for width in map(plain, widths))
