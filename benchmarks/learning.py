"""Does it learn? Each environment's tuned hyperparameters on several seeds, beside required and published returns.

    python benchmarks/learning.py
    python benchmarks/learning.py --cases Pendulum-v1,Acrobot-v1 --seeds 5
    python benchmarks/learning.py --cases CartPole-v1 --seeds 1        # seconds: to see that it works

Every run is a process with one core and a run directory below `--runs`. Finished runs are skipped, and stopped runs
are continued. A return is the mean of 20 deterministic episodes after the training. The exit code is 1 if the
interquartile mean of an environment is below the required return. BipedalWalker, of 5 million steps, runs only if
named; the others take two cores about two hours. Needs the extras `box2d` and `mujoco`.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import machine

from hybridppo.tools.benchmark import run_benchmark

ASKED: dict[str, float] = {
    "CartPole-v1": 500.0,
    "Acrobot-v1": -80.0,
    "MountainCar-v0": -110.0,
    "MountainCarContinuous-v0": 88.0,
    "Pendulum-v1": -172.0,
    "LunarLander-v3": 240.0,
    "BipedalWalker-v3": 280.0,
    "HalfCheetah-v5": 5800.0,
    "Hopper-v5": 2400.0,
    "Walker2d-v5": 3400.0,
    "Ant-v5": 1300.0,
    "Swimmer-v5": 280.0,
    "Reacher-v5": -5.0,
    "InvertedPendulum-v5": 960.0,
}
"""About what others have published for these steps; of `Reacher-v5` nobody has."""
SEEDS = 3
LONG = ("BipedalWalker-v3",)


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """A row for each case: the required and the published return, next to every seed's."""
    lines = [
        "| case | steps | asked | published | measured | by seed | seconds a run |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        case, figures = row["case"], sorted(row["returns"])
        asked, published = ("" if value is None else f"{value:g}" for value in (row["asked"], case["published"]))
        seconds = sorted(row["seconds"])[len(row["seconds"]) // 2]
        lines.append(
            f"| {case['name']} | {case['total_steps']:,} | {asked} | {published} | {row['middle']:,.1f} | "
            f"{', '.join(f'{value:,.1f}' for value in figures)} | {seconds:,.0f} |"
        )
    return "\n".join(lines)


def keep(rows: list[dict[str, Any]], name: str) -> Path:
    """Write the rows, replacing those of the same cases; the others stay as they were measured."""
    path = machine.RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    by_case = {row["case"]["name"]: row for row in (*before, *rows)}
    return machine.save(name, {"rows": [by_case[name] for name in ASKED if name in by_case]})


def main() -> int:
    """Train what is missing; 1 if a return is below the required one."""
    usual = [name for name in ASKED if name not in LONG]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(usual), help="of %(default)s; BipedalWalker-v3")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="fewer are kept apart (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=None, help="runs at once (default: as many as there are cores)")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="the folder of the runs")
    arguments = parser.parse_args()
    names = arguments.cases.split(",")
    if unknown := set(names) - set(ASKED):
        parser.error(f"unknown cases {sorted(unknown)}: use {', '.join(ASKED)}")
    arguments.runs.mkdir(parents=True, exist_ok=True)
    found = run_benchmark(
        ",".join(names), seeds=arguments.seeds, output=arguments.runs, jobs=arguments.jobs, progress=sys.stderr.isatty()
    )
    rows = [{**asdict(row), "asked": ASKED.get(row.case.name)} for row in found]
    print(as_markdown(rows))
    kept = keep(rows, "learning" if arguments.seeds >= SEEDS else "learning_quick")
    print(f"\nRaw figures: {kept}")
    missed = [row["case"]["name"] for row in rows if row["asked"] is not None and row["middle"] < row["asked"]]
    if missed:
        print(f"Below what is asked: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
