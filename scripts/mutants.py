"""Mutation testing: small mistakes put into the core rooms, one at a time, and which of them no test sees.

    python scripts/mutants.py --sample 150 --seed 0          # some of all: a quarter of an hour
    python scripts/mutants.py --files agents/ppo/loss.py   # all of some files or folders
    python scripts/mutants.py --survivors                    # those again that have survived before

A mutant is killed by a test that fails, or by tests that take far longer than without it. Results are kept: a run that
was broken off goes on where it was, and what has changed since is a new mutant. Survivors that were looked at are in
docs/developers/testing.md. Exit code 1 where any survives. Needs a system with `fork`, and Numba for what is compiled.
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
from mutations import Mutant, mutants_of
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
# All but `test_serialization.py`, which trains in every space and takes minutes.
SPACES = " ".join(
    f"hybridppo/spaces/{path.name}"
    for path in sorted((ROOT / "tests/hybridppo/spaces").glob("test_*.py"))
    if path.name != "test_serialization.py"
)
# The tests that should find the mistakes of each room or file, the quickest first; the longest row that fits holds.
TESTS: dict[str, str] = {
    "hybridppo/spaces": f"{SPACES} agents/ppo/test_ppo.py runners/test_evaluation.py",
    "hybridppo/rollouts": "hybridppo/rollouts agents/ppo/test_ppo.py runners/samplers",
    "hybridppo/networks/numpy_forms": f"hybridppo/networks {SPACES} hybridppo/test_golden.py",
    "hybridppo/networks/numpy_forms/recurrent.py": "agents/ppo/test_memory.py",
    "hybridppo/rollouts/replay.py": "hybridppo/rollouts/test_replay.py runners/test_off_policy.py",
    "hybridppo/spaces/deterministic.py": "hybridppo/spaces/test_deterministic.py agents/ddpg/test_ddpg.py",
    "agents/ddpg": "agents/ddpg agents/test_every_agent.py",
    "agents/common/loop.py": "agents/ppo/test_backends.py agents/ddpg agents/ppo agents/test_every_agent.py",
    "runners/off_policy.py": "runners/test_off_policy.py agents/test_every_agent.py "
    "runners/test_many_agents_everywhere.py::test_agents_with_a_replay_buffer_say_that_they_learn_from_one",
    "agents/ppo": "agents/ppo hybridppo/networks/test_modes.py runners/samplers/test_episode_sampler.py "
    "hybridppo/test_golden.py "
    "hybridppo/training/test_resume.py::test_an_update_that_is_broken_off_leaves_the_agent_as_it_was",
    "agents/ppo/loss.py": "agents/ppo/test_losses.py agents/ppo",
    "agents/ppo/memory.py": "test_faults_of_training.py hybridppo/spaces/test_images.py agents/ppo",
    "hybridppo/rollouts/advantages.py": "hybridppo/rollouts/test_advantages.py agents/ppo/test_pool.py",
    **dict.fromkeys(
        ("runners/samplers/fused.py", "runners/samplers/fused_actor.py"),
        "hybridppo/compiled runners/samplers",
    ),
    "runners/samplers/in_process.py": "runners/samplers agents/ppo/test_memory.py",
    "runners/samplers/device_base.py": "runners/samplers/test_tensor_sampler.py hybridppo/test_tensor_environments.py",
    "agents/ppo/stacked_rows.py": "agents/ppo/test_stacked_rows.py hybridppo/test_frame_stack.py",
    "hybridppo/rollouts/memory.py": "hybridppo/rollouts/test_episode_memory.py agents/ppo/test_memory.py",
    "runners/samplers": "runners/samplers hybridppo/system/test_seeds.py "
    "runners/test_environment_faults.py::test_restart_drops_the_partial_episode_and_counts_it "
    "runners/test_environment_faults.py::test_restart_forgets_what_an_episode_gained_in_rollouts_before "
    "runners/test_environment_faults.py::test_restart_after_an_episode_drops_nothing "
    "runners/test_environment_faults.py::test_restart_with_no_step_left_is_an_error "
    "runners/test_environment_faults.py::test_restart_with_no_step_left_samples_again",
    "runners/samplers/stepping.py": "runners/samplers hybridppo/environments/test_env_state.py "
    "runners/test_environment_faults.py::test_slow_steps_are_no_hang "
    "hybridppo/training/test_resume.py::test_an_environment_that_was_changed_starts_new_episodes "
    "hybridppo/training/test_resume.py::test_many_stops_change_nothing",
    "hybridppo/placements": "hybridppo/placements/test_mirroring.py hybridppo/placements/test_placements.py "
    "runners/test_accounting.py",
    "hybridppo/auto": "hybridppo/auto",
    "hybridppo/compiled": "hybridppo/compiled runners/samplers/test_on_device.py agents/ppo/test_backends.py "
    "agents/ddpg/test_compiled_off_policy_steps.py",
}
MARKS = "not slow and not gpu and not wheel"
"""Tests that need the packages of extras run too, where these are installed: they alone see what Numba compiles."""
NOT_BY_DEFAULT = (
    "hybridppo/auto",
    "agents/common/recorded_step.py",
    "agents/ppo/config.py",
    "agents/ddpg/config.py",
)
END = os.pipe()
LARGEST_MEMORY = 8 * 2**30  # of a process: a mistake may well ask for more and more


def tests_of(mutant: Mutant) -> tuple[str, ...]:
    """The tests that are to see a mistake in its file."""
    room = max((room for room in TESTS if mutant.path.startswith(room)), key=len)
    return tuple(f"tests/{test}" for test in TESTS[room].split())


def _end_with_the_script() -> None:
    os.read(END[0], 1)  # nothing is ever written: it returns when the script's end of the pipe is gone
    os.killpg(0, signal.SIGKILL)


def _run(tree: Path, tests: tuple[str, ...]) -> None:
    """In a process of its own: the tests of a tree. Its exit code is pytest's."""
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
    """A copy of the tree, in which one set of tests runs at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ignored = shutil.ignore_patterns(".?*", "__pycache__", "build", "results")

        def left_out(folder: str, names: list[str]) -> set[str]:
            return {*ignored(folder, names), *(["runs"] if Path(folder) == ROOT else [])}  # of whoever trains here

        shutil.copytree(ROOT, path, symlinks=True, ignore=left_out)

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
        self.end()
        return "timeout" if code is None else "survived" if code == 0 else "killed"

    def end(self) -> None:
        """Kill them, and whatever they have started; without the mutant, the tree is ready for the next."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        if self.mutant is not None:
            shutil.copy(ROOT / self.mutant.path, self.path / self.mutant.path)


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
        with tqdm(total=len(left), desc="mutants") as bar, ExitStack() as stack:
            stack.callback(lambda: [tree.end() for tree in running])  # where this is interrupted
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
                        options.output.write_text(json.dumps(results, indent=1, allow_nan=False))
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
