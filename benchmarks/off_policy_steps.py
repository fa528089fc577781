"""A gradient step of TD3 beside stable-baselines3's: milliseconds of CPU time, by size of network, by turns.

    python benchmarks/off_policy_steps.py
    python benchmarks/off_policy_steps.py --hidden-sizes 256,256 --turns 3

Minibatches of 256 of Pendulum-v1's shapes, Adam, the actor every second step, one thread. Both draw from a full buffer
of the same size; nothing is sampled meanwhile. The minimum over turns is told: what else the machine does only adds.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import torch

import hybridppo
from hybridppo import TD3Config

THEIRS = "stable-baselines3"
ENV_ID, BATCH_SIZE, LEARNING_RATE, ROWS, STEPS = "Pendulum-v1", 256, 1e-3, 4096, 100


def of_library(hidden_sizes: tuple[int, ...]) -> Callable[[], None]:
    """`STEPS` steps of this library."""
    config = TD3Config(
        hidden_sizes=hidden_sizes, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, buffer_size=ROWS,
        learning_starts=ROWS, torch_threads=1,
    )  # fmt: skip
    result = hybridppo.train(ENV_ID, total_steps=ROWS, seed=0, placement="cpu", config=config, progress=False)
    agent: Any = result.agent
    replay, generator = agent.new_replay(), torch.Generator().manual_seed(0)
    for array in replay.arrays.values():
        array.copy_(torch.randn(array.shape, generator=generator)) if array.is_floating_point() else array.zero_()
    replay._valid[:] = True
    replay.total = replay.num_valid = replay.capacity

    def steps() -> None:
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


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-sizes", nargs="+", default=["64,64", "256,256", "400,300"])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--output", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    print(f"| network | hybridppo ms | {THEIRS} ms | ratio |\n|---|---:|---:|---:|")
    for name in arguments.hidden_sizes:
        sizes = tuple(map(int, name.split(",")))
        contestants = {"hybridppo": of_library(sizes), THEIRS: of_theirs(sizes)}
        turns: dict[str, list[float]] = {who: [] for who in contestants}
        for _ in range(1 + arguments.turns):
            for who, steps in contestants.items():
                start = time.process_time()
                steps()
                turns[who].append(1e3 * (time.process_time() - start) / STEPS)
        least = {who: min(found[1:]) for who, found in turns.items()}  # the first warms up
        results[name] = {"milliseconds": turns, "least": least, "ratio": least[THEIRS] / least["hybridppo"]}
        print(f"| {name} | {least['hybridppo']:.2f} | {least[THEIRS]:.2f} | {results[name]['ratio']:.2f} |")
    print(f"\nRaw figures: {machine.save('off_policy_steps', {'networks': results}, arguments.output)}")


if __name__ == "__main__":
    main()
