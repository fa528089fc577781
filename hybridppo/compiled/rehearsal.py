"""Checks a definition before it is compiled: its source, and some steps in Python.

    rehearse(definition)            # an EnvError names the file, the line and the fault
    problems = phases_that_race(definition)

Compiled code does not notice many errors: an index outside of an array, an entry of an observation that is not written,
a boolean in place of a reward. Python finds them in milliseconds. In code that the rehearsal does not reach, compiled
code on the CPU checks every index (`building.py`), and the training checks that numbers are finite.
"""

import ast
import copy
import dis
import os
import traceback
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from hybridppo.compiled.definition import Definition
from hybridppo.compiled.python_form import PythonAgents, PythonForm, place_of, unknown_field, wanted_of
from hybridppo.compiled.sources import REMEDY, parsed
from hybridppo.errors import EnvError, failures, shown_error

STEPS, FEWEST_STEPS = 200, 2
"""Steps with one agent. With several agents there are fewer steps, but at least two."""
OF_ALL = ("end", "observe_state")
"""Functions of an environment that are not called for an agent."""
_NOT_THE_USERS = tuple(f"{Path(module).parent}{os.sep}" for module in (__file__, np.__file__))


def rehearse(definition: Definition) -> None:
    """Look for errors in a definition.

    Raises:
        EnvError: with the first one.
    """
    for name in definition.functions:
        _look_at_source(definition, name)
    try:
        with np.errstate(all="ignore"):
            _step(definition)
    except EnvError:
        raise
    except (ArithmeticError, ValueError):
        # Compiled code continues with inf or NaN, which the training detects; the environment's own `raise` is
        # compiled.
        return
    except failures() as error:
        raise _explained(definition, error) from error


def _look_at_source(definition: Definition, name: str) -> None:
    """Check the source, including paths that no step may reach."""
    function, fields = definition.functions[name], definition.state.names or ()
    where, first, tree = parsed(definition.name, function)
    state = function.__code__.co_varnames[1 if definition.policies and name not in OF_ALL else 0]
    returns = name in ("step", "reward", "end")
    if returns and _may_return_none(function.__code__):
        raise EnvError(f"{place_of(definition, name)} returns nothing on some path: {wanted_of(name)}")
    for node in ast.walk(tree):
        line = f"{where}:{first + getattr(node, 'lineno', 1) - 1}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == state:
            if node.attr not in fields:
                raise EnvError(f"{definition.name} cannot be compiled: {line}: {unknown_field(node.attr, fields)}")
        elif returns and isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            values = node.value.elts
            if len(values) != 2 or _is_truth(values[0]) or _is_number(values[1]):
                text = ast.unparse(node)
                raise EnvError(f"{definition.name} cannot be compiled: {line}: `{text}`: {wanted_of(name)}")


def _may_return_none(code: CodeType) -> bool:
    """Whether a path through a function ends without a return value."""
    before: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST" and instruction.argval is None:
            return True
        if instruction.opname == "RETURN_VALUE" and before.opname == "LOAD_CONST" and before.argval is None:
            return True
        before = instruction
    return False


def _is_truth(node: ast.expr) -> bool:
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_not or isinstance(node, ast.Compare) or (isinstance(node, ast.Constant) and isinstance(node.value, bool))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, bool)


def _step(definition: Definition) -> None:
    """Make random steps with their own seed, of the first two and the last two agents of each kind: all take long."""
    environment, counts = definition(), definition.policies.values() or [1]
    space = copy.deepcopy(definition.action_space)  # whose random numbers do not change
    space.seed(0)
    few = [
        first + number
        for first, count in zip(accumulate(counts, initial=0), counts, strict=False)
        for number in sorted({0, 1, count - 2, count - 1} & {*range(count)})
    ]
    there: list[int] = []
    for step in range(max(FEWEST_STEPS, STEPS // len(environment.present))):
        if not there:
            environment.begin(None if step else 0)
            there = few
            for agent in there:
                environment.observation(agent)
        environment.advance({agent: space.sample() for agent in there})
        if isinstance(environment, PythonAgents) and environment.state_space is not None:
            environment.state()
        there = [agent for agent in few if environment.present[agent]]


def _explained(definition: Definition, error: BaseException) -> EnvError:
    """The error of a function, with its line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)] or frames
    where = f"{own[-1].filename}:{own[-1].lineno}"
    remedy = "" if isinstance(error, IndexError) else f": {REMEDY}"
    return EnvError(
        f"{definition.name} cannot be compiled: {where}: `{own[-1].line}`: {shown_error(error)} (found by "
        f"stepping it in Python){remedy}"
    )


class _InAnyOrder(PythonForm):
    """Runs each phase twice from the same state, with two orders of agents, and notes differences."""

    def __init__(self, definition: Definition, seed: int) -> None:
        super().__init__(definition)
        self._order = np.random.default_rng(seed)
        self.problems: dict[str, str] = {}

    def _run(self, phase: Any, actions: Mapping[int, Any]) -> None:
        before, randoms = self._states.copy(), self._randoms.copy()
        super()._run(phase, actions)
        once, drawn = self._states.copy(), self._randoms.copy()
        self._states[:], self._randoms[:] = before, randoms
        super()._run(phase, {agent: actions[agent] for agent in self._order.permutation(list(actions)).tolist()})
        for name in self.definition.state.names or ():
            one, other = once[name][0], self._states[name][0]
            if not np.array_equal(one, other, equal_nan=True):
                agent = self.definition.agents[int(np.argwhere(one != other)[0][0])]
                self.problems.setdefault(
                    phase.__name__,
                    f"phase {phase.__name__} gives another {name} of {agent} where agents act in another order: a "
                    "phase may write its own agent's fields alone, and of others read only fields that no agent writes "
                    "in it (make two phases of it)",
                )
        self._states[:], self._randoms[:] = once, drawn


def phases_that_race(definition: Definition, steps: int = 50, seed: int = 0) -> list[str]:
    """A sentence for each phase of a definition that depends on the order of its agents, which must not be.

    Args:
        definition: a definition with several agents.
        steps: number of random steps; each phase of a step is run twice.
        seed: seed of starts, actions and orders.
    """
    environment, space = _InAnyOrder(definition, seed), definition.action_space
    space.seed(seed)
    environment.begin(seed)
    for _ in range(steps):
        if not environment.present.any():
            environment.begin(None)
        environment.advance({agent: space.sample() for agent in np.flatnonzero(environment.present).tolist()})
    return list(environment.problems.values())
