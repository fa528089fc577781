"""Compiles a definition: its functions and the loops around them, as one module; and writes the text of all modules."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybridppo.compiled.definition import Definition
from hybridppo.compiled.kernels import LOOPS
from hybridppo.compiled.modules import has_numba, load
from hybridppo.compiled.perceptrons import text_of_intrinsics
from hybridppo.compiled.rehearsal import rehearse
from hybridppo.compiled.sources import REMEDY, Sources
from hybridppo.errors import EnvError, pip_install

HEADER = '''"""Written by hybridppo, and made anew whenever it is missing."""
# numba {numba}, numpy {numpy}
import math

import numba
import numpy as np
{above}

'''
# `_nrt` is Numba's option for reference counts. A function without it is compiled as its caller, so all have it. Index
# checks in an environment's own functions cost no measurable time.
ABOVE = """
compiled = numba.njit(error_model="numpy", _nrt=True, boundscheck=True)
uncounted = numba.njit(error_model="numpy", _nrt=False)
inlined = numba.njit(error_model="numpy", _nrt=False, forceinline=True)
contracted = numba.njit(error_model="numpy", fastmath={{"contract"}}, _nrt=False)
STATE = numba.from_dtype(np.dtype({state}, align=True))
each = lambda of: numba.types.UniTuple(of, {kinds})
action, world = {action}, group(STATE[::1], i[:, :, ::1], i[::1], b[:, ::1], i)
rows = group(f[:, :, :], f[:, :], b[:, :], b[:, :], b[:, :], f[:, :, ::1])
"""


def build(definition: Definition) -> SimpleNamespace:
    """Compile an environment, or load it if it is compiled; returns the `LOOPS` of `kernels.py` by their names.

    Raises:
        EnvError: if Numba is missing, or cannot compile it: with the line, the reason and the remedy.
    """
    if not has_numba():
        raise EnvError(
            f"compiled environments need Numba, which is not installed: {pip_install('compiled')} "
            "(vectorization='sync' steps an environment without it)"
        )
    sources = module_text(definition)
    rehearse(definition)
    explain = partial(explained, definition.name, sources.lines)
    module = load(definition.name, sources.text, [loop.__name__ for loop in LOOPS], explain)
    return SimpleNamespace(**{loop.__name__: getattr(module, sources.names[loop.__name__]) for loop in LOOPS})


def module_text(definition: Definition) -> Sources:
    """The module of a definition."""
    action, kinds = "f" if definition.action_kind == "numbers" else "i", max(1, len(definition.policies))
    own = ABOVE.format(state=fields_of(definition), action=action, kinds=kinds)
    return whole(text_of_intrinsics() + own, definition.sources)


def whole(above: str, sources: Sources) -> Sources:
    """The text of a module: these lines above its functions, which may use `math`, `numba` and `np`."""
    import numba

    header = HEADER.format(numba=numba.__version__, numpy=np.__version__, above=above)
    offset = header.count("\n")
    lines = {offset + line: where for line, where in sources.lines.items()}
    return replace(sources, text=header + sources.text, lines=lines)


def fields_of(definition: Definition) -> list[tuple[Any, ...]]:
    """The fields of a state, as arguments of NumPy's `dtype`."""
    return [
        (name, dtype.base.str, dtype.shape) if dtype.shape else (name, dtype.str)
        for name, (dtype, *_) in (definition.state.fields or {}).items()
    ]


def explained(name: str, lines: dict[int, str], path: Path, error: Exception) -> EnvError:
    """Numba's error, with the line in the user's source."""
    found = re.findall(rf"{re.escape(path.name)}\"?,? (?:line |\()(\d+)", str(error))
    where = next((lines[int(number)] for number in found if int(number) in lines), None)
    told = [line for line in map(str.strip, str(error).splitlines()) if line and not line.startswith("Failed in ")]
    reason = "; ".join(told[:2]) if told else type(error).__name__
    return EnvError(
        f"{name} cannot be compiled{f': {where}' if where else ''}: {reason} ({type(error).__name__}). {REMEDY}; every "
        "name keeps one type, `step` returns a reward and a truth (of several agents, `reward` does), and `observe` "
        "writes numbers (docs/compiled.md)"
    )
