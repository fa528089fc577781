"""What `import hybridppo` costs beyond its dependencies, and what it costs until it can train; in seconds.

    python benchmarks/import_time.py

Fresh processes, by turns with stable-baselines3 if that is installed. Each imports torch and gymnasium first
and is timed from there, so that their seconds, which vary more than what is measured, cancel out. A package may
import its parts only when they are used, so the second figure includes all that training needs.

The last figure is of a whole process, from start to end, that imports all that training needs, torch
included, and does nothing else. Beside it stands that of a process that imports torch alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

import machine

PACKAGES = {"hybridppo": "train", "stable_baselines3": "PPO"}
"""Packages to import, and the name in each that training uses."""

CHILD = """
import json, time
start = time.perf_counter()
import torch, gymnasium
base = time.perf_counter()
import {package}
imported = time.perf_counter()
{package}.{name}
usable = time.perf_counter()
print(json.dumps({{"torch_and_gymnasium": base - start, "import": imported - base, "usable": usable - base}}))
"""


def measure(package: str) -> dict[str, float]:
    """Seconds of one import in a fresh process."""
    command = [sys.executable, "-c", CHILD.format(package=package, name=PACKAGES[package])]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds: dict[str, float] = json.loads(output)
    return seconds


def process_seconds(code: str) -> float:
    """Wall-clock seconds of a fresh process, its start and its end included."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def measure_all(packages: list[str], turns: int) -> dict[str, list[dict[str, float]]]:
    """Every package's imports, by turns; the round before them fills the disk cache and does not count."""

    def take_turn(package: str) -> dict[str, float]:
        return {**measure(package), "process": process_seconds(f"import {package}; {package}.{PACKAGES[package]}")}

    rounds = [
        {"torch": {"process": process_seconds("import torch")}, **{package: take_turn(package) for package in packages}}
        for _ in range(turns + 1)
    ]
    return {package: [each[package] for each in rounds[1:]] for package in rounds[0]}


def as_markdown(medians: dict[str, dict[str, float]]) -> str:
    """A row per package."""
    lines = [
        "| package | import, s | until it can train, s | torch and gymnasium before, s | that alone, as a process, s |",
        "|---|---:|---:|---:|---:|",
    ]
    keys = ("import", "usable", "torch_and_gymnasium", "process")
    for package, row in medians.items():
        seconds = " | ".join(f"{row[key]:.3f}" if key in row else "" for key in keys)
        lines.append(f"| `{package}` | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="processes per package")
    turns = parser.parse_args().turns
    raw = measure_all([package for package in PACKAGES if find_spec(package)], turns)
    medians: dict[str, Any] = {
        package: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for package, rows in raw.items()
    }
    print(as_markdown(medians))
    machine.save("import_time", {"turns": turns, "median_seconds": medians, "seconds": raw})


if __name__ == "__main__":
    main()
