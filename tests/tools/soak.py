"""A long training of a small network: memory, file handles and threads must not grow.

    python tests/tools/soak.py                        # 2,000 iterations: about half a minute
    python tests/tools/soak.py --iterations 1000000   # as long as you like
    python tests/tools/soak.py --placement overlap

It trains in CartPole, 8 environments x 128 steps, two hidden layers of 64, with a run directory and a checkpoint every
second. It compares the resources of the process at the end with those after a warm-up. The exit code is 1 if memory has
grown by 5 MB or more, or if there are more handles, threads or processes.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import hybridppo
from hybridppo import Mirrored, PPOConfig, SingleDevice
from hybridppo.run_directory.files import as_json

MOST_GROWTH_MB = 5.0
PLACEMENTS = {"cpu": (SingleDevice("cpu"), 0), "workers": (SingleDevice("cpu"), 2), "overlap": (None, 1)}


def held() -> dict[str, float]:
    """The resources of this process and of the processes that it has started."""
    me = psutil.Process()
    everyone = [me, *me.children(recursive=True)]
    return {
        "resident_mb": sum(process.memory_info().rss for process in everyone) / 1e6,
        "handles": sum(process.num_fds() if sys.platform != "win32" else process.num_handles() for process in everyone),
        "threads": sum(process.num_threads() for process in everyone),
        "processes": len(everyone),
    }


def soak(iterations: int, warmup: int, placement: str, run_dir: Path) -> dict[str, Any]:
    """Train; return the resources after `warmup` iterations, and after all iterations."""
    chosen, workers = PLACEMENTS[placement]
    seen: dict[int, dict[str, float]] = {}
    config = PPOConfig(num_envs=8, num_steps=128, hidden_sizes=(64, 64))

    def look(metrics: dict[str, float]) -> None:
        if metrics["iteration"] in (warmup, iterations):
            seen[int(metrics["iteration"])] = held()

    start = time.monotonic()
    hybridppo.train(
        "CartPole-v1",
        total_steps=iterations * config.batch_size,
        seed=0,
        placement=chosen if chosen is not None else Mirrored("cpu", "cpu", max_lag=1),
        config=config,
        vectorization="sync",  # every row is a step: the number of iterations is known
        num_workers=workers,
        run_dir=run_dir,
        checkpoint_seconds=1.0,
        progress=False,
        on_iteration=look,
    )
    return {
        "placement": placement,
        "iterations": iterations,
        "seconds": round(time.monotonic() - start, 1),
        "after_warm_up": seen[warmup],
        "at_the_end": seen[iterations],
        "growth_mb": round(seen[iterations]["resident_mb"] - seen[warmup]["resident_mb"], 3),
    }


def is_steady(result: dict[str, Any]) -> bool:
    """Whether no resource has grown."""
    before, after = result["after_warm_up"], result["at_the_end"]
    counts = all(after[name] <= before[name] for name in ("handles", "threads", "processes"))
    return counts and result["growth_mb"] < MOST_GROWTH_MB


def main() -> int:
    """Train, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=2000, help="in all (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=200, help="of them before the first look (default %(default)s)")
    parser.add_argument("--placement", choices=sorted(PLACEMENTS), default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hybridppo-soak-") as folder:
        result = soak(arguments.iterations, arguments.warmup, arguments.placement, Path(folder) / "run")
    print(as_json(result).rstrip())
    return 0 if is_steady(result) else 1


if __name__ == "__main__":
    sys.exit(main())
