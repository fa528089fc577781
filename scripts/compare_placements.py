"""Which placement wins for which network? The published experiment on CartPole, on this machine, in one command.

    python scripts/compare_placements.py
    python scripts/compare_placements.py --hidden-sizes 64 512,512 --seeds 3
    python scripts/compare_placements.py --quick --output comparison

Trains CartPole for 500 episodes with networks of one and two hidden layers, an update after each episode and after each
rollout of 8 environments, under every placement that this machine can run, and beside them the textbook's loop in plain
torch; and Pendulum with DDPG, which publishes every update, every tenth or every fiftieth. Prints Markdown tables and
which of the article's conclusions hold here, and writes the figures (JSON), the tables (Markdown) and a picture (PNG).
How busy a GPU is shows only where `nvidia-ml-py` is installed. Takes about fifteen minutes on two CPU cores; `--quick`
a fraction of one.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import comparison
import ddpg_placements
import machine
import pictures
import torch

QUICK_SIZES = [comparison.TEXTBOOK_SIZE]


def main() -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-sizes", nargs="+", metavar="N,N", help="instead of 64, 128, 256, once and twice each")
    parser.add_argument("--episodes", type=int, default=500, help="of each training (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each (default %(default)s): medians count")
    parser.add_argument("--output", type=Path, default=machine.RESULTS, help="the folder (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="20 episodes of the textbook's network; kept apart")
    arguments = parser.parse_args()
    sizes = [tuple(int(size) for size in text.split(",")) for text in arguments.hidden_sizes or []]
    if arguments.quick:
        arguments.episodes = 20
    results = comparison.run(
        sizes=sizes or (QUICK_SIZES if arguments.quick else comparison.SIZES),
        episodes=arguments.episodes,
        seeds=arguments.seeds,
        report=lambda line: print(f"  {line}", file=sys.stderr),
    )
    ddpg = ddpg_placements.run(
        sizes=ddpg_placements.SIZES[:1] if arguments.quick else ddpg_placements.SIZES,
        steps=200 if arguments.quick else ddpg_placements.STEPS,
        seeds=arguments.seeds,
        report=lambda line: print(f"  {line}", file=sys.stderr),
    )
    table = comparison.as_markdown(results["rows"], results["left_out"]) + "\n\n" + ddpg_placements.as_markdown(ddpg)
    print(table)
    name = "comparison" + ("-cuda" if torch.cuda.is_available() else "") + ("_quick" if arguments.quick else "")
    payload = {"arguments": {**vars(arguments), "output": None}, **results, "ddpg": ddpg}
    path = machine.save(name, payload, arguments.output)
    path.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    print(f"\nRaw figures: {path}\nPicture: {pictures.comparison(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
