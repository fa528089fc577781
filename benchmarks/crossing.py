"""What copies between devices cost, and how much of that overlap hides.

    python benchmarks/crossing.py
    python benchmarks/crossing.py --hidden-sizes 64,64 1024,1024 --seconds 5

For each size of network: how long a publish of the actor takes and the copy of a rollout to the learner, and how many
bytes per second that is; and how long an iteration takes by turns (hybrid) and with overlap, against the longer of
sampling and learning, which is the least that overlap can take. With a CUDA device it learns there; without one the CPU
stands in for it, and the copies are between two buffers of its memory.
Results go to results/crossing.json, or to results/crossing-cuda.json with a CUDA device.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from settings import cleanrl

import hybridppo
from hybridppo import PPO, Mirrored, PPOConfig
from hybridppo.environments.making import make_environments
from hybridppo.placements.base import Placement
from hybridppo.runners.samplers.in_process import Sampler

HIDDEN_SIZES = ["64,64", "256,256", "1024,1024", "2048,2048"]
WARMUP = 3

Row = dict[str, Any]


def mirror(device: str, **options: Any) -> Mirrored:
    """The hybrid that learns on the device, and really copies even if that is the CPU."""
    return Mirrored("cpu", device, force_copy=device == "cpu", **options)


def median_of(cross: Callable[[], float], seconds: float) -> float:
    """The median of the seconds that calls return, as many calls as there is time for."""
    for _ in range(WARMUP):
        cross()
    taken, until = [cross()], time.perf_counter() + seconds
    while time.perf_counter() < until:
        taken.append(cross())
    return statistics.median(taken)


def crossings(config: PPOConfig, env_id: str, device: str, seconds: float) -> Row:
    """Bytes and seconds of a publish, and of a rollout's copy."""
    environments = make_environments(env_id, config.num_envs, vectorization="sync")
    agent = PPO(environments.observation_space, environments.action_space, config, seed=0)
    placement = mirror(device)
    placement.prepare(agent)
    pin_for = placement.learning_device if placement.pins_rollouts else None
    noise = np.random.default_rng(0)
    with contextlib.closing(
        Sampler(
            environments, agent.distribution, num_steps=config.num_steps, env_seed=0, noise=noise, pin_for=pin_for,
            memory=agent.memory,
        )
    ) as sampler:  # fmt: skip
        counters = placement.counters

        def publish() -> float:
            agent.version += 1  # as an update does
            before = counters.seconds_copying
            with placement.sampling(agent):
                pass
            return counters.seconds_copying - before

        with placement.sampling(agent) as actor:
            rollout = sampler.collect(actor)

        def send() -> float:
            before = counters.seconds_copying, time.perf_counter()
            if device != "cpu":
                placement.to_learner(rollout)
                return counters.seconds_copying - before[0]
            rollout.map(torch.clone)  # on one device nothing crosses, and a copy stands in for it
            return time.perf_counter() - before[1]

        row = {"publish_seconds": median_of(publish, seconds), "rollout_seconds": median_of(send, seconds)}
    num_bytes = {
        "publish": agent.parameters.of("actor").nbytes + sum(buffer.nbytes for buffer in agent.actor.buffers()),
        "rollout": rollout.num_bytes,
    }
    for name, size in num_bytes.items():
        row |= {f"{name}_bytes": size, f"{name}_bytes_per_second": size / row[f"{name}_seconds"]}
    return row


def iterations(config: PPOConfig, env_id: str, placement: Placement, seconds: float) -> dict[str, float]:
    """Medians of the parts of an iteration, and of a whole one."""
    history: list[dict[str, float]] = []
    until = time.perf_counter() + seconds
    ends: list[float] = []

    class EnoughError(Exception):
        pass

    def note(metrics: dict[str, float]) -> None:
        history.append(metrics)
        ends.append(time.perf_counter())
        if len(history) > WARMUP + 2 and time.perf_counter() > until:
            raise EnoughError

    with contextlib.suppress(EnoughError):
        hybridppo.train(
            env_id, total_steps=10**9, config=config, placement=placement, seed=0, progress=False, on_iteration=note
        )
    measured = history[WARMUP:]
    whole = statistics.median(b - a for a, b in zip(ends[WARMUP - 1 :], ends[WARMUP:], strict=False))
    parts = ("seconds_sampling", "seconds_learning", "seconds_copying")
    return {name: statistics.median(metrics[name] for metrics in measured) for name in parts} | {"seconds": whole}


def measure(env_id: str, hidden_sizes: tuple[int, ...], num_envs: int, device: str, seconds: float) -> Row:
    """One size of network."""
    config = cleanrl(num_envs=num_envs, hidden_sizes=hidden_sizes)
    turns = iterations(config, env_id, mirror(device), seconds)
    ahead = iterations(config, env_id, Mirrored("cpu", device, max_lag=1), seconds)
    longer = max(turns["seconds_sampling"], turns["seconds_learning"])
    return {
        "hidden_sizes": list(hidden_sizes),
        "device": device,
        "by_turns": turns,
        "overlap": ahead,
        "longer_part": longer,
        "overlap_over_longer_part": ahead["seconds"] / longer,
        **crossings(config, env_id, device, seconds),
    }


def as_markdown(rows: list[Row]) -> str:
    """A line for each size."""
    lines = [
        "| hidden layers | publish | GB/s | rollout | GB/s | sampling | learning | by turns | overlap "
        "| overlap / longer part |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        turns = row["by_turns"]
        times = row["publish_seconds"], row["rollout_seconds"]
        rates = row["publish_bytes_per_second"], row["rollout_bytes_per_second"]
        parts = turns["seconds_sampling"], turns["seconds_learning"], turns["seconds"], row["overlap"]["seconds"]
        cells = [f"{1e6 * times[0]:.0f} us", f"{1e-9 * rates[0]:.2f}", f"{1e6 * times[1]:.0f} us"]
        cells += [f"{1e-9 * rates[1]:.2f}", *(f"{1e3 * part:.1f} ms" for part in parts)]
        sizes = " x ".join(map(str, row["hidden_sizes"]))
        lines.append(f"| {sizes} | {' | '.join(cells)} | {row['overlap_over_longer_part']:.2f} |")
    return "\n".join(lines)


def copies_as_markdown(rows: list[Row]) -> str:
    """A line for each size, with the copies alone."""
    lines = ["| hidden layers | copy | kB | us | GB/s |", "|---|---|---:|---:|---:|"]
    for row in rows:
        sizes = " x ".join(map(str, row["hidden_sizes"]))
        for name in ("publish", "rollout"):
            size, seconds, rate = (row[f"{name}_{unit}"] for unit in ("bytes", "seconds", "bytes_per_second"))
            lines.append(f"| {sizes} | {name} | {1e-3 * size:,.0f} | {1e6 * seconds:.0f} | {1e-9 * rate:.2f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--hidden-sizes", nargs="+", default=HIDDEN_SIZES, metavar="N,N")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after a warm-up")
    parser.add_argument("--output", type=Path, default=machine.RESULTS, help="the folder (default %(default)s)")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for text in options.hidden_sizes:
        sizes = tuple(int(size) for size in text.split(","))
        rows.append(measure(options.env_id, sizes, options.num_envs, device, options.seconds))
        print(f"\n{as_markdown(rows[-1:])}")
    name = "crossing-cuda" if device == "cuda" else "crossing"
    path = machine.save(name, {"arguments": {**vars(options), "output": None}, "rows": rows}, options.output)
    print(f"\n{as_markdown(rows)}\n\nRaw figures: {path}")


if __name__ == "__main__":
    main()
