"""What TensorBoard, evaluations and checkpoints cost a training, in steps per second and in CPU time.

    python benchmarks/around.py
    python benchmarks/around.py --total-steps 20000 --turns 1        # to see that it works

The small case of `fixed_work.py`, with a run directory: with each of these alone, with all of them, and with none.
Every training is a process of its own, and they take turns. CPU time is the trainer's alone: a process that evaluates
beside it does not count, nor do waits, such as for the disk. So it shows small costs even if the machine's speed
changes. Needs `pip install '.[tensorboard]'`.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
from turns import take_turn

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
import json, sys, time
import hybridppo
from cases import CASES
from settings import cleanrl

arguments = json.loads(sys.argv[1])
config = cleanrl(num_envs=CASES["small"].num_envs, hidden_sizes=CASES["small"].hidden_sizes)
placement = hybridppo.Mirrored("cpu", "cpu", max_lag=1) if arguments.pop("overlaps") else "cpu"
start = time.process_time()
result = hybridppo.train(
    "CartPole-v1", seed=0, config=config, placement=placement, progress=False, on_interrupt="return", **arguments
)
used, metrics = time.process_time() - start, result.metrics
print(json.dumps({"steps_per_second": metrics["env_steps"] / metrics["seconds"], "cpu_seconds": used}))
"""


def measure(way: str, total_steps: int, overlaps: bool) -> dict[str, float]:
    """One training, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"total_steps": total_steps, "overlaps": overlaps, "run_dir": f"{folder}/run", **WAYS[way]}
        return take_turn([sys.executable, "-c", CHILD, json.dumps(arguments)], cwd=Path(__file__).parent)


def as_markdown(medians: dict[str, dict[str, float]]) -> str:
    """A row for each way, with what it loses against a training with none of them."""
    lines = ["| with | steps/s | lost | CPU seconds | more |", "|---|---:|---:|---:|---:|"]
    speed, used = medians["nothing"]["steps_per_second"], medians["nothing"]["cpu_seconds"]
    for way, found in medians.items():
        lost, more = 1 - found["steps_per_second"] / speed, found["cpu_seconds"] / used - 1
        lines.append(
            f"| {way} | {found['steps_per_second']:,.0f} | {lost:.1%} | {found['cpu_seconds']:.2f} | {more:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="processes for each way")
    parser.add_argument("--total-steps", type=int, default=500_000, help="of each training")
    parser.add_argument(
        "--overlap", action="store_true", help="sample and learn side by side, and evaluate beside that"
    )
    options = parser.parse_args()
    rounds = [{way: measure(way, options.total_steps, options.overlap) for way in WAYS} for _ in range(options.turns)]
    medians = {
        way: {name: statistics.median(each[way][name] for each in rounds) for name in rounds[0][way]} for way in WAYS
    }
    print(as_markdown(medians))
    name = "around_overlap" if options.overlap else "around"
    machine.save(name, {"total_steps": options.total_steps, "medians": medians, "rounds": rounds})


if __name__ == "__main__":
    main()
