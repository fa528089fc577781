"""The textbook's case, side by side: this library against the plain loop of `textbook.py`, on the CPU.

    python benchmarks/against_textbook.py
    python benchmarks/against_textbook.py --quick

CartPole, 500 episodes of one environment, an update of 10 epochs after each, actor and critic of one hidden layer of
128. The contestants take turns over the seeds, each turn in a fresh process: this library with one thread, the loop
with one thread and with torch's default. This library must make at least 4 times the steps per second of the faster
loop, by the median over the seeds, with returns as good; otherwise the exit code is 1. Takes about four minutes on two
cores.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import comparison
import machine
import torch

TARGET = 4.0
WORK = comparison.Work(comparison.TEXTBOOK_SIZE, comparison.BY_EPISODE)
CONTESTANTS = (
    comparison.CPU_ONE_THREAD,
    comparison.TEXTBOOK_ONE_THREAD,
    comparison.TEXTBOOK_DEFAULT_THREADS,
)


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The ratio of steps per second to the faster loop (by its median) in each round, and the returns.

    Returns count as good if their mean over the seeds is at least 98 % of that loop's.
    """
    ours, *loops = rows
    loop = max(loops, key=lambda row: float(row["steps_per_second"]))
    pairs = list(zip(ours["turns"], loop["turns"], strict=True))
    ratios = [mine["steps_per_second"] / theirs["steps_per_second"] for mine, theirs in pairs]
    returns = {row["candidate"]: [turn["return_mean"] for turn in row["turns"]] for row in rows}
    means = {name: statistics.mean(of) for name, of in returns.items()}
    ratio = statistics.median(ratios)
    as_good = means[ours["candidate"]] >= 0.98 * means[loop["candidate"]]
    return {
        "compared_with": loop["candidate"],
        "ratio": {"median": ratio, "rounds": ratios},
        "returns": returns,
        "return_means": means,
        "met": ratio >= TARGET and as_good,
    }


def as_markdown(rows: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    """The contestants as a table, and the outcome."""
    lines = [
        "| | steps/s, median (min to max) | seconds | us a step: sampling, learning | ms an update "
        "| mean return of the last 100 episodes, by seed | mean |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        speeds = [turn["steps_per_second"] for turn in row["turns"]]
        returns = ", ".join(f"{each:.0f}" for each in summary["returns"][row["candidate"]])
        lines.append(
            f"| {row['candidate']} | {row['steps_per_second']:,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f}) "
            f"| {row['seconds']:.1f} | {row['us_sampling']:.1f}, {row['us_learning']:.1f} | {row['ms_per_update']:.2f} "
            f"| {returns} | {summary['return_means'][row['candidate']]:.0f} |"
        )
    ratio = summary["ratio"]
    by_round = ", ".join(f"{each:.2f}" for each in ratio["rounds"])
    lines += ["", f"Ratio to {summary['compared_with']}: {ratio['median']:.2f} (by seed: {by_round})."]
    return "\n".join(lines)


def main() -> int:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500, help="of each training (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each (default %(default)s)")
    parser.add_argument("--output", type=Path, default=machine.RESULTS, help="the folder (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 seeds of 30 episodes; kept apart, and nothing asked")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.episodes, arguments.seeds = 30, 2
    able, _ = comparison.candidates(has_cuda=False, cores=2, default_threads=torch.get_num_threads())
    present = [candidate for candidate in able if candidate.name in CONTESTANTS]
    rows = comparison.measure(
        [WORK],
        present,
        episodes=arguments.episodes,
        seeds=range(arguments.seeds),
        report=lambda line: print(f"  {line}", file=sys.stderr),
    )
    summary = summarize(rows)
    print(as_markdown(rows, summary))
    payload = {"arguments": {**vars(arguments), "output": None}, "summary": summary, "rows": rows}
    path = machine.save("textbook_quick" if arguments.quick else "textbook", payload, arguments.output)
    import pictures  # with matplotlib, which takes longer to import than all else here

    print(f"\nRaw figures: {path}\nPicture: {pictures.textbook(path, path.with_suffix('.png'))}")
    return 0 if summary["met"] or arguments.quick else 1


if __name__ == "__main__":
    sys.exit(main())
