"""Which cases of a test run by default; the others run by `make extras`, or those that take minutes by `make slow`.

Every member of a kind is in at least one default test of where it may go wrong. Left out are its combinations
with what others in the same test have covered already.
"""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def only_by_default(
    chosen: Collection[str], cases: Iterable[Any], others: pytest.MarkDecorator = pytest.mark.extras
) -> list[Any]:
    """The cases, plain values or `pytest.param`s; those whose name is not in `chosen` get the mark `others`.

    A case is named by its id, or else by its values with commas between.
    """
    found = []
    names = []
    for case in cases:
        param = case if hasattr(case, "marks") else pytest.param(*(case if isinstance(case, tuple) else (case,)))
        name = param.id if param.id is not None else ", ".join(map(str, param.values))
        names.append(name)
        marks = param.marks if name in chosen else (*param.marks, others)
        found.append(pytest.param(*param.values, id=param.id, marks=marks))
    missing = [name for name in chosen if name not in names]
    assert not missing, f"no such case: {missing}, among {names}"
    return found
