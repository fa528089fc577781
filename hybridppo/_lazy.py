"""Names that are imported when they are first used, and the words of fields, which are read when `help` shows them.

A worker process can therefore load the package without torch.
"""

import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)


def lazy_attributes(module: str) -> tuple[list[str], Callable[[str], Any]]:
    """The sorted public names of a module, and its `__getattr__` (PEP 562), which imports them on use.

    The stub beside the module (`.pyi`), which type checkers read, says where the names are.
    """
    spec: Any = sys.modules[module].__spec__
    stub = spec.loader.get_data(f"{spec.origin.rpartition('.')[0]}.pyi").decode()
    modules = {name: where for where, name in re.findall(r"from (\S+) import (\w+) as", stub)}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        with importing_torch():
            return getattr(importlib.import_module(modules[name]), name)

    return sorted(modules), find


@contextmanager
def importing_torch() -> Iterator[None]:
    """Switch the garbage collector off while torch is imported, and let it ignore torch's objects from then on.

    Importing torch makes about 250,000 objects that live as long as the process, and starts 400 collections: a fifth of
    its time. Looking through them again takes 0.1 s in every full collection, and 0.5 s when the process ends. If torch
    is imported already, or the collector is off, nothing changes.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if "torch" in sys.modules:
            gc.freeze()


@cache
def helps(kind: type) -> dict[str, str]:
    """The help of every field of a class: the text below it in the source. Empty without the source."""
    import ast
    import inspect
    import textwrap
    from itertools import pairwise

    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:
        return {}
    found: dict[str, str] = {}
    for one, following in pairwise(node.body):  # type: ignore[attr-defined]
        if isinstance(one, ast.AnnAssign) and isinstance(following, ast.Expr):
            found[ast.unparse(one.target)] = " ".join(ast.literal_eval(following.value).split())
    return found


def showing_fields(kind: Kind) -> Kind:
    """A decorator of a class, whose docstring then also has the help of every field, for `help` and notebooks."""
    kind.__doc__ = _Docstring(kind.__doc__)  # type: ignore[assignment]
    return kind


class _Docstring:
    """A docstring that is completed when it is read."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, instance: object, kind: type) -> str:
        import textwrap

        words: dict[str, str] = {}
        for base in kind.__mro__[-2::-1]:  # all but object
            words |= helps(base)
        shown = getattr(kind, "__dataclass_fields__", words)
        lines = [f"{name}: {text}" for name, text in words.items() if name in shown]
        filled = [textwrap.fill(line, 100, initial_indent=" " * 4, subsequent_indent=" " * 8) for line in lines]
        return "\n".join([self._text or "", "", "Attributes:", *filled])
