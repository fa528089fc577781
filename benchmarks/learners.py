"""What an iteration costs a learner: processor time, without waiting for the others, and what it sends.

    python benchmarks/learners.py --output benchmarks/results/learners.json

Processor time says what an iteration takes if each learner has a core to itself, also on a machine that is busy with
other things. `local` is one process.
"""

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import machine
from settings import cleanrl

import hybridppo
from hybridppo.distribution import wires

WAITED = [0.0]
SENT: list[int] = []


def watch() -> None:
    """Note the time that is spent awake in waits, and the bytes of every sum."""
    wait = wires.wait_for

    def noted_wait(*arguments: Any) -> None:
        begun = time.process_time()
        wait(*arguments)
        WAITED[0] += time.process_time() - begun

    wires.wait_for = noted_wait
    for kind in (wires.Collective, wires.InSharedMemory):

        def noted_total(wire: Any, total: Any = kind.total) -> Any:
            before, found = wire.bytes_sent, total(wire)
            SENT.append(wire.bytes_sent - before)
            return found

        kind.total = noted_total  # type: ignore[method-assign]


def measure(distribution: str, width: int, iterations: int) -> dict[str, Any]:
    """Processor seconds of the first learner in an iteration after the first, and bytes that it sends a minibatch."""
    config = cleanrl(hidden_sizes=(width, width), num_envs=16, num_steps=256, num_minibatches=2)
    marks: list[float] = []
    SENT.clear()
    result = hybridppo.train(
        "CartPole-v1", total_steps=config.batch_size * iterations, config=config, placement="cpu", seed=1,
        vectorization="sync", progress=False, distribution=distribution,
        on_iteration=lambda metrics: marks.append(time.process_time() - WAITED[0]),
    )  # fmt: skip
    return {
        "distribution": distribution,
        "seconds": [after - before for before, after in pairwise(marks[1:])],
        "bytes_per_minibatch": max(SENT, default=0),
        "bytes_of_gradient": result.agent.parameters.values.nbytes,
    }


def main() -> None:
    """Measure by turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--distributions", nargs="+", default=["local", "multi:2", "multi:2:2:all_reduce"])
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    watch()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.distributions}
    for _ in range(arguments.repeats):
        for name, found in rows.items():
            found.append(measure(name, arguments.hidden_size, arguments.iterations))
    medians = {name: median(second for each in found for second in each["seconds"]) for name, found in rows.items()}
    first = medians[arguments.distributions[0]]
    for name, found in rows.items():
        sent = found[0]["bytes_per_minibatch"]
        print(f"{name:22} {medians[name]:.3f} s  {first / medians[name]:.2f} times as fast  {sent:,} bytes a minibatch")
    if arguments.output is not None:
        asked = {name: value for name, value in vars(arguments).items() if name != "output"}
        measured = {"machine": machine.describe(), **asked, "rows": rows}
        arguments.output.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
