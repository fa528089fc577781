"""Make the runs that the results lack, each in a process, several at once. A stopped script continues where it was."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import machine
from tqdm.auto import tqdm

Run = dict[str, Any]


def parser_of(document: str | None, result: str) -> argparse.ArgumentParser:
    """The arguments that every such script has. `--one JSON` makes the run that the JSON describes.

    Args:
        document: the script's docstring.
        result: the name of the script's result.
    """
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once")
    parser.add_argument("--output", type=Path, default=machine.RESULTS / f"{result}.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser


def kept_runs(output: Path) -> list[Run]:
    """The runs in a file of results."""
    runs: list[Run] = json.loads(output.read_text())["runs"] if output.exists() else []
    return runs


def run_missing(
    script: str,
    arguments: argparse.Namespace,
    run: Callable[..., list[Run]],
    wanted: Sequence[Run],
    names: Sequence[str],
    found_as: Callable[[Run], list[Run]] = lambda one: [one],
) -> list[Run]:
    """Make the missing runs, and save the findings of each as soon as it ends. With `--one`, make that run and exit.

    Args:
        script: is called again for each run, with `--one`.
        arguments: by `parser_of`.
        run: makes a run from its description, and returns its findings.
        wanted: the descriptions, which JSON must be able to hold.
        names: the keys that tell runs apart: a new finding replaces an older one with the same values.
        found_as: the entries that the results have for a wanted run once it was made.

    Returns:
        All runs that the results now have.
    """
    if arguments.one:
        print(json.dumps(run(**json.loads(arguments.one))))
        sys.exit()
    output: Path = arguments.output
    kept = kept_runs(output)
    missing = [one for one in wanted if not all(any(p.items() <= have.items() for have in kept) for p in found_as(one))]

    def in_a_process(one: Run) -> list[Run]:
        command = [sys.executable, script, "--one", json.dumps(one)]
        done = subprocess.run(command, env=machine.environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{one} failed:\n{done.stderr}")
        found: list[Run] = json.loads(done.stdout.splitlines()[-1])
        return found

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for found in tqdm(pool.map(in_a_process, missing), total=len(missing), unit="run"):
            again = [tuple(run[name] for name in names) for run in found]
            kept = [have for have in kept if tuple(have[name] for name in names) not in again] + found
            output.parent.mkdir(exist_ok=True)
            machine.save(output.stem, {"runs": kept}, output.parent)
    return kept
