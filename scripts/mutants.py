"""Mutation testing: small mistakes put into the core rooms, one at a time, and which of them no test sees.

    python scripts/mutants.py --sample 150 --seed 0          # some of all: a quarter of an hour
    python scripts/mutants.py --files agents/ppo/losses.py   # all of some files or folders
    python scripts/mutants.py --survivors                    # those again that have survived before

A mutant is killed by a test that fails, or by tests that take far longer than without it. Results are kept: a run that
was broken off goes on where it was, and what has changed since is a new mutant. Survivors that were looked at are in
docs/testing.md. Exit code 1 where any survives. Needs a system with `fork`.
"""

import argparse
import ast
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym  # noqa: F401 - these are loaded once, for every mutant's process to begin with
import pytest
import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
RESUME = "tests/hybridppo/test_resume.py::test_"
SOME_TRAINING = ("tests/hybridppo/test_golden.py", "tests/runners/samplers/test_episode_sampler.py")
RESTARTS = tuple(
    f"tests/runners/test_environment_faults.py::test_restart_{what}"
    for what in (
        "drops_the_partial_episode_and_counts_it", "forgets_what_an_episode_gained_in_rollouts_before",
        "after_an_episode_drops_nothing", "with_no_step_left_is_an_error", "with_no_step_left_samples_again",
    )
)  # fmt: skip
TESTS: dict[str, tuple[str, ...]] = {
    # Whose mistakes each test is to see: of the rows that fit a file, the longest. The quickest tests come first.
    "hybridppo/spaces": ("tests/hybridppo/spaces", "tests/agents/ppo/test_ppo.py", "tests/runners/test_evaluation.py"),
    "hybridppo/rollouts": ("tests/hybridppo/rollouts", "tests/agents/ppo/test_ppo.py", "tests/runners/samplers"),
    "hybridppo/networks/numpy_forms": ("tests/hybridppo/networks", "tests/hybridppo/spaces", *SOME_TRAINING),
    "agents/ppo": (
        "tests/agents/ppo", *SOME_TRAINING, RESUME + "an_update_that_is_broken_off_leaves_the_agent_as_it_was"
    ),
    "agents/ppo/losses.py": ("tests/agents/ppo/test_losses.py", "tests/agents/ppo"),
    "runners/samplers": ("tests/runners/samplers", "tests/hybridppo/test_seeds.py", *RESTARTS),
    "runners/samplers/stepping.py": (
        "tests/runners/samplers", "tests/runners/test_environment_faults.py::test_slow_steps_are_no_hang",
        "tests/hybridppo/environments/test_env_state.py", RESUME + "ten_stops_change_nothing",
    ),
    "hybridppo/placements": (
        "tests/hybridppo/placements/test_mirroring.py", "tests/hybridppo/placements/test_placements.py",
        "tests/runners/test_accounting.py",
    ),
    "hybridppo/placements/auto": ("tests/hybridppo/placements",),
}  # fmt: skip
NOT_BY_DEFAULT = ("hybridppo/placements/auto", "agents/ppo/captured_steps.py", "agents/ppo/config.py")
SWAPS: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
LARGEST_MEMORY = 8 * 2**30  # of a process: a mistake may well ask for more and more


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
    """Pieces of a tree, each with what to write instead; neither types, nor what is only said."""
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


def tests_of(mutant: Mutant) -> tuple[str, ...]:
    """The tests that are to see a mistake in its file."""
    return TESTS[max((room for room in TESTS if mutant.path.startswith(room)), key=len)]


def _run(tree: Path, tests: tuple[str, ...]) -> None:
    """In a process of its own: the tests of a tree. Its exit code is pytest's."""
    os.setsid()
    os.chdir(tree)
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_MEMORY, LARGEST_MEMORY))
    # A file may change twice within a second and keep its size: bytecode would be taken for that of the next mutant.
    os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode, sys.path[0] = True, str(tree)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os._exit(pytest.main(["-x", "-q", "-pno:cacheprovider", "-pno:xdist", "--basetemp=temporary", *tests]))


