"""A definition's functions called by Python, with errors for what compiled code would take for numbers.

state = states_of(definition)[0]
observation = observed(definition, lambda out: definition.observe(state, out))
reward, has_ended = reward_and_end(definition, "step", definition.step(state, action, random))
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import EnvError, shown

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition

Array = NDArray[Any]


class State(np.record):  # type: ignore[misc]  # final in NumPy's stubs alone
    """The state of one environment: fields are attributes, also under a name that NumPy uses itself."""

    def __getattribute__(self, name: str) -> Any:
        fields = np.void.__getattribute__(self, "dtype").names
        if name in fields:
            return self[name]
        try:
            return np.void.__getattribute__(self, name)
        except AttributeError:
            raise AttributeError(unknown_field(name, fields)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        fields = np.void.__getattribute__(self, "dtype").names
        if name not in fields:
            raise AttributeError(unknown_field(name, fields))
        self[name] = value


def unknown_field(name: str, fields: tuple[str, ...]) -> str:
    """What is wrong with a field of this name."""
    return f"the state has no field {name!r}: its fields are {', '.join(fields)}"


def states_of(definition: "Definition", content: bytes | None = None) -> Array:
    """The state of one environment, `[1]`: zeros, or this content."""
    dtype = np.dtype((State, definition.state))
    return np.zeros(1, dtype) if content is None else np.frombuffer(bytearray(content), dtype)


def observed(definition: "Definition", observe: Callable[[Array], Any]) -> Array:
    """What a call of `observe` writes.

    Raises:
        EnvError: naming the first number that it does not write.
    """
    out = np.full(definition.observation_space.shape, np.nan, np.float32)
    observe(out)
    if np.isnan(out).any():
        again = np.zeros_like(out)
        observe(again)
        forgotten = np.flatnonzero(np.isnan(out) & ~np.isnan(again))  # not where it writes nan itself
        if len(forgotten):
            raise EnvError(
                f"{place_of(definition, 'observe')} does not write out[{forgotten[0]}]: an observation has {len(out)} "
                "numbers, write each of them on every path"
            )
    return out


def reward_and_end(definition: "Definition", name: str, returned: Any) -> tuple[float, bool]:
    """The reward and the truth that `step` or `reward` returned.

    Raises:
        EnvError: if it returned anything else.
    """
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or not _is_number(returned[0]) or not isinstance(returned[1], bool | np.bool_):
        raise EnvError(f"{place_of(definition, name)} returned {_shown(returned)}: {wanted_of(name)}")
    return float(returned[0]), bool(returned[1])


def truth(definition: "Definition", name: str, returned: Any) -> bool:
    """The truth that `end` returned.

    Raises:
        EnvError: if it returned anything else.
    """
    if not isinstance(returned, bool | np.bool_):
        raise EnvError(f"{place_of(definition, name)} returned {_shown(returned)}: {wanted_of(name)}")
    return bool(returned)


def wanted_of(name: str) -> str:
    """What a function is to return."""
    if name == "end":
        return "`end` returns a truth, whether the episode is over for all: True or False"
    what = "the episode is over" if name == "step" else "the agent leaves"
    return f"`{name}` returns a reward and a truth, in this order: a number, and True or False for whether {what}"


def place_of(definition: "Definition", name: str) -> str:
    """A function, and where it was written."""
    code = definition.functions[name].__code__
    return f"{definition.name}.{name} ({code.co_filename}:{code.co_firstlineno})"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _shown(returned: Any) -> str:
    """Without NumPy's names of its types."""
    if isinstance(returned, tuple):
        return shown(tuple(part.item() if isinstance(part, np.generic) else part for part in returned))
    return shown(returned.item() if isinstance(returned, np.generic) else returned)
