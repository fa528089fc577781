"""64 learners on 8 nodes, simulated from parts measured on this machine, and checked on 1, 2 and 4 processes.

    python benchmarks/cluster.py --output benchmarks/results
    python benchmarks/cluster.py --gigabits 100 --width 512

The parts are in CPU seconds, so that other work on the machine does not count: a learner's rollout, the gradient of
minibatches of several sizes with the optimizer's step, and the rest of an update. Communication is in wall-clock
seconds, the median of many: `all_reduce` of the gradient over gloo between two processes on the loopback, which gives
the seconds of a message and of a byte. A ring of `n` learners sends `2 (n - 1)` messages one after the other, each with
the `n`-th part of the gradient. Between nodes, a message takes the network's latency in addition, and all bytes share
one link.

The check trains with 1, 2 and 4 real learners and `reduce="all_reduce"`. They sleep before each gradient for as long
as a slower core would compute, so that two cores are enough for all.

The simulation gives each learner a core. `weak`: each further learner adds as many environments and as many rows of
each minibatch as the first has. `strong`: the learners divide the environments and the minibatches of one.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import machine
import numpy as np
import torch
from settings import cleanrl
from simulation import Machine, Simulation, Timing, learners, seconds_per_iteration

import hybridppo
from hybridppo.agents.ppo.backend import Backend
from hybridppo.distributed.launching import join_store, store_of_this_machine
from hybridppo.distributed.link import Link
from hybridppo.runners.samplers.in_process import Sampler

LEARNERS = (1, 2, 4, 8, 16, 32, 64)
PER_NODE = 8
NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 64, 128, 4, 4
"""Of each learner."""
SLEEP = 0.1
"""Seconds of sleep before each gradient of the check."""
ITERATIONS, GATHERS, SECONDS_TO_START = 8, 200, 120.0


class Sleeping(hybridppo.PPO):
    """Sleeps before each gradient."""

    def loop(self) -> Any:
        """As in the base class."""
        loop = super().loop()
        if "gradient" not in vars(loop.backend):
            gradient = loop.backend.gradient

            def later(minibatch: Any, clip_range: Any) -> Any:
                time.sleep(SLEEP)
                return gradient(minibatch, clip_range)

            loop.backend.gradient = later  # type: ignore[method-assign]
        return loop


def config_of(width: int, num_envs: int, num_minibatches: int) -> Any:
    """PPO with this many environments and minibatches."""
    return cleanrl(
        num_envs=num_envs, num_steps=NUM_STEPS, num_epochs=EPOCHS, num_minibatches=num_minibatches,
        hidden_sizes=(width, width), torch_threads=1,
    )  # fmt: skip


def parts_of(width: int, num_envs: int, num_minibatches: int) -> dict[str, float]:
    """CPU seconds of a rollout, of a minibatch, and of the rest of an iteration."""
    spent = {"fill": 0.0, "gradient": 0.0}
    marks: list[tuple[float, float, float]] = []

    def timed(kind: type, method: str, name: str) -> Any:
        plain = getattr(kind, method)

        def noted(*arguments: Any, **options: Any) -> Any:
            begun = time.process_time()
            found = plain(*arguments, **options)
            spent[name] += time.process_time() - begun
            return found

        setattr(kind, method, noted)
        return plain

    config = config_of(width, num_envs, num_minibatches)
    kinds = [kind for kind in (Backend, *Backend.__subclasses__()) if "gradient" in vars(kind)]
    plain = [(kind, "gradient", timed(kind, "gradient", "gradient")) for kind in kinds]
    plain.append((Sampler, "collect", timed(Sampler, "collect", "fill")))
    try:
        hybridppo.train(
            "CartPole-v1", total_steps=config.batch_size * ITERATIONS, config=config, seed=0, placement="cpu",
            vectorization="sync", progress=False,
            on_iteration=lambda metrics: marks.append((time.process_time(), spent["fill"], spent["gradient"])),
        )  # fmt: skip
    finally:
        for kind, method, before in plain:
            setattr(kind, method, before)
    whole, fill, gradient = np.median(np.diff(np.array(marks[1:]), axis=0), axis=0)
    return {
        "fill": float(fill),
        "gradient": float(gradient) / (EPOCHS * num_minibatches),
        "before": float(whole - fill - gradient),
    }


def reduce_here(port: int | None, rank: int, size: int, store: Any = None) -> dict[int, float]:
    """Seconds of `all_reduce`, by the number of bytes."""
    store = join_store(port, SECONDS_TO_START) if port is not None else store
    link = Link(store, rank, size, timeout=SECONDS_TO_START, start_timeout=SECONDS_TO_START)
    found = {}
    for numbers in (64, 2**18):
        row, seconds = torch.zeros(numbers), []
        for _ in range(GATHERS):
            begun = time.perf_counter()
            link.reduce_on_device(row)
            seconds.append(time.perf_counter() - begun)
        found[4 * numbers] = statistics.median(seconds)
    link.close()
    return found


def gloo() -> tuple[float, float]:
    """Seconds of a message on the loopback, and of a byte."""
    store = store_of_this_machine()
    other = multiprocessing.get_context("spawn").Process(target=reduce_here, args=(store.port, 1, 2))
    other.start()
    small, large = reduce_here(None, 0, 2, store).items()
    other.join()
    # Two learners send two messages each, of half of the bytes.
    return small[1] / 2, (large[1] - small[1]) / (large[0] - small[0])


def all_reduce(size: int, num_bytes: float, message: float, byte: float, latency: float, bandwidth: float) -> float:
    """Seconds of a sum by a ring of this many learners."""
    messages = 2 * (size - 1)
    crosses = size > PER_NODE
    return messages * (message + crosses * latency + num_bytes / size * (byte + crosses / bandwidth))


def simulated(size: int, parts: dict[str, float], collective: float, spread: float = 0.0) -> float:
    """Seconds of an iteration; `spread` is the standard deviation of the rollouts' seconds, relative to them."""
    draw = np.random.default_rng(0)
    timing = Timing(
        fill=lambda: parts["fill"] * max(0.0, 1.0 + spread * float(draw.standard_normal())),
        before=lambda: parts["before"],
        gradient=lambda: parts["gradient"],
        minibatches=EPOCHS * MINIBATCHES,
        collective=collective,
    )
    simulation = Simulation()
    ends = learners(simulation, timing, [Machine(1) for _ in range(size)], 12)
    simulation.run()
    return statistics.median(seconds_per_iteration(ends))


