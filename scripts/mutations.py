"""Small mistakes in a file: other operators, other constants, negated conditions, missing statements.

`mutants.py` puts them into the file one at a time.
"""

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

SWAPS: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Mutant(NamedTuple):
    """A change of the bytes from `start` to `end` of a file."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str


def mutants_of(path: str, source: bytes) -> Iterator[Mutant]:
    """Every mutant of a file."""
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
    for node, after in _changes(ast.parse(source)):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(path, node.lineno, start, end, source[start:end].decode(), after)


def _changes(node: Any) -> Iterator[tuple[Any, str]]:
    """Pieces of a syntax tree, each with its replacement; type annotations, docstrings and messages are left out."""
    kind, operator = type(node), type(getattr(node, "op", None))
    if kind in (ast.JoinedStr, ast.Assert) or (kind is ast.If and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    if kind is ast.Compare:
        for i, one in enumerate(node.ops):
            ops = [*node.ops[:i], SWAPS[type(one)](), *node.ops[i + 1 :]]
            yield node, f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
    elif operator in SWAPS:  # of two numbers, of truths, or in an assignment
        other = ast.unparse(kind(**{**vars(node), "op": SWAPS[operator]()}))
        yield node, other if kind is ast.AugAssign else f"({other})"
    elif kind is ast.UnaryOp:
        yield node, f"({ast.unparse(node.operand)})"
    elif kind is ast.Constant and type(node.value) in (bool, int, float):
        yield node, str(_other(node.value))
    elif kind in (ast.If, ast.IfExp, ast.While) and type(node.test) in (ast.Name, ast.Attribute, ast.Call):
        yield node.test, f"(not {ast.unparse(node.test)})"
    # Without a local name the rest fails by itself: only what others see is worth leaving out.
    is_seen = kind is ast.Assign and type(node.targets[0]) in (ast.Attribute, ast.Subscript)
    is_call = kind is ast.Expr and type(node.value) is ast.Call
    if is_seen or is_call or kind in (ast.AugAssign, ast.Raise, ast.Continue, ast.Break):
        yield node, "pass"
    for name, value in ast.iter_fields(node) if kind is not ast.Raise else ():
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                yield from _changes(child) if isinstance(child, ast.AST) else ()


def _other(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2.0 * value or 1.0
