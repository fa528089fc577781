"""Suggests the name that was probably meant by an unknown one."""

import difflib
import functools
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def meant_by(name: str, ours: Iterable[str]) -> str | None:
    """The name that is most like another one; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, list(ours), 1)), None)


def names_what_was_meant(kind: Class) -> Class:
    """Let the errors of a configuration's class suggest the field that was meant."""
    init: Callable[..., None] = kind.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def checked(self: Any, *arguments: Any, **settings: Any) -> None:
        known = {each.name for each in fields(self)}
        for name in settings:
            if name not in known:
                near = meant_by(name, known)
                hint = f": did you mean {near}?" if near else ""
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}{hint}")
        init(self, *arguments, **settings)

    kind.__init__ = checked  # type: ignore[misc]
    return kind
