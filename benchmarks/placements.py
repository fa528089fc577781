"""Which placement is fastest, by size of network? Trains for some seconds under each that this machine can run.

    python benchmarks/placements.py
    python benchmarks/placements.py --hidden-sizes 64,64 1024,1024 --seconds 5

With a CUDA device: cpu, cuda, migrate, hybrid and overlap, with eager optimizer steps and with CUDA graphs. Without
one: cpu, and overlap of two cores.
Results go to results/placements.json, or to results/placements-cuda.json with a CUDA device.
"""

import argparse
from typing import Any

import machine
import torch
from settings import cleanrl

from hybridppo.auto.comparison import as_markdown, compare_placements

HIDDEN_SIZES = ["64", "64,64", "128", "128,128", "256", "256,256", "1024", "1024,1024"]


def measure(env_id: str, hidden_sizes: tuple[int, ...], num_envs: int, seconds: float) -> list[dict[str, Any]]:
    """One size of network under every placement, with and without CUDA graphs if there is a CUDA device."""
    cases = []
    for cuda_graphs in (False, True) if torch.cuda.is_available() else (False,):
        config = cleanrl(num_envs=num_envs, hidden_sizes=hidden_sizes, cuda_graphs=cuda_graphs)
        found = compare_placements(env_id, config, seconds=seconds, max_lag=1)
        steps = ", captured optimizer steps" if cuda_graphs else ""
        print(f"\n### {env_id}, {num_envs} environments, hidden layers {hidden_sizes}{steps}\n\n{as_markdown(found)}")
        cases.append({"env_id": env_id, "config": config.to_json(), "rows": found["candidates"]})
    return cases


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--hidden-sizes", nargs="+", default=HIDDEN_SIZES, metavar="N,N")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each placement and size, after a warm-up")
    arguments = parser.parse_args()
    sizes = [tuple(int(size) for size in text.split(",")) for text in arguments.hidden_sizes]
    cases = []
    for size in sizes:
        cases += measure(arguments.env_id, size, arguments.num_envs, arguments.seconds)
    name = "placements-cuda" if torch.cuda.is_available() else "placements"
    machine.report(name, {"arguments": vars(arguments), "cases": cases})


if __name__ == "__main__":
    main()
