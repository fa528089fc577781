"""Which placement is fastest, by size of network? Trains for some seconds under each that this machine can run.

    python benchmarks/placements.py
    python benchmarks/placements.py --hidden-sizes 64,64 1024,1024 --seconds 5 --pong

With a CUDA device: cpu, cuda, migrate, hybrid and overlap, with recorded optimizer steps (the default there) and with
eager ones. Without one: cpu, and overlap of two cores. `--pong` adds Pong from pixels, with the convolutions of Mnih et
al. (needs ale-py); all cores compute on the CPU then.
Results go to results/placements.json, or to results/placements-cuda.json with a CUDA device.
"""

import argparse
import os
from dataclasses import replace
from functools import partial
from typing import Any

import machine
import torch
from settings import cleanrl

from hybridppo import PPOConfig
from hybridppo.auto.comparison import as_markdown as table
from hybridppo.auto.comparison import compare_placements

HIDDEN_SIZES = ["64", "64,64", "128", "128,128", "256", "256,256", "1024", "1024,1024"]


def measure(env_id: str, env: Any, config: PPOConfig, seconds: float) -> list[dict[str, Any]]:
    """One network under every placement, and with eager steps, too, if there is a CUDA device."""
    cases = []
    for fast_updates in (True, False) if torch.cuda.is_available() else (True,):
        config = replace(config, fast_updates=fast_updates)
        found = compare_placements(env, config, seconds=seconds, max_lag=1)
        case = {"env_id": env_id, "config": config.to_json(), "rows": found["candidates"]}
        print(f"\n### {in_words(case)}\n\n{table(found)}")
        cases.append(case)
    return cases


def pong() -> tuple[Any, PPOConfig]:
    """Pong from pixels, and the settings for it."""
    import atari_learned

    cores = os.cpu_count() or 1
    env = partial(atari_learned.games, 84, min(cores, atari_learned.NUM_ENVS))
    return env, atari_learned.config_of("nature", 2.5e-4, torch_threads=cores)


def in_words(case: dict[str, Any]) -> str:
    """What a case trains."""
    config = case["config"]
    sizes = " x ".join(map(str, config["hidden_sizes"]))
    threads = f", {config['torch_threads']} threads" if config["torch_threads"] != 1 else ""
    steps = "" if config["fast_updates"] else ", autograd in every step"
    work = f"{case['env_id']}, {config['num_envs']} x {config['num_steps']} steps, hidden layers {sizes}"
    return work + threads + steps


def as_markdown(result: dict[str, Any]) -> str:
    """The steps per second of a result file, a line for each case."""
    labels = list(dict.fromkeys(_without_threads(row) for case in result["cases"] for row in case["rows"]))
    lines = ["| | " + " | ".join(labels) + " |", "|---|" + "---:|" * len(labels)]
    for case in result["cases"]:
        speeds = {_without_threads(row): row["steps_per_second"] for row in case["rows"]}
        best = max(speeds, key=lambda label: speeds[label])
        cells = [f"{speeds[label]:,.0f}" if label in speeds else "" for label in labels]
        cells = [f"**{cell}**" if label == best else cell for label, cell in zip(labels, cells, strict=True)]
        lines.append(f"| {in_words(case)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _without_threads(row: dict[str, Any]) -> str:
    """The label of a candidate without its number of threads, which the case names."""
    label: str = row["label"]
    return label.removesuffix(f", {row['torch_threads']} threads")


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--hidden-sizes", nargs="+", default=HIDDEN_SIZES, metavar="N,N")
    parser.add_argument("--pong", action="store_true", help="Pong from pixels, too")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each placement and size, after a warm-up")
    arguments = parser.parse_args()
    sizes = [tuple(int(size) for size in text.split(",")) for text in arguments.hidden_sizes]
    cases = []
    for size in sizes:
        config = cleanrl(num_envs=arguments.num_envs, hidden_sizes=size)
        cases += measure(arguments.env_id, arguments.env_id, config, arguments.seconds)
    if arguments.pong:
        cases += measure("ALE/Pong-v5", *pong(), arguments.seconds)
    name = "placements-cuda" if torch.cuda.is_available() else "placements"
    payload = {"arguments": vars(arguments), "cases": cases}
    machine.report(name, payload, as_markdown(payload))


if __name__ == "__main__":
    main()
