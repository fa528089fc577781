"""Does it learn? Trains to the published targets on several seeds, and says asked and measured.

    python benchmarks/learning.py
    python benchmarks/learning.py --cases pendulum,acrobot
    python benchmarks/learning.py --quick

Every seed has to meet the case's targets; the exit code is 1 where one misses. `training` is the mean return of
the last 100 episodes of the training, `evaluation` that of 20 deterministic episodes after it.
"""

import argparse
import runpy
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
from tuned import TUNED

import hybridppo
from hybridppo import PPOConfig

MEASURES = ("evaluation", "training")
EVALUATION_EPISODES = 20


@dataclass(frozen=True)
class Case:
    """What is trained, and what is asked of it."""

    env_id: str
    total_steps: int
    config: PPOConfig
    seeds: int
    targets: dict[str, float]
    """For each measure that counts, the least that every seed must reach."""


def cases() -> dict[str, Case]:
    """All cases, by name."""
    script = Path(__file__).parents[1] / "scripts" / "train_cartpole.py"
    fast = runpy.run_path(str(script))["DEFAULTS"]
    return {
        "cartpole_fast": Case(fast.env_id, fast.total_steps, fast.config, seeds=5, targets={"evaluation": 495.0}),
        "cartpole_default": Case("CartPole-v1", 500_000, PPOConfig(), seeds=3, targets={"training": 480.0}),
        "pendulum": Case(*TUNED["pendulum"], seeds=3, targets=dict.fromkeys(MEASURES, -250.0)),
        "acrobot": Case(*TUNED["acrobot"], seeds=3, targets=dict.fromkeys(MEASURES, -90.0)),
    }


def train(case: Case, seed: int, placement: str) -> dict[str, Any]:
    """Train on one seed; both measures, and the seconds without the evaluation."""
    start = time.perf_counter()
    result = hybridppo.train(
        case.env_id,
        total_steps=case.total_steps,
        seed=seed,
        placement=placement,
        config=case.config,
        evaluation_episodes=EVALUATION_EPISODES,
        progress=sys.stderr.isatty(),
    )
    assert result.evaluation is not None  # it was asked for
    return {
        "seed": seed,
        "evaluation": result.evaluation.return_mean,
        "evaluation_returns": result.evaluation.returns,
        "training": result.metrics["episode_return_mean"],
        "env_steps": result.metrics["env_steps"],
        "seconds": result.metrics["seconds"],
        "seconds_with_evaluation": time.perf_counter() - start,
    }


def measure(name: str, case: Case, placement: str) -> dict[str, Any]:
    """Train on every seed, and compare with the targets."""
    runs = []
    for seed in range(case.seeds):
        run = train(case, seed, placement)
        runs.append(run)
        measured = ", ".join(f"{measure} {run[measure]:.1f}" for measure in MEASURES)
        print(f"{name}, seed {seed}: {measured} ({run['seconds']:.0f} s)", file=sys.stderr)
    return {
        "env_id": case.env_id,
        "total_steps": case.total_steps,
        "config": case.config.to_json(),
        "targets": case.targets,
        "met": all(run[measure] >= target for run in runs for measure, target in case.targets.items()),
        "runs": runs,
    }


def as_markdown(results: dict[str, Any]) -> str:
    """A row per case and measure, what is asked next to what every seed reached."""
    lines = ["| case | steps | measure | asked of every seed | measured, by seed | seconds a seed |"]
    lines += ["|---|---:|---|---:|---:|---:|"]
    for name, result in results.items():
        seconds = statistics.median(run["seconds"] for run in result["runs"])
        for measure in MEASURES:
            target = result["targets"].get(measure)
            asked = "" if target is None else f"{target:g}"
            measured = ", ".join(f"{run[measure]:.1f}" for run in result["runs"])
            lines.append(f"| {name} | {result['total_steps']:,} | {measure} | {asked} | {measured} | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> int:
    """Train the cases asked for; 1 where a target is missed."""
    known = cases()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(known), help="of %(default)s")
    parser.add_argument("--placement", default="cpu", help="a placement of the command line's (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="cartpole_fast only; results kept apart")
    arguments = parser.parse_args()
    names = ["cartpole_fast"] if arguments.quick else arguments.cases.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"unknown cases {sorted(unknown)}: use {', '.join(known)}")
    results = {name: measure(name, known[name], arguments.placement) for name in names}
    print(as_markdown(results))
    # Only a run of everything replaces the results that are kept.
    is_whole = set(names) == set(known)
    path = machine.save("learning" if is_whole else "learning_quick", {"arguments": vars(arguments), "cases": results})
    print(f"\nRaw figures: {path}")
    missed = [name for name, result in results.items() if not result["met"]]
    if missed:
        print(f"Targets missed: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
