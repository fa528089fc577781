"""Writes an environment's functions, and everything that they use, as the text of one module.

The text is a separate module because Numba keeps compiled code by file: it does not notice edits in imported files, and
does not find the code of closures again. So the module contains helpers as functions and constants as numbers. The text
determines the result, and its hash identifies it.
"""

import ast
import builtins
import contextlib
import copy
import inspect
import math
import random
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from hybridppo.errors import EnvError

Texts = dict[Any, Any]
"""Texts by functions: their decorators, or expressions for their calls."""
MODULES = {"math": math, "np": np}
"""Values that Numba knows, by their names in the text."""
RESERVED = (
    *("numba", "cuda", "compiled", "launched", "contracted", "uncounted", "inlined", "STATE", "f", "i", "b", "d", "u"),
    *("world", "rows", "group", "action", "each"),
    *("Any", "Callable", "cgutils", "intrinsic", "ir", "tile", "types", "wide_tile", "middle_tile"),
    *("narrow_tile", "rows_of_a_tile", "columns_of_a_tile", "os", "place_of", "tell_number", "number_told", "give_way"),
)
"""Names that the module defines besides."""
REMEDY = (
    "compiled functions may use numbers, tuples and NumPy arrays of them, math, numpy, hybridppo.compiled's random "
    "numbers, and other such functions"
)
_DRAW = "draw with compiled.uniform, compiled.normal or compiled.integers, which take `random`"
UNREPEATABLE = {np.random: _DRAW, random: _DRAW, time: "count steps in a field of the state"}
"""Modules whose results do not follow from the environment's seed, with a replacement."""
MOST_BYTES = 10**6
"""Largest size of a constant array. Numba refers to a larger one by its address, which is invalid in other processes.
"""


@dataclass(frozen=True)
class Sources:
    """Functions as text, each defined before it is used."""

    text: str
    names: dict[str, str]
    """The names of the requested functions in the text."""
    lines: dict[int, str]
    """The origin of lines of the text."""


