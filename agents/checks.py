"""Checks of configurations. Each refuses a field with its rule and its value."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from hybridppo.errors import ConfigurationError, shown
from hybridppo.networks.mlp import ACTIVATIONS
from hybridppo.system.validation import plain

LARGEST_FLOAT = 3.4028234663852886e38
"""The largest float32, the type of all arithmetic."""
MOST_ROWS = 2**31 - 1
"""The largest int32."""
MOST_THREADS = 1024


def require(config: Any, field: str, holds: bool, rule: str) -> None:
    """Refuse a field if a rule does not hold.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    if not holds:
        raise ConfigurationError(f"{field} {rule}, got {shown(getattr(config, field))}")


def check_types(
    config: Any, *, optional: Collection[str] = (), whole: Collection[str] = (), elsewhere: Collection[str] = ()
) -> None:
    """Refuse fields of another type than their default's; convert NumPy's numbers, and integers for fields of floats.

    Args:
        config: a frozen dataclass, during its creation.
        optional: fields that may be None, or numbers above 0.
        whole: fields with the default None that are integers otherwise.
        elsewhere: fields that are checked elsewhere.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    for field in fields(config):
        value, default = plain(getattr(config, field.name)), field.default
        if field.name in elsewhere or (field.name in optional and value is None):
            continue
        if isinstance(default, bool):
            require(config, field.name, isinstance(value, bool), "must be True or False")
        elif isinstance(default, int) or field.name in whole:
            require(config, field.name, type(value) is int, "must be a whole number")
        elif isinstance(default, float) or default is None:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            in_range = is_number and -LARGEST_FLOAT <= value <= LARGEST_FLOAT  # and not NaN
            is_schedule = callable(value) or (isinstance(value, str) and value.isalpha())  # as elsewhere
            remedy = f" (train takes schedules={{{field.name!r}: ...}})" if is_schedule else ""
            require(config, field.name, in_range, f"must be a finite number of 32 bits{remedy}")
            value = float(value)  # for an integer, torch would use 64 bits
        if field.name in optional:
            require(config, field.name, value > 0, "must be None or above 0")
        object.__setattr__(config, field.name, value)


def check_encoders(config: Any) -> None:
    """Refuse invalid `encoder_sizes`; lists of sizes become tuples.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    sizes = config.encoder_sizes
    if sizes is None:
        return
    rule = "must be None, or a dict of a part's key to the widths of its layers, each a whole number of at least 1"
    is_one = isinstance(sizes, dict) and len(sizes) > 0 and all(isinstance(key, str) for key in sizes)
    require(config, "encoder_sizes", is_one and all(map(_are_widths, sizes.values())), rule)
    object.__setattr__(config, "encoder_sizes", {key: tuple(map(plain, widths)) for key, widths in sizes.items()})


def check_keys(config: Any, field: str) -> None:
    """Refuse a field that is not None and not a tuple of keys; a list of keys becomes a tuple.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    keys = getattr(config, field)
    if keys is None:
        return
    are_keys = isinstance(keys, (list, tuple)) and len(keys) > 0 and all(isinstance(key, str) for key in keys)
    require(config, field, are_keys and len({*keys}) == len(keys), "must be None, or a tuple of keys, each once")
    object.__setattr__(config, field, tuple(keys))


def _are_widths(widths: Any) -> bool:
    is_list = isinstance(widths, (list, tuple)) and len(widths) > 0
    return is_list and all(type(width) is int and 1 <= width <= MOST_ROWS for width in map(plain, widths))


def check_hidden_layers(config: Any) -> None:
    """Refuse invalid `hidden_sizes` and `activation`; a list of sizes becomes a tuple.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    sizes = config.hidden_sizes
    require(config, "hidden_sizes", isinstance(sizes, (list, tuple)), "must be a tuple of whole numbers")
    sizes = tuple(map(plain, sizes))
    object.__setattr__(config, "hidden_sizes", sizes)
    require(config, "hidden_sizes", all(type(size) is int for size in sizes), "must be whole numbers")
    require(config, "hidden_sizes", all(size >= 1 for size in sizes), "must all be at least 1")
    require(config, "hidden_sizes", all(size <= MOST_ROWS for size in sizes), f"must all be at most {MOST_ROWS}")
    names = tuple(ACTIVATIONS)
    require(config, "activation", config.activation in names, f"must be one of {', '.join(names)}")
