"""A gradient step of TD3 beside stable-baselines3's: milliseconds by size of network, measured by turns.

    python benchmarks/off_policy_steps.py
    python benchmarks/off_policy_steps.py --hidden-sizes 256,256 --turns 3

Minibatches of 256 with Pendulum-v1's shapes, Adam, the actor every second step, one thread unless the name says more.
All draw from a full buffer of the same size; nothing is sampled meanwhile. The minimum over turns counts, as other work
on the machine only adds. The bound is the products alone, at the rate of the best kernel there is for 256 x 256 x 256.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch

import hybridppo
from hybridppo import TD3Config
from hybridppo.system.threads import limit_threads

THEIRS = "stable-baselines3"
OURS: dict[str, tuple[dict[str, Any], int]] = {
    "hybridppo": ({}, 1),
    "compiled": ({"compiled_updates": True}, 1),
    "compiled, two threads": ({"compiled_updates": True}, 2),
}
"""Settings and threads of this library's forms."""
ENV_ID, BATCH_SIZE, LEARNING_RATE, ROWS, STEPS = "Pendulum-v1", 256, 1e-3, 4096, 100


def of_library(hidden_sizes: tuple[int, ...], changes: dict[str, Any], threads: int) -> Callable[[], None]:
    """`STEPS` steps of this library."""
    config = TD3Config(
        hidden_sizes=hidden_sizes, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, buffer_size=ROWS,
        learning_starts=ROWS, torch_threads=1, **changes,
    )  # fmt: skip
    result = hybridppo.train(ENV_ID, total_steps=ROWS, seed=0, placement="cpu", config=config, progress=False)
    agent: Any = result.agent
    replay, generator = agent.new_replay(), torch.Generator().manual_seed(0)
    for array in replay.arrays.values():
        array.copy_(torch.randn(array.shape, generator=generator)) if array.is_floating_point() else array.zero_()
    replay._valid[:], replay._num_valid[:] = True, replay.capacity
    replay.total = replay.capacity

    def steps() -> None:
        with limit_threads(threads):
            for _ in range(STEPS):
                agent.update(agent.minibatches(replay))

    return steps


def of_theirs(hidden_sizes: tuple[int, ...]) -> Callable[[], None]:
    """`STEPS` steps of stable-baselines3."""
    from stable_baselines3 import TD3

    model = TD3(
        "MlpPolicy", ENV_ID, learning_rate=LEARNING_RATE, buffer_size=ROWS, learning_starts=ROWS,
        batch_size=BATCH_SIZE, policy_kwargs={"net_arch": list(hidden_sizes)}, device="cpu", seed=0,
    )  # fmt: skip
    model.learn(ROWS)
    return lambda: model.train(gradient_steps=STEPS, batch_size=BATCH_SIZE)


def seconds_of_products(hidden_sizes: tuple[int, ...]) -> float:
    """Seconds of a gradient step's products between hidden layers: 9 for critics, 5 for the actor every second step."""
    array = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    left, found = torch.from_numpy(array), np.empty_like(array)
    ways = {"NumPy": lambda: np.matmul(array, array, out=found), "torch": lambda: torch.mm(left, left)}
    least = min(min(timed(way) for _ in range(50)) for way in ways.values())
    products = (9 + 5 / 2) * sum(a * b for a, b in pairwise(hidden_sizes)) * BATCH_SIZE
    return least * products / 256**3


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def as_markdown(result: dict[str, Any]) -> str:
    """A row for each network: milliseconds, and the speed relative to the other library's."""
    names = [*OURS, THEIRS]
    lines = [f"| layers | products alone | {' | '.join(names)} |", f"|---|{'---:|' * (1 + len(names))}"]
    for network, found in result["networks"].items():
        least, ratios = found["least"], found["ratios"]
        cells = [f"{least[who]:.2f} ({ratios[who]:.2f} x)" if who in ratios else f"{least[who]:.2f}" for who in names]
        lines.append(f"| {network.replace(',', ', ')} | {found['bound']:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-sizes", nargs="+", default=["64,64", "256,256", "400,300"])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--output", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for network in arguments.hidden_sizes:
        sizes = tuple(map(int, network.split(",")))
        contestants = {name: of_library(sizes, *form) for name, form in OURS.items()} | {THEIRS: of_theirs(sizes)}
        turns: dict[str, list[float]] = {who: [] for who in contestants}
        for _ in range(1 + arguments.turns):
            for who, steps in contestants.items():
                turns[who].append(1e3 * timed(steps) / STEPS)
        least = {who: min(found[1:]) for who, found in turns.items()}  # the first warms up
        with limit_threads(1):
            bound = 1e3 * seconds_of_products(sizes)
        ratios = {who: least[THEIRS] / least[who] for who in OURS}
        results[network] = {"milliseconds": turns, "least": least, "bound": bound, "ratios": ratios}
    payload = {"networks": results}
    machine.report("off_policy_steps", payload, as_markdown(payload), arguments.output)


if __name__ == "__main__":
    main()
