"""TD3 beside stable-baselines3's, at the same settings and steps: returns and speed.

    python benchmarks/off_policy.py
    python benchmarks/off_policy.py --cases pendulum --seeds 2
    python benchmarks/off_policy.py --quick

The networks and settings are those of stable-baselines3's zoo: hidden layers of 400 and 300, minibatches of 256, Adam
with 1e-3, noise of 0.1, an optimizer step for every step. `evaluation` is the mean return of 20 deterministic episodes
after the training. Each training is a process of its own (`off_policy_turn.py`), and the contestants take turns. Each
has one thread unless its name says more; `overlap` samples in a process of its own. HalfCheetah takes hours: the cases
of `speed` are its first steps, in which nothing worth mentioning is learned.
"""

import argparse
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import off_policy_turn
from turns import Round, medians, ratios, take_turns

THEIRS = "stable-baselines3"
CONTESTANTS = {
    "hybridppo cpu": ["library", "--placement", "cpu"],
    "hybridppo overlap": ["library", "--placement", "overlap"],
    THEIRS: [THEIRS],
}


@dataclass(frozen=True)
class Case:
    """A training, and the return that every seed must reach."""

    env_id: str
    steps: int
    learning_starts: int
    asked: float | None
    """The least return of the evaluation, if any."""
    seeds: int
    hidden_sizes: str = "400,300"


CASES = {
    "pendulum": Case("Pendulum-v1", 30_000, 1_000, asked=-170.0, seeds=5),
    "halfcheetah": Case("HalfCheetah-v5", 300_000, 10_000, asked=5_000.0, seeds=3),
    "speed": Case("HalfCheetah-v5", 10_000, 2_000, asked=None, seeds=3),
    "speed of 256 and 256": Case("HalfCheetah-v5", 10_000, 2_000, asked=None, seeds=3, hidden_sizes="256,256"),
}
QUICK = Case("Pendulum-v1", 1_500, 500, asked=-2_000.0, seeds=1)


def commands(case: Case, seed: int) -> dict[str, list[str]]:
    """The command of each contestant."""
    what = ["--agent", "td3", "--env", case.env_id, "--steps", str(case.steps), "--seed", str(seed)]
    what += ["--learning-starts", str(case.learning_starts), "--hidden-sizes", case.hidden_sizes]
    script = [sys.executable, str(Path(off_policy_turn.__file__))]
    return {name: [*script, *options, *what] for name, options in CONTESTANTS.items()}


def measure(name: str, case: Case) -> dict[str, Any]:
    """All seeds of all contestants, which take turns; medians, and the ratios of speeds within each round."""
    rounds: list[Round] = []
    for seed in range(case.seeds):
        print(f"{name}, seed {seed}", file=sys.stderr)
        rounds += take_turns(commands(case, seed), 1)
    return {"case": asdict(case), "rounds": rounds, **summarize(case, rounds)}


def summarize(case: Case, rounds: list[Round]) -> dict[str, Any]:
    """For each contestant: returns by seed, speed, its ratio to the other library's, and whether all met the target."""
    rows = {}
    for name in rounds[0]:
        evaluations = [turns[name]["evaluation"] for turns in rounds]
        rows[name] = {
            "evaluations": evaluations,
            "evaluation_median": statistics.median(evaluations),
            "steps_per_second": medians(rounds, name)["steps_per_second"],
            "ratio": ratios(rounds, name, THEIRS, "steps_per_second"),
            "met": case.asked is None or all(evaluation >= case.asked for evaluation in evaluations),
        }
    return {"rows": rows}


def as_markdown(results: dict[str, Any]) -> str:
    """A row for each contestant of each case."""
    heads = ["case", "steps", "contestant", "evaluation, by seed", "median", "asked", "steps/s", f"ratio to {THEIRS}"]
    lines = [f"| {' | '.join(heads)} |"]
    lines += ["|---|---:|---|---:|---:|---:|---:|---:|"]
    for name, result in results.items():
        case = result["case"]
        asked = "" if case["asked"] is None else f"{case['asked']:g}"
        for contestant, row in result["rows"].items():
            seeds = ", ".join(f"{evaluation:.0f}" for evaluation in row["evaluations"])
            lines.append(
                f"| {name} | {case['steps']:,} | {contestant} | {seeds} | {row['evaluation_median']:.0f} "
                f"| {asked} | {row['steps_per_second']:,.0f} | {row['ratio']['median']:.2f} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Measure the cases asked for; 1 if a seed of this library misses its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of %(default)s")
    parser.add_argument("--seeds", type=int, help="of each case (default: the case's own number)")
    parser.add_argument("--quick", action="store_true", help="1,500 steps of Pendulum; results kept apart")
    parser.add_argument("--output", type=Path, default=machine.RESULTS, help="the folder (default %(default)s)")
    arguments = parser.parse_args()
    names = arguments.cases.split(",")
    if unknown := set(names) - set(CASES):
        parser.error(f"unknown cases {sorted(unknown)}: use {', '.join(CASES)}")
    chosen = {"quick": QUICK} if arguments.quick else {name: CASES[name] for name in names}
    if arguments.seeds is not None:
        chosen = {name: Case(**{**asdict(case), "seeds": arguments.seeds}) for name, case in chosen.items()}
    results = {name: measure(name, case) for name, case in chosen.items()}
    payload = {"arguments": {**vars(arguments), "output": None}, "cases": results}
    name = "off_policy_quick" if arguments.quick else "off_policy"
    machine.report(name, payload, as_markdown(results), arguments.output)
    ours = [row for result in results.values() for name, row in result["rows"].items() if name != THEIRS]
    return int(not all(row["met"] for row in ours))


if __name__ == "__main__":
    sys.exit(main())
