"""Compare placements for several networks: the published comparison on CartPole, on this machine, in one command.

    python scripts/compare_placements.py
    python scripts/compare_placements.py --hidden-sizes 64 512,512 --seeds 3
    python scripts/compare_placements.py --quick --output comparison

It trains in CartPole for 500 episodes, with networks of one and two hidden layers, under every placement that this
machine can run, and with the textbook's loop in plain torch. An update follows each episode, or each rollout of 8
environments. Then it trains PPO with a pool of past trajectories, and DDPG (Pendulum), which publish every update,
every tenth or every fiftieth, and update during sampling or after it.

It prints a Markdown table, and says which of the article's conclusions hold here. It writes the figures (JSON), the
table (Markdown) and a picture (PNG). The use of a GPU is shown only if `nvidia-ml-py` is installed. It takes about
half an hour on two CPU cores; `--quick` takes far less.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import machine
import pictures
import placements
import torch


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
    usual = [placements.TEXTBOOK_SIZE] if arguments.quick else placements.SIZES
    found = placements.run(
        sizes=sizes or usual,
        episodes=20 if arguments.quick else arguments.episodes,
        seeds=arguments.seeds,
        report=lambda line: print(f"  {line}", file=sys.stderr),
    )
    table = placements.as_markdown(found["rows"])
    print(table)
    name = "placements" + ("-cuda" if torch.cuda.is_available() else "") + ("_quick" if arguments.quick else "")
    path = machine.save(name, {"arguments": {**vars(arguments), "output": None}, **found}, arguments.output)
    path.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    print(f"\nRaw figures: {path}\nPicture: {pictures.comparison(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
