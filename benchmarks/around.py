"""What is around a training costs: TensorBoard, evaluations and checkpoints, in steps per second.

    python benchmarks/around.py
    python benchmarks/around.py --total-steps 20000 --turns 1        # to see that it works

The small case of `fixed_work.py`, into a run directory, with each of these alone and with all of them, against none.
Every training is a process of its own, and they take turns. Needs `pip install hybridppo[tensorboard]`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine

WAYS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tensorboard": {"track": "tensorboard"},
    "evaluations": {"evaluate_every": 50_000, "evaluate_episodes": 5},
    "evaluations beside": {"evaluate_every": 50_000, "evaluate_episodes": 5, "evaluate_beside": True},
    "checkpoints": {"checkpoint_seconds": 5.0},
}
WAYS["all"] = {name: value for options in WAYS.values() for name, value in options.items()}
"""With evaluations beside the training."""

CHILD = """
import json, sys
import hybridppo
from cases import CASES
from settings import cleanrl

arguments = json.loads(sys.argv[1])
config = cleanrl(num_envs=CASES["small"].num_envs, hidden_sizes=CASES["small"].hidden_sizes)
placement = hybridppo.Mirrored("cpu", "cpu", max_lag=1) if arguments.pop("overlaps") else "cpu"
result = hybridppo.train(
    "CartPole-v1", seed=0, config=config, placement=placement, progress=False, on_interrupt="return", **arguments
)
print(json.dumps(result.metrics["env_steps"] / result.metrics["seconds"]))
"""


def steps_per_second(way: str, total_steps: int, overlaps: bool) -> float:
    """Of one training, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"total_steps": total_steps, "overlaps": overlaps, "run_dir": f"{folder}/run", **WAYS[way]}
        process = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(arguments)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
            env=machine.environment(),
        )
    return float(json.loads(process.stdout.splitlines()[-1]))


def as_markdown(medians: dict[str, float]) -> str:
    """A row for each way, with what it loses against nothing."""
    lines = ["| with | steps/s | lost |", "|---|---:|---:|"]
    for way, value in medians.items():
        lines.append(f"| {way} | {value:,.0f} | {1 - value / medians['nothing']:.1%} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="processes for each way")
    parser.add_argument("--total-steps", type=int, default=500_000, help="of each training")
    parser.add_argument(
        "--overlap", action="store_true", help="sample and learn side by side, and evaluate beside that"
    )
    options = parser.parse_args()
    rounds = [
        {way: steps_per_second(way, options.total_steps, options.overlap) for way in WAYS} for _ in range(options.turns)
    ]
    medians = {way: statistics.median(each[way] for each in rounds) for way in WAYS}
    print(as_markdown(medians))
    name = "around_overlap" if options.overlap else "around"
    machine.save(name, {"total_steps": options.total_steps, "median_steps_per_second": medians, "rounds": rounds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
