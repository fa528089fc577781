"""What distribution gains, and what it costs a learner: steps per second, CPU time, and bytes sent.

    python benchmarks/learners.py --output benchmarks/results/learners.json
    python benchmarks/learners.py --hidden-sizes 64 256 --distributions local multi:2 central:2
    python benchmarks/learners.py --env LunarLander-v3 --distributions workers:2 coarse:2 local fine:2
    python benchmarks/learners.py --devices                       # a table of 1, 2, 4 and 8 GPUs

Distributions take turns, and the others are compared with the first. `local` is one process, and `workers:2` is
one with two worker processes. Policies over Ray need it installed; all share one Ray. CPU time is the first learner's,
without its waits for the others: what an iteration takes if each learner has a core to itself, even if the machine is
busy with other things. Start-up is left out: iterations after the second are measured.

`--devices` trains on 1, 2, 4 and 8 CUDA devices, as far as there are so many, and writes a table of steps per second to
results/learners_on_devices.json. There are learners for which CPU workers sample (`multi`, two workers each), and
learners whose environments are compiled and on the device (`gpu`). Each learner has as many environments as the first.
Without a CUDA device, nothing is measured.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import machine
from settings import cleanrl

import hybridppo
from hybridppo.distributed import wires
from hybridppo.system.accelerator import num_cuda_devices

DEVICES, ENVS_PER_LEARNER = (1, 2, 4, 8), 2048
OVER_RAY = ("coarse", "fine", "environments")
WAITED = [0.0]
SENT: list[int] = []


def watch() -> None:
    """Count the seconds that waits spend awake, and the bytes of every sum."""
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


def measure(env: str, distribution: str, width: int, iterations: int, **sizes: int) -> dict[str, Any]:
    """The speed of iterations, the first learner's CPU seconds in them, and the bytes that it sends per minibatch.

    An iteration of `central` is a rollout of one learner; here, one rollout of every learner counts as one iteration.
    """
    config = cleanrl(hidden_sizes=(width, width), **sizes)
    lines: list[tuple[float, dict[str, float]]] = []
    name, _, count = distribution.partition(":")
    spread: dict[str, Any] = {"distributed": distribution}
    if name == "workers":
        spread = {"num_workers": int(count)}
    SENT.clear()
    result = hybridppo.train(
        env, total_steps=config.batch_size * iterations, config=config, placement="cpu", seed=1,
        vectorization="sync", progress=False, **spread,
        on_iteration=lambda metrics: lines.append((time.process_time() - WAITED[0], dict(metrics))),
    )  # fmt: skip
    pairs = list(pairwise(lines[:: int(lines[0][1].get("learners", 1))][1:]))
    return {
        "distributed": distribution,
        "hidden_sizes": [width, width],
        "steps_per_second": median(
            (after["env_steps"] - before["env_steps"]) / (after["seconds"] - before["seconds"])
            for (_, before), (_, after) in pairs
        ),
        "seconds": [after - before for (before, _), (after, _) in pairs],
        "bytes_per_minibatch": max(SENT, default=0),
        "bytes_of_gradient": result.agent.parameters.values.nbytes,
    }


def on_devices(device: str, num_devices: int, iterations: int, envs_per_learner: int) -> list[dict[str, Any]]:
    """Steps per second of 1, 2, 4 and 8 learners, each on a device of its own.

    Args:
        device: of the learners, `cuda` or `cpu`.
        num_devices: there are no more learners than this.
        iterations: of each training; the first two are not counted.
        envs_per_learner: environments of each learner.
    """
    rows = []
    for learners in (count for count in DEVICES if count <= num_devices):
        config = hybridppo.PPOConfig(num_envs=envs_per_learner * learners, num_steps=32, hidden_sizes=(256, 256))
        ways: dict[str, dict[str, Any]] = {
            "multi": {"placement": hybridppo.Mirrored("cpu", device), "num_workers": 2 * learners},
            "gpu": {"placement": device, "vectorization": "compiled"},
        }
        for name, options in ways.items():
            marks: list[tuple[float, float]] = []

            def mark(metrics: dict[str, float], marks: list[tuple[float, float]] = marks) -> None:
                marks.append((metrics["seconds"], metrics["env_steps"]))

            hybridppo.train(
                "CartPole-v1", total_steps=config.batch_size * (iterations + 2), config=config, seed=1, progress=False,
                distributed=f"{name}:{learners}", on_iteration=mark, **options,
            )  # fmt: skip
            (begun, before), (ended, after) = marks[1], marks[-1]
            speed = (after - before) / (ended - begun)
            rows.append({"distributed": name, "learners": learners, "steps_per_second": speed})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each number of learners."""
    lines = ["| learners | distribution | steps/s | times one |", "|---:|---|---:|---:|"]
    for row in rows:
        one = next(each for each in rows if each["distributed"] == row["distributed"])
        times = row["steps_per_second"] / one["steps_per_second"]
        lines.append(f"| {row['learners']} | {row['distributed']} | {row['steps_per_second']:,.0f} | {times:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure by turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", action="store_true", help="a table of 1, 2, 4 and 8 CUDA devices")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--distributions", nargs="+", default=["local", "multi:2", "multi:2:2:all_reduce"])
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[256])
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--num-steps", type=int, default=256)
    parser.add_argument("--num-minibatches", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.devices:
        if not num_cuda_devices():
            print("no CUDA device: nothing is measured")
            return
        rows = on_devices("cuda", num_cuda_devices(), arguments.iterations, ENVS_PER_LEARNER)
        machine.save("learners_on_devices", {"rows": rows})
        print(table(rows))
        return
    if any(name.startswith(OVER_RAY) for name in arguments.distributions):
        import ray

        # As many as a training itself would ask for: Ray keeps a process ready for each.
        counts = [int(name.partition(":")[2] or 1) for name in arguments.distributions]
        ray.init("local", num_cpus=max(counts), include_dashboard=False, logging_level="ERROR")
    watch()
    asked = {name: value for name, value in vars(arguments).items() if name not in ("output", "devices")}
    sizes = {name: asked[name] for name in ("num_envs", "num_steps", "num_minibatches")}
    rows = []
    for width in arguments.hidden_sizes:
        found_of: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.distributions}
        for _ in range(arguments.repeats):
            for name, found in found_of.items():
                found.append(measure(arguments.env, name, width, arguments.iterations, **sizes))
                rows.append(found[-1])
        first, *_ = found_of.values()
        for name, found in found_of.items():
            speeds = [median(each["steps_per_second"] for each in of) for of in (first, found)]
            used = [median(second for each in of for second in each["seconds"]) for of in (first, found)]
            print(
                f"{width} x {width}  {name:22} {speeds[1]:10,.0f} steps/s {speeds[1] / speeds[0]:.2f}  "
                f"{used[1]:.3f} s of the processor, {used[0] / used[1]:.2f} times as fast  "
                f"{found[0]['bytes_per_minibatch']:,} bytes a minibatch",
                flush=True,
            )
    if arguments.output is not None:
        machine.save(arguments.output.stem, {**asked, "rows": rows}, arguments.output.parent)


if __name__ == "__main__":
    main()
