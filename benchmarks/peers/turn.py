"""A turn of another library: its result is a line of JSON.

python benchmarks/peers/turn.py stable-baselines3 small
python benchmarks/peers/turn.py CleanRL small --checkouts ~/src
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # its own folder has files with the names of libraries

from cases import ALL_CASES, count_processor_time  # noqa: E402

import peers  # noqa: E402


def main() -> None:
    """Run one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=peers.TURNS)
    parser.add_argument("case", choices=ALL_CASES)
    parser.add_argument("--device", default="cpu", help="which computes all of it (default %(default)s)")
    parser.add_argument("--iterations", type=int, help="counted iterations instead of the case's own")
    parser.add_argument("--checkouts", type=Path, help="a folder with clones of the scripts")
    parser.add_argument("--processor-time", action="store_true", help="count seconds on the processor, of all threads")
    arguments = parser.parse_args()
    if arguments.processor_time:
        count_processor_time()
    case = replace(ALL_CASES[arguments.case], device=arguments.device)
    if arguments.iterations is not None:
        case = replace(case, iterations=arguments.iterations)
    print("\n" + json.dumps(peers.run(arguments.peer, case, arguments.checkouts)))


if __name__ == "__main__":
    main()
