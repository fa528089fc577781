"""Mutation testing: puts small mistakes into the core rooms, one at a time, and lists those that no test finds.

    python scripts/mutants.py --sample 150 --seed 0          # a sample: a quarter of an hour
    python scripts/mutants.py --files agents/ppo/loss.py     # all mutants of some files or folders
    python scripts/mutants.py --survivors                    # all mutants that have survived before

A mutant is killed by a test that fails, or by tests that take far longer than without it. Results are kept: a stopped
run continues, and a mutant of changed code is a new mutant. docs/developers/testing.md reports on survivors. The exit
code is 1 if any mutant survives. It needs a system with `fork`, and Numba for compiled code.
"""

import argparse
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
import threading
import time
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import gymnasium as gym  # noqa: F401 - loaded once, as the others, for every mutant's process to begin with
import pytest
import torch
from mutant_tests import NOT_BY_DEFAULT, TESTS, selected_tests
from mutations import Mutant, mutants_of
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
MARKS = "not slow and not gpu and not wheel"
"""Tests that need extra packages run, too, if the packages are installed: only they test compiled code."""
END = os.pipe()
LARGEST_MEMORY = 8 * 2**30  # of a process: a mistake may well ask for more and more


def _end_with_the_script() -> None:
    os.read(END[0], 1)  # nothing is ever written: it returns when the script's end of the pipe is gone
    os.killpg(0, signal.SIGKILL)


def _run(tree: Path, tests: tuple[str, ...]) -> None:
    """Run the tests of a tree, in a separate process that ends with pytest's exit code."""
    os.setsid()
    os.close(END[1])
    threading.Thread(target=_end_with_the_script, daemon=True).start()
    os.chdir(tree)
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_MEMORY, LARGEST_MEMORY))
    # A file may change twice within a second and keep its size: bytecode would be taken for that of the next mutant.
    os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode, sys.path[0] = True, str(tree)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os._exit(pytest.main(["-x", "-q", "-pno:cacheprovider", "-pno:xdist", "--basetemp=temporary", "-m", MARKS, *tests]))


class Tree:
    """A copy of the source tree, in which one set of tests runs at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ignored = shutil.ignore_patterns(".?*", "__pycache__", "build", "results")

        def left_out(folder: str, names: list[str]) -> set[str]:
            return {*ignored(folder, names), *(["runs"] if Path(folder) == ROOT else [])}  # of whoever trains here

        shutil.copytree(ROOT, path, symlinks=True, ignore=left_out)

    def start(self, tests: tuple[str, ...], mutant: Mutant | None, seconds: float) -> None:
        """Put a mutant into the tree, and begin to run tests."""
        self.mutant, self.began, self.seconds = mutant, time.monotonic(), seconds
        if mutant is not None:
            source = (ROOT / mutant.path).read_bytes()
            changed = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
            (self.path / mutant.path).write_bytes(changed)
        self.process = multiprocessing.get_context("fork").Process(target=_run, args=(self.path, tests))
        self.process.start()

    def outcome(self) -> str | None:
        """The outcome of the tests; None while they run."""
        code = self.process.exitcode
        if code is None and time.monotonic() < self.began + self.seconds:
            return None
        self.end()
        return "timeout" if code is None else "survived" if code == 0 else "killed"

    def end(self) -> None:
        """Kill the tests and all processes that they have started, and remove the mutant from the tree."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        if self.mutant is not None:
            shutil.copy(ROOT / self.mutant.path, self.path / self.mutant.path)


def run(mutants: dict[str, Mutant], results: dict[str, Any], options: argparse.Namespace) -> None:
    """Run the tests of each mutant, and save the outcomes."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        trees = [Tree(Path(folder) / str(i)) for i in range(options.jobs)]
        limits: dict[tuple[str, ...], float] = {}
        sets = sorted({selected_tests(mutant.path) for mutant in mutants.values()})
        for tests in tqdm(sets, desc="tests without a mutant"):
            trees[0].start(tests, None, 1800.0)
            trees[0].process.join(1800.0)
            if trees[0].outcome() != "survived":
                raise SystemExit("these tests fail without a mutant:\n" + (trees[0].path / "log").read_text())
            limits[tests] = 30.0 + 4.0 * (time.monotonic() - trees[0].began)
        left, running = list(mutants), dict[Tree, str]()
        with tqdm(total=len(left), desc="mutants") as bar, ExitStack() as stack:
            stack.callback(lambda: [tree.end() for tree in running])  # where this is interrupted
            while left or running:
                for tree in trees:
                    if left and tree not in running:
                        running[tree] = left.pop()
                        tests = selected_tests(mutants[running[tree]].path)
                        tree.start(tests, mutants[running[tree]], limits[tests])
                wait([tree.process.sentinel for tree in running], 1.0)
                for tree, outcome in [(tree, tree.outcome()) for tree in running]:
                    if outcome is not None:
                        key = running.pop(tree)
                        results[key] = {"outcome": outcome, **mutants[key]._asdict()}
                        options.output.write_text(json.dumps(results, indent=1, allow_nan=False))
                        bar.update()


def main() -> int:
    """Choose mutants, run their tests, and list the survivors."""
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
