"""What a GPU gains: placements by size of network, and batched environments on the GPU by their number.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --hidden-sizes 64,64 1024,1024 --num-envs 256 4096 65536 --seconds 5

Every figure is the median of iterations of one training through `hybridppo.train`, after a warm-up. Placements take
turns in each round. Batched environments are CartPole on torch tensors (`hybridppo.tensors.TorchCartPole`), with
rollouts of 32 steps and one epoch of four minibatches, on the device and stepped from the host. Without a CUDA device
the CPU stands in for it, which shows that the script works; results then go to results/gpu_cpu.json.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import machine
import torch
from settings import cleanrl
from turns import history_of

from hybridppo import Migrating, Mirrored, PPOConfig, SingleDevice
from hybridppo.tensors import TorchCartPole

Row = dict[str, Any]
WARM_UP = 1.0
"""Seconds of each training that do not count."""


def placements(device: str) -> dict[str, Any]:
    """What is compared, by name."""
    return {
        "cpu": SingleDevice("cpu"),
        device: SingleDevice(device),
        "migrate": Migrating("cpu", device),
        "hybrid": Mirrored("cpu", device, force_copy=device == "cpu"),
        "overlap": Mirrored("cpu", device, max_lag=1),
    }


def trained(env: Any, seconds: float, **options: Any) -> Row:
    """Medians over the iterations of a training: steps per second, and seconds of its parts."""
    history = history_of(env, WARM_UP, seconds, **options)
    parts = ("steps_per_second", "seconds_sampling", "seconds_learning", "seconds_copying")
    row = {part: statistics.median(metrics[part] for _, metrics in history) for part in parts}
    first, last = history[0][1], history[-1][1]
    iterations = max(1.0, last["iteration"] - first["iteration"])
    return row | {"bytes_per_iteration": (last["bytes_copied"] - first["bytes_copied"]) / iterations}


def by_size(env_id: str, sizes: list[str], device: str, seconds: float, rounds: int) -> list[Row]:
    """Every placement for every size of network."""
    rows = []
    for text in sizes:
        config = cleanrl(num_envs=8, hidden_sizes=tuple(int(size) for size in text.split(",")))
        turns: dict[str, list[Row]] = {}
        for _ in range(rounds):
            for name, placement in placements(device).items():
                turns.setdefault(name, []).append(trained(env_id, seconds, placement=placement, config=config))
        rows += [
            {"env_id": env_id, "hidden_sizes": text, "candidate": name, **_medians(of)} for name, of in turns.items()
        ]
    return rows


def by_number(numbers: list[int], device: str, seconds: float, rounds: int) -> list[Row]:
    """Batched environments, on the device and stepped from the host."""
    rows = []
    for number in numbers:
        config = PPOConfig(num_envs=number, num_steps=32, num_epochs=1, num_minibatches=4)
        forms = {
            "on the device": partial(TorchCartPole, number, device),
            "on the CPU": partial(TorchCartPole, number, "cpu"),
        }
        for name, env in forms.items():
            turns = [trained(env, seconds, placement=SingleDevice(device), config=config) for _ in range(rounds)]
            rows.append({"num_envs": number, "candidate": name, **_medians(turns)})
    return rows


def _medians(turns: list[Row]) -> Row:
    return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]} | {"turns": turns}


def as_markdown(result: dict[str, Any]) -> str:
    """The steps per second, a line for each size and for each number of environments."""
    tables = []
    for key, heading in (("hidden_sizes", "hidden layers"), ("num_envs", "batched environments")):
        rows = [row for row in result["rows"] if key in row]
        names = list(dict.fromkeys(row["candidate"] for row in rows))
        lines = [f"| {heading} | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
        for value in dict.fromkeys((row.get("env_id", ""), row[key]) for row in rows):
            speeds = {
                row["candidate"]: row["steps_per_second"] for row in rows if (row.get("env_id", ""), row[key]) == value
            }
            cells = [f"{speeds[name]:,.0f}" if name in speeds else "" for name in names]
            best = max(speeds.values())
            cells = [
                f"**{cell}**" if speeds.get(name) == best else cell for name, cell in zip(names, cells, strict=True)
            ]
            lines.append(f"| {' '.join(map(str, value)).strip()} | {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--hidden-sizes", nargs="+", default=["64,64", "256,256", "1024,1024"], metavar="N,N")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[256, 4096, 65536], metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each training, after a warm-up")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each (default %(default)s)")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    how = device, arguments.seconds, arguments.rounds
    rows = [*by_size(arguments.env_id, arguments.hidden_sizes, *how), *by_number(arguments.num_envs, *how)]
    payload = {"arguments": vars(arguments), "rows": rows}
    machine.report("gpu" if device == "cuda" else "gpu_cpu", payload, as_markdown(payload))


if __name__ == "__main__":
    main()
