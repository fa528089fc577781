"""The arguments of `train` and `resume` are the fields of the options, with their types and defaults."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args

import pytest

import hybridppo
from hybridppo.settings import GROUPS, changeable_names, fields_of

WIDER = {"start_from", "distributed", "track", "self_play"}
"""Options that take more than their field holds: a path, a policy, loggers, settings."""


def require_same(function: Callable[..., Any], names: Iterable[str], *, optional: bool = False) -> None:
    """The function has these options as arguments, with their types and defaults."""
    arguments = inspect.signature(function).parameters
    for name in names:
        option = fields_of(*GROUPS)[name]
        given, kind = {*get_args(arguments[name].annotation | None)}, {*get_args(option.type | None)}
        assert given == kind or (name in WIDER and given > kind), name
        usual = inspect.Parameter.empty if option.default is MISSING else option.default
        assert arguments[name].default == (None if optional else usual), name


def test_arguments_are_the_fields_of_the_options() -> None:
    require_same(hybridppo.train, fields_of(*GROUPS))
    require_same(hybridppo.resume, changeable_names(), optional=True)


@pytest.mark.slow
def test_a_type_checker_finds_a_wrong_option(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    code = """
import hybridppo

hybridppo.train("CartPole-v1", total_steps=1, seed=0, num_workers=2, distributed=hybridppo.MultiLearner(2))
hybridppo.resume("run", total_steps=None)
hybridppo.train("CartPole-v1", total_steps=1, sede=0)  # wrong
hybridppo.train("CartPole-v1", total_steps=1, vectorization="async")  # wrong
hybridppo.train("CartPole-v1", seed=0)  # wrong
hybridppo.resume("run", frame_stack=2)  # wrong
"""
    file = tmp_path / "asks.py"
    file.write_text(code)
    command = (sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(file))
    root = Path(__file__).parents[2]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    wrong = {number for number, line in enumerate(code.splitlines(), 1) if "# wrong" in line}
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line}
    assert found == wrong, output
