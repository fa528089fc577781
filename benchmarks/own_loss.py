"""How fast is a training with the user's own loss? CartPole, two layers of 64, and PPO's loss passed as one's own.

    python benchmarks/own_loss.py
    python benchmarks/own_loss.py --rounds 4

Environment steps per second of CPU time on one core, sampling and learning together, each kind by turns.
"""

import argparse
import statistics
import time
from dataclasses import replace
from itertools import pairwise
from operator import truediv
from typing import Any

import machine
from cases import CASES, our_config
from updates import own_loss

import hybridppo

CASE = CASES["small"]
STEPS = CASE.num_envs * CASE.num_steps
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "default": ({}, None),
    "own": ({}, own_loss),
    "own compiled": ({"torch_compile": True}, own_loss),
    "autograd": ({"fast_updates": False}, None),
    "own, plain autograd": ({"fast_updates": False}, own_loss),
}
"""For each name, what differs from the case's configuration, and the loss."""


class Times(hybridppo.Callback):
    """The CPU time of this process at the end of each iteration."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_iteration(self, run: Any, metrics: Any) -> None:
        """Note the time."""
        self.ends.append(time.process_time())


def steps_per_second(kind: str, seed: int) -> float:
    """The median over the iterations of a training, without the first five."""
    (changes, loss), times = KINDS[kind], Times()
    config = replace(our_config(CASE), **changes)
    hybridppo.train(
        CASE.env_id, total_steps=14 * STEPS, seed=seed, placement="cpu", config=config, loss=loss, progress=False,
        callbacks=[times],
    )  # fmt: skip
    ends = times.ends[4:]
    return STEPS / statistics.median(end - start for start, end in pairwise(ends))


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="trainings of each kind (default %(default)s)")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in range(arguments.rounds):
        for kind, figures in found.items():
            figures.append(steps_per_second(kind, seed))
    for kind, figures in found.items():
        ratio = statistics.median(map(truediv, figures, found["default"]))
        print(f"{kind}: {statistics.median(figures):,.0f} steps a second, {ratio:.2f} of the default's")
    machine.report("own_loss", {"rounds": arguments.rounds, "steps_per_second": found})


if __name__ == "__main__":
    main()