class Tree:
    """A copy of the tree, in which one set of tests runs at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ignored = shutil.ignore_patterns(".?*", "__pycache__", "build", "results", "runs")
        shutil.copytree(ROOT, path, symlinks=True, ignore=ignored)

    def start(self, tests: tuple[str, ...], mutant: Mutant | None, seconds: float) -> None:
        """Begin to run tests, with a mutant in place."""
        self.mutant, self.began, self.seconds = mutant, time.monotonic(), seconds
        if mutant is not None:
            source = (ROOT / mutant.path).read_bytes()
            changed = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
            (self.path / mutant.path).write_bytes(changed)
        self.process = multiprocessing.get_context("fork").Process(target=_run, args=(self.path, tests))
        self.process.start()

    def outcome(self) -> str | None:
        """How they ended; None while they run."""
        code = self.process.exitcode
        if code is None and time.monotonic() < self.began + self.seconds:
            return None
        with suppress(ProcessLookupError):  # and whatever they have started
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        if self.mutant is not None:
            shutil.copy(ROOT / self.mutant.path, self.path / self.mutant.path)
        return "timeout" if code is None else "survived" if code == 0 else "killed"


def run(mutants: dict[str, Mutant], results: dict[str, Any], options: argparse.Namespace) -> None:
    """Run the tests of each mutant, and keep what came of it."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        trees = [Tree(Path(folder) / str(i)) for i in range(options.jobs)]
        limits: dict[tuple[str, ...], float] = {}
        for tests in tqdm(sorted(set(map(tests_of, mutants.values()))), desc="tests without a mutant"):
            trees[0].start(tests, None, 1800.0)
            trees[0].process.join(1800.0)
            if trees[0].outcome() != "survived":
                raise SystemExit("these tests fail without a mutant:\n" + (trees[0].path / "log").read_text())
            limits[tests] = 30.0 + 4.0 * (time.monotonic() - trees[0].began)
        left, running = list(mutants), dict[Tree, str]()
        with tqdm(total=len(left), desc="mutants") as bar:
            while left or running:
                for tree in trees:
                    if left and tree not in running:
                        running[tree] = left.pop()
                        tests = tests_of(mutants[running[tree]])
                        tree.start(tests, mutants[running[tree]], limits[tests])
                wait([tree.process.sentinel for tree in running], 1.0)
                for tree, outcome in [(tree, tree.outcome()) for tree in running]:
                    if outcome is not None:
                        key = running.pop(tree)
                        results[key] = {"outcome": outcome, **mutants[key]._asdict()}
                        options.output.write_text(json.dumps(results, indent=1))
                        bar.update()


def main() -> int:
    """Choose, run, and list the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", help="files or folders; the core rooms where none are named")
    parser.add_argument("--sample", type=int, help="how many, at random; all where it is not given")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--survivors", action="store_true", help="run those again that have survived before")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at once")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "mutants.json", help="where results are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    found = [path for root in options.files or TESTS for path in (ROOT / root, *(ROOT / root).rglob("*.py"))]
    names = sorted({str(path.relative_to(ROOT)) for path in found if path.suffix == ".py"})
    mutants: dict[str, Mutant] = {}
    for name in names:
        if options.files or not name.startswith(NOT_BY_DEFAULT):
            source = (ROOT / name).read_bytes()
            for mutant in mutants_of(name, source):  # its key names it for as long as the file stays as it is
                mutants[hashlib.sha256(source + str(mutant).encode()).hexdigest()[:16]] = mutant
    if options.sample is not None:
        mutants = dict(random.Random(options.seed).sample([*mutants.items()], min(options.sample, len(mutants))))
    if options.survivors:
        mutants = {key: m for key, m in mutants.items() if results.get(key, {}).get("outcome") == "survived"}
    todo = {key: m for key, m in mutants.items() if options.survivors or key not in results}
    if todo:
        run(todo, results, options)
    outcomes = [results[key]["outcome"] for key in mutants]
    for m in sorted(m for key, m in mutants.items() if results[key]["outcome"] == "survived"):
        print(f"{m.path}:{m.line}: {' '.join(m.before.split())}  ->  {' '.join(m.after.split())}")
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("killed", "timeout", "survived"))
    print(f"{len(mutants)} mutants: {counts}")
    return int("survived" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