def checked(size: int, width: int) -> float:
    """Seconds of an iteration of real learners that sleep."""
    config = config_of(width, 8 * size, MINIBATCHES)
    marks: list[float] = []
    hybridppo.train(
        "CartPole-v1", total_steps=config.batch_size * ITERATIONS, config=config, seed=0, placement="cpu",
        vectorization="sync", progress=False, agent=Sleeping, on_iteration=lambda _: marks.append(time.perf_counter()),
        distributed=hybridppo.MultiLearner(size, reduce="all_reduce"),
    )  # fmt: skip
    return float(np.median(np.diff(marks[1:])))


def main() -> None:
    """Measure, check, simulate, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="of both hidden layers")
    parser.add_argument("--gigabits", type=float, default=25.0, help="a second, between nodes")
    parser.add_argument("--latency", type=float, default=3e-5, help="seconds of a message between nodes")
    parser.add_argument("--spread", type=float, default=0.1, help="of the rollouts' seconds")
    parser.add_argument("--output", type=Path, help="a folder for cluster.json")
    arguments = parser.parse_args()
    width, bandwidth = arguments.width, arguments.gigabits * 1e9 / 8
    env = gym.make("CartPole-v1")
    agent = hybridppo.PPO(env.observation_space, env.action_space, config_of(width, 4, 1), seed=0)
    num_bytes = 4.0 * agent.parameters.gradient.numel()
    message, byte = gloo()
    one, small = parts_of(width, NUM_ENVS, MINIBATCHES), parts_of(width, 8, MINIBATCHES)
    print(f"message {message * 1e6:.0f} us, {1e-9 / byte:.2f} GB/s; gradient {num_bytes / 1e3:.0f} kB; parts {one}")

    checks = []
    for size in (1, 2, 4):
        collective = all_reduce(size, num_bytes, message, byte, 0.0, bandwidth)
        expected = simulated(size, {**small, "gradient": small["gradient"] + SLEEP}, collective)
        checks.append({"learners": size, "measured": checked(size, width), "simulated": expected})
        print(f"check: {json.dumps(checks[-1])}, error {checks[-1]['simulated'] / checks[-1]['measured'] - 1:+.1%}")

    rows = []
    for kind in ("weak", "strong"):
        for size in LEARNERS:
            collective = all_reduce(size, num_bytes, message, byte, arguments.latency, bandwidth)
            parts = one if kind == "weak" else parts_of(width, max(1, NUM_ENVS // size), MINIBATCHES)
            seconds = simulated(size, parts, collective, arguments.spread)
            steps = NUM_ENVS * NUM_STEPS * (size if kind == "weak" else 1)
            shares = {"sampling": parts["fill"], "gradients": EPOCHS * MINIBATCHES * parts["gradient"],
                      "sums": EPOCHS * MINIBATCHES * collective, "rest of the update": parts["before"]}  # fmt: skip
            shares["waiting"] = max(0.0, seconds - sum(shares.values()))
            rows.append({"kind": kind, "learners": size, "steps_per_second": steps / seconds,
                         "shares": {name: part / seconds for name, part in shares.items()}})  # fmt: skip
    if arguments.output is not None:
        asked = {name: value for name, value in vars(arguments).items() if name != "output"}
        found = {"settings": asked, "message": message, "byte": byte, "bytes": num_bytes, "parts": one}
        machine.save("cluster", {**found, "checks": checks, "rows": rows}, arguments.output)
    print(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each number of learners."""
    lines = ["| scaling | learners | nodes | steps/s | times one | of an iteration |", "|---|---:|---:|---:|---:|---|"]
    for row in rows:
        first = next(each for each in rows if each["kind"] == row["kind"])
        shares = ", ".join(f"{name} {part:.0%}" for name, part in row["shares"].items() if part >= 0.01)
        times = row["steps_per_second"] / first["steps_per_second"]
        nodes = -(-row["learners"] // PER_NODE)
        speed = f"{row['steps_per_second']:,.0f}"
        lines.append(f"| {row['kind']} | {row['learners']} | {nodes} | {speed} | {times:.1f} | {shares} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
