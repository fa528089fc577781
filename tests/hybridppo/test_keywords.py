"""The options that editors and type checkers see are those that `train` and `resume` take."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import get_type_hints, is_typeddict

from hybridppo.environments.options import EnvironmentOptions
from hybridppo.keywords import EnvironmentKeywords, ResumeKeywords, TrainKeywords
from hybridppo.options import GROUPS, changeable_names

WIDER = {"start_from", "distributed", "track", "self_play"}
"""Options that take more than their field holds: a path, a policy, loggers, settings."""


def types_of(*groups: type) -> dict[str, Any]:
    return {name: kind for group in groups for name, kind in get_type_hints(group).items()}


def require_same(keywords: Any, expected: dict[str, Any]) -> None:
    assert is_typeddict(keywords)
    found = get_type_hints(keywords)
    assert found.keys() == expected.keys()
    differing = {name for name, kind in expected.items() if found[name] != kind}
    assert differing <= WIDER
    for name in differing:  # wider, and not another type
        assert {*getattr(expected[name], "__args__", (expected[name],))} < {*found[name].__args__}


def test_keywords_are_the_fields_of_the_options() -> None:
    require_same(EnvironmentKeywords, types_of(EnvironmentOptions))
    require_same(TrainKeywords, types_of(*GROUPS))
    require_same(ResumeKeywords, {name: types_of(*GROUPS)[name] | None for name in changeable_names()})
    assert TrainKeywords.__required_keys__ == {"total_steps"}


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
