"""What spreading gains: steps per second of one process, and of distribution policies, by turns.

    python benchmarks/distribution.py --hidden-sizes 64 256 --repeats 3 --distributions local multi:2 central:2
    python benchmarks/distribution.py --hidden-sizes 256 --num-envs 16 --num-steps 256 --num-minibatches 2 \
        --distributions local multi:2 multi:2:2:all_reduce
    python benchmarks/distribution.py --env LunarLander-v3 --num-envs 16 --distributions workers:2 coarse:2 local fine:2

`workers:2` is one process with two worker processes. The first of the distributions is what the others are compared
with. Policies over Ray need it installed; one Ray serves all of them. Prints a table, and with --output writes every
measurement as JSON. Start-up is left out: speeds are those of the iterations after the second.
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path
from statistics import median

import machine
from settings import cleanrl

import hybridppo

OVER_RAY = ("coarse", "fine", "environments")


def measure(env: str, distribution: str, width: int, iterations: int, **sizes: int) -> float:
    """Steps per second, the median over the iterations after the second.

    An iteration of `central` is a rollout of one learner; as many as there are learners are measured as one.
    """
    config = cleanrl(hidden_sizes=(width, width), **sizes)
    lines: list[dict[str, float]] = []
    name, _, count = distribution.partition(":")
    spread = {"num_workers": int(count)} if name == "workers" else {"distribution": distribution}
    hybridppo.train(
        env, total_steps=config.batch_size * iterations, config=config, placement="cpu", vectorization="sync", seed=1,
        progress=False, **spread,
        on_iteration=lambda metrics: lines.append(dict(metrics)),
    )  # fmt: skip
    rounds = lines[:: int(lines[0].get("learners", 1))]
    return median(
        (after["env_steps"] - before["env_steps"]) / (after["seconds"] - before["seconds"])
        for before, after in pairwise(rounds[1:])
    )


def main() -> None:
    """Measure by turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--distributions", nargs="+", default=["local", "multi:2"])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if any(name.startswith(OVER_RAY) for name in arguments.distributions):
        import ray

        # As many as a training would say itself: Ray keeps a process ready for each.
        counts = [int(name.partition(":")[2] or 1) for name in arguments.distributions]
        ray.init("local", num_cpus=max(counts), include_dashboard=False, logging_level="ERROR")
    rows = []
    sizes = {name: getattr(arguments, name) for name in ("num_envs", "num_steps", "num_minibatches")}
    for width in arguments.hidden_sizes:
        speeds: dict[str, list[float]] = {name: [] for name in arguments.distributions}
        for _ in range(arguments.repeats):
            for name, found in speeds.items():
                found.append(measure(arguments.env, name, width, arguments.iterations, **sizes))
        first = median(speeds[arguments.distributions[0]])
        for name, found in speeds.items():
            rows.append({"hidden_sizes": [width, width], "distribution": name, "steps_per_second": found})
            ratio = median(found) / first
            print(f"{width} x {width}  {name:10}  {median(found):10,.0f} steps/s  {ratio:.2f}", flush=True)
    if arguments.output is not None:
        asked = {name: value for name, value in vars(arguments).items() if name != "output"}
        found_all = {"machine": machine.describe(), **asked, "rows": rows}
        arguments.output.write_text(json.dumps(found_all, indent=1) + "\n")


if __name__ == "__main__":
    main()
