"""Compare placements for several networks: the published experiment on CartPole, on this machine, in one command.

    python scripts/compare_placements.py
    python scripts/compare_placements.py --hidden-sizes 64 512,512 --seeds 3
    python scripts/compare_placements.py --quick --output comparison

It trains in CartPole for 500 episodes, with networks of one and two hidden layers, under every placement that this
machine can run, and with the textbook's loop in plain torch. An update follows each episode, or each rollout of 8
environments. Then it trains DDPG (Pendulum) and PPO with a pool of past trajectories, which publish every update, every
tenth or every fiftieth, and update during sampling or after it.

It prints Markdown tables, and says which of the article's conclusions hold here. It writes the figures (JSON), the
tables (Markdown) and a picture (PNG). The use of a GPU is shown only if `nvidia-ml-py` is installed. It takes about
half an hour on two CPU cores; `--quick` takes far less.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import comparison
import machine
import pictures
import publishing
import torch

QUICK_SIZES = [comparison.TEXTBOOK_SIZE]


def main() -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-sizes", nargs="+", metavar="N,N", help="instead of 64, 128, 256, once and twice each")
    parser.add_argument("--episodes", type=int, default=500, help="of each training (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each (default %(default)s): medians count")
    parser.add_argument("--output", type=Path, default=machine.RESULTS, help="the folder (default %(default)s)")
    parser.add_argument("--only", choices=("networks", "publishing"), help="one half of it")
    parser.add_argument("--quick", action="store_true", help="20 episodes of the textbook's network; kept apart")
    arguments = parser.parse_args()
    sizes = [tuple(int(size) for size in text.split(",")) for text in arguments.hidden_sizes or []]
    if arguments.quick:
        arguments.episodes = 20
    ending = ("-cuda" if torch.cuda.is_available() else "") + ("_quick" if arguments.quick else "")
    asked = {**vars(arguments), "output": None}
    if arguments.only != "publishing":
        networks = comparison.run(
            sizes=sizes or (QUICK_SIZES if arguments.quick else comparison.SIZES),
            episodes=arguments.episodes,
            seeds=arguments.seeds,
            report=report,
        )
        table = comparison.as_markdown(networks["rows"], networks["left_out"])
        path = keep(f"comparison{ending}", {"arguments": asked, **networks}, table, arguments.output)
        print(f"Picture: {pictures.comparison(path)}")
    if arguments.only != "networks":
        experiments = [each.quick if arguments.quick else each for each in publishing.EXPERIMENTS]
        if sizes:
            experiments = [replace(each, sizes=tuple(sizes)) for each in experiments]
        published = publishing.run(experiments, seeds=arguments.seeds, report=report)
        table = publishing.as_markdown(published)
        keep(f"publishing{ending}", {"arguments": asked, **published}, table, arguments.output)
    return 0


def report(line: str) -> None:
    """Print a line for each turn."""
    print(f"  {line}", file=sys.stderr)


def keep(name: str, figures: dict[str, Any], table: str, folder: Path) -> Path:
    """Print the table, and write it beside the figures."""
    print(table)
    path = machine.save(name, figures, folder)
    path.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    print(f"\nRaw figures: {path}")
    return path


if __name__ == "__main__":
    sys.exit(main())
