"""Mutation testing makes only mistakes that a file might contain."""

import ast
from pathlib import Path

import pytest

from scripts.mutant_tests import IF_NAMED, TESTS, selected_tests
from scripts.mutations import mutants_of

ROOT = Path(__file__).parents[1]


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.before, mutant.after) for mutant in mutants_of("a.py", source.encode())]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", [("a < b", "(a <= b)")]),
        ("0 < a <= b", [("0 < a <= b", "(0 <= a <= b)"), ("0 < a <= b", "(0 < a < b)"), ("0", "1")]),
        ("a - 0.5", [("a - 0.5", "(a + 0.5)"), ("0.5", "1.0")]),
        ("a += b", [("a += b", "a -= b"), ("a += b", "pass")]),
        ("a and not b", [("a and not b", "(a or not b)"), ("not b", "(b)")]),
        ("f(True)", [("f(True)", "pass"), ("True", "False")]),
        ("if f(a):\n  g = a", [("f(a)", "(not f(a))")]),
        ("a.b = c", [("a.b = c", "pass")]),
        ("raise E(f'{a + 1}')", [("raise E(f'{a + 1}')", "pass")]),
        ("é = ü * 2  # letters of two bytes", [("ü * 2", "(ü / 2)"), ("2", "3")]),
        ("'said'\na: int = b\ndef f(a: X | Y) -> X | Y: return a", []),
    ],
)
def test_what_is_changed(source: str, expected: list[tuple[str, str]]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "path", ["agents/ppo/loss.py", "runners/samplers/under_way.py", "hybridppo/rollouts/advantages.py"]
)
def test_each_is_python_and_another_than_the_file(path: str) -> None:
    source = (ROOT / path).read_bytes()
    for mutant in mutants_of(path, source):
        changed = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
        assert source[: mutant.start].count(b"\n") + 1 == mutant.line


def test_every_source_has_tests_that_are_to_find_its_mistakes() -> None:
    paths = [path for package in ("agents", "hybridppo", "runners") for path in (ROOT / package).rglob("*.py")]
    sources = {path.resolve().relative_to(ROOT).as_posix() for path in paths}
    assert len(sources) > 100
    tests = {test.partition("::")[0] for source in sources for test in selected_tests(source)}
    assert [test for test in tests if not (ROOT / test).exists()] == []
    assert [room for room in (*TESTS, *IF_NAMED) if not (ROOT / room).exists()] == []


def test_a_folder_without_tests_is_named() -> None:
    with pytest.raises(SystemExit, match=r"^hybridppo/new_room/a.py: TESTS .* no row for hybridppo/new_room/"):
        selected_tests("hybridppo/new_room/a.py")