@dataclass
class Gathering:
    """The text of functions with all that they use."""

    owner: str
    """Name for messages."""
    given: Collection[Callable[..., Any]] = ()
    """Functions that the module already has, under their own names."""
    written: Texts = field(default_factory=dict)
    """What stands for some functions: another function; or an expression for their calls, with their parameters, names
    of the module, and requested functions that come before their callers."""
    repeated: Mapping[Callable[..., Any], Mapping[str, Sequence[Callable[..., Any]]]] = field(default_factory=dict)
    """Functions whose body is repeated for each of several functions, in place of a name."""
    decorators: Texts = field(default_factory=dict)
    """Decorators of functions, or of all functions of a module by its name, without `@`; `compiled` for all others."""

    def __post_init__(self) -> None:
        self.requested: dict[str, str] = {}
        self._text: list[str] = []
        self._lines: dict[int, str] = {}
        self._names = {function: function.__name__ for function in self.given}
        self._arrays: dict[int, tuple[str, Any]] = {}  # kept, so that no other array has its id
        self._taken = {*MODULES, *RESERVED, *dir(builtins), *self._names.values()}
        self._under_way: list[Callable[..., Any]] = []

    def sources(self, functions: Mapping[str, Callable[..., Any]]) -> Sources:
        """The text with these functions, by name.

        Raises:
            EnvError: if something cannot be compiled, with the line.
        """
        for name, function in functions.items():
            self.requested[name] = self.name_of(function, name)
        return Sources("\n".join(self._text) + "\n", self.requested, self._lines)

    def name_of(self, function: Callable[..., Any], wanted: str) -> str:
        """The name of a function in the text, which is added if necessary."""
        while function in self.written:
            function = self.written[function]
        if function in self._names:
            return self._names[function]
        if function in self._under_way:
            raise EnvError(f"{self.owner} cannot be compiled: {wanted} calls itself, write a loop instead")
        self._under_way.append(function)
        where, first, tree = parsed(self.owner, function)
        name = self._free(wanted)
        each = {}
        for placeholder, others in self.repeated.get(function, {}).items():
            each = {f"{placeholder}_{number}": other for number, other in enumerate(others)}
            tree.body = [
                _Replaced({placeholder: ast.Name(one, ast.Load())}).visit(copy.deepcopy(statement))
                for one in each
                for statement in tree.body
            ]
        _Renaming(self, function, tree, where, first, each).visit(tree)
        tree.name = name
        text = ast.unparse(ast.fix_missing_locations(tree))
        start = sum(part.count("\n") + 1 for part in self._text) + 2  # a line for the decorator
        for new, old in zip(ast.walk(ast.parse(text)), ast.walk(ast.Module([tree], [])), strict=True):
            if hasattr(new, "lineno") and hasattr(old, "lineno"):
                self._lines.setdefault(start + new.lineno - 1, f"{where}:{first + old.lineno - 1}")  # statements first
        usual = self.decorators.get(function.__module__, "compiled")
        self._text += [f"@{self.decorators.get(function, usual)}", text]
        self._under_way.pop()
        self._names[function] = name
        return name

    def name_of_array(self, array: np.ndarray[Any, Any], wanted: str) -> str:
        """The name of a constant array in the text, which is added if necessary."""
        if id(array) not in self._arrays:
            name = self._free(wanted)
            self._arrays[id(array)] = name, array
            native = array.astype(array.dtype.newbyteorder("="))  # Numba takes no other
            numbers = f"bytes.fromhex({native.tobytes().hex()!r})"
            self._text.append(f"{name} = np.frombuffer({numbers}, {native.dtype.str!r}).reshape({native.shape})")
        return self._arrays[id(array)][0]

    def _free(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


class _Replaced(ast.NodeTransformer):
    """Replaces names by expressions."""

    def __init__(self, expressions: Mapping[str, ast.expr]) -> None:
        self._expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._expressions.get(node.id, node)


class _Renaming(ast.NodeTransformer):
    """Replaces the names that a function uses by their values."""

    def __init__(
        self,
        gathering: Gathering,
        function: Callable[..., Any],
        tree: ast.AST,
        where: str,
        first: int,
        more: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._gathering, self._where, self._first = gathering, where, first
        self._tree, self._defaults = tree, function.__defaults__ or ()
        code = function.__code__
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        stored = (node.id for node in names if isinstance(node.ctx, ast.Store))  # also in comprehensions
        self._locals = {*code.co_varnames, *code.co_cellvars, *stored}
        self._outside: dict[str, Any] = {**vars(builtins), **function.__globals__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a name without a value yet
                self._outside[name] = cell.cell_contents
        self._outside |= more

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), node)]
        if node is not self._tree:
            return self.visit_Lambda(node)
        defaults, node.args.defaults = node.args.defaults, []
        self.generic_visit(node)
        for default, value in zip(defaults, self._defaults, strict=True):  # as they were when the function was made
            node.args.defaults.append(_expression(_literal(value)) if _is_plain(value) else self.visit(default))
        return node

    def visit_Lambda(self, node: Any) -> ast.AST:
        """A function within the function, whose parameters hide names from outside."""
        before, parameters = self._locals, {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        self._locals = before | parameters
        found = self.generic_visit(node)
        self._locals = before
        return found

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        function = self._outside.get(name) if name not in self._locals else None
        if not isinstance(function, FunctionType):
            return self.generic_visit(node)
        expression = self._gathering.written.get(function)
        if not isinstance(expression, str):
            return self.generic_visit(node)
        parameters = zip(function.__code__.co_varnames, map(self.visit, node.args), strict=False)
        names = {name: ast.Name(known, ast.Load()) for name, known in self._gathering.requested.items()}
        written: ast.AST = _Replaced({**names, **dict(parameters)}).visit(_expression(expression))
        for part in ast.walk(written):
            ast.copy_location(part, node)
        return written

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return None
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = self._owner(node.value)
        if owner is None:
            return self.generic_visit(node)
        value = getattr(owner, node.attr, None)
        for module, remedy in UNREPEATABLE.items():
            if owner is module or value is module:
                raise self._error(node, f"{ast.unparse(node)} does not follow from the environment's seed: {remedy}")
        if owner in MODULES.values():
            return self.generic_visit(node)
        if not hasattr(owner, node.attr):
            raise self._error(node, f"{ast.unparse(node.value)} has no {node.attr}")
        return ast.copy_location(self._written(node, node.attr, value), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = node.value
        if isinstance(node.ctx, ast.Store) and isinstance(name, ast.Name) and name.id not in self._locals:
            raise self._error(node, f"{name.id} is a constant: what an environment changes is a field of its state")
        return self.generic_visit(node)

    def _owner(self, node: ast.AST) -> Any:
        """A module, class or enumeration member that is not the function's own: its attributes are constants."""
        if isinstance(node, ast.Name) and node.id not in self._locals:
            value = self._value(node)
        elif isinstance(node, ast.Attribute) and (owner := self._owner(node.value)) not in (None, *MODULES.values()):
            value = getattr(owner, node.attr, None)
        else:
            return None
        return value if isinstance(value, ModuleType | type | Enum) else None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._locals or not isinstance(node.ctx, ast.Load):
            return node
        value = self._value(node)
        if value is getattr(builtins, node.id, self):
            return node
        return ast.copy_location(self._written(node, node.id, value), node)

    def _value(self, node: ast.Name) -> Any:
        if node.id not in self._outside:
            raise self._error(node, f"there is no {node.id}")
        return self._outside[node.id]

    def _written(self, node: ast.AST, name: str, value: Any) -> ast.expr:
        """The text for a value."""
        if isinstance(value, FunctionType):
            return _expression(self._gathering.name_of(value, value.__name__))
        if inspect.isfunction(getattr(value, "py_func", None)):  # Numba's wrapper of a function
            return _expression(self._gathering.name_of(value.py_func, name))
        for known, module in MODULES.items():
            if value is module:
                return _expression(known)
            if getattr(module, name, None) is value and not isinstance(value, float):
                return _expression(f"{known}.{name}")
        if _is_plain(value):
            return _expression(_literal(value))
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size:
            if value.nbytes > MOST_BYTES:
                raise self._error(
                    node,
                    f"{name} has {value.nbytes} bytes, and a constant array has {MOST_BYTES} at most: take a smaller "
                    f"type than {value.dtype}, or fewer numbers",
                )
            return _expression(self._gathering.name_of_array(value, name))
        raise self._error(node, f"{name} is a {type(value).__name__}, which no compiled function can use: {REMEDY}")

    def _error(self, node: ast.AST, what: str) -> EnvError:
        line = self._first + getattr(node, "lineno", 1) - 1
        return EnvError(f"{self._gathering.owner} cannot be compiled: {self._where}:{line}: {what}")


def parsed(owner: str, function: Callable[..., Any]) -> tuple[str, int, ast.FunctionDef]:
    """The file of a function, its first line there, and its source."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        # That of the function, which may wrap another.
        lines, first = inspect.getsourcelines(function.__code__)
        where = inspect.getsourcefile(function.__code__) or "?"
    except (OSError, TypeError) as error:
        raise EnvError(
            f"{owner} cannot be compiled: the source of {name} cannot be read ({error}): write it in a file or a "
            "notebook, which Numba's cache needs as well"
        ) from error
    [tree] = ast.parse(textwrap.dedent("".join(lines))).body
    if not isinstance(tree, ast.FunctionDef):
        raise EnvError(f"{owner} cannot be compiled: {where}:{first}: {name} must be written as `def {name}(...)`")
    return where, first, tree


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({' '.join(f'{_literal(part)},' for part in value)})"
    if isinstance(value, np.generic):  # a value of its own type, as np.float32(...)
        return f"np.{value.dtype.name}{'_' * (value.dtype == bool)}({_literal(value.item())})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{'-' * (value < 0)}np.{abs(value)!r}"
    if not isinstance(value, bool):  # a member of an enumeration is a number
        value = int(value) if isinstance(value, int) else float(value)
    return repr(value)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
