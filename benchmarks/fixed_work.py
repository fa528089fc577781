"""The same work for this library, stable-baselines3 and skrl, side by side: environment steps per second.

    python benchmarks/fixed_work.py
    python benchmarks/fixed_work.py --quick
    python benchmarks/fixed_work.py --cases wide --placements cpu,hybrid

Every turn is a fresh process with one torch thread (`contestants.py`). The contestants take turns, in reversed
order every other round, so that whatever else the machine does affects all of them. One of them is `limits`: the
bare environments and the bare matrix products, and nothing else. Compare the ratios, made within
each round; the absolute figures belong to the machine.
"""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import contestants
import machine
import torch
from cases import CASES, MORE_CASES
from turns import Round, medians, ratios, take_turns

PEER, OTHER_PEERS = "stable-baselines3", ("skrl",)
"""Ratios are to the first of them."""
ALL_CASES = CASES | MORE_CASES
LIMITS = "limits"
LIMIT_KEYS = ("us_per_vector_step", "ms_per_minibatch_numpy", "ms_per_minibatch_torch", "ms_per_minibatch_fastest")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", default=",".join(CASES), help="of small,wide,wider,many,many_once (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant (default %(default)s)")
    parser.add_argument(
        "--placements",
        default="cpu",
        help="of hybridppo: cpu,cuda,migrate,hybrid,overlap, any of them with -bf16, -compiled (updates), -fused "
        "(compiled environments) or a number of threads behind it, as cpu-compiled-2 (default %(default)s)",
    )
    parser.add_argument(
        "--learning-device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="of placements with two devices (default %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds of 3 iterations, to see that it works")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases.split(",")) - set(ALL_CASES):
        parser.error(f"unknown cases {sorted(unknown)}: use {', '.join(ALL_CASES)}")
    if arguments.quick:
        arguments.rounds = 2
    return arguments


def command_lines(arguments: argparse.Namespace, case: str) -> dict[str, list[str]]:
    """For each contestant, the command of its turn."""
    start = [sys.executable, str(Path(contestants.__file__))]
    end = [case, "--learning-device", arguments.learning_device]
    if arguments.quick:
        end += ["--iterations", "3"]
    ours = {
        f"hybridppo {name}": [*start, "hybridppo", *end, *_flags_of(name)] for name in arguments.placements.split(",")
    }
    return {**ours, **{name: [*start, name, *end] for name in (*OTHER_PEERS, PEER, LIMITS)}}


def _flags_of(name: str) -> list[str]:
    """The flags that a placement's name with suffixes stands for."""
    placement, *others = name.split("-")
    flags = ["--placement", placement]
    for other in others:
        known = {
            "bf16": ["--precision", "bf16"],
            "compiled": ["--compiled-updates"],
            "fused": ["--vectorization", "compiled"],
        }
        flags += known.get(other) or ["--torch-threads", other]
    return flags


def summarize(rounds: list[Round], name: str) -> dict[str, Any]:
    """A contestant's medians over the rounds, and its ratio to the peer in each."""
    speeds, middle = [turns[name]["steps_per_second"] for turns in rounds], medians(rounds, name)
    return {
        "steps_per_second": {"median": middle["steps_per_second"], "min": min(speeds), "max": max(speeds)},
        "ms_sampling": middle["ms_sampling"],
        "ms_learning": middle["ms_learning"],
        "ratio": ratios(rounds, name, PEER, "steps_per_second"),
    }


def measure(arguments: argparse.Namespace, case: str) -> dict[str, Any]:
    """All that is measured of one case: the raw turns and their summary."""
    print(f"case {case}", file=sys.stderr)
    rounds = take_turns(command_lines(arguments, case), arguments.rounds)
    summary = {name: summarize(rounds, name) for name in rounds[0]}
    limits = medians(rounds, LIMITS)
    summary[LIMITS] |= {key: limits[key] for key in LIMIT_KEYS}
    return {"summary": summary, "rounds": rounds}


def as_markdown(case: str, summary: dict[str, Any]) -> str:
    """A case as a table, with the peers' rows after ours, and the limits below."""
    lines = [
        f"### {case}: {ALL_CASES[case.partition(',')[0]].in_words()}",
        "",
        f"| | steps/s, median (min to max) | sampling ms | learning ms | ratio to {PEER}, median (by round) |",
        "|---|---:|---:|---:|---:|",
    ]
    order = sorted(summary, key=lambda name: (name == LIMITS, name == PEER, name in OTHER_PEERS))
    lines += [_row(name, summary[name]) for name in order]
    limits = summary[LIMITS]
    lines += [
        "",
        f"Limits: a vector step takes {limits['us_per_vector_step']:.1f} us; the matrix products and tanh of a "
        f"minibatch {limits['ms_per_minibatch_numpy']:.3f} ms in NumPy and "
        f"{limits['ms_per_minibatch_torch']:.3f} ms in torch{_of_the_fastest(limits)}.",
    ]
    return "\n".join(lines)


def _of_the_fastest(limits: dict[str, Any]) -> str:
    """Of results that have it."""
    fastest = limits.get("ms_per_minibatch_fastest")
    if fastest is None:
        return " (the faster counts)"
    return f", {fastest:.3f} ms by the fastest kernel of each shape (the fastest counts)"


def _row(name: str, row: dict[str, Any]) -> str:
    speed, ratio = row["steps_per_second"], row["ratio"]
    by_round = ", ".join(f"{each:.2f}" for each in ratio["rounds"])
    return (
        f"| {name} | {speed['median']:,.0f} ({speed['min']:,.0f} to {speed['max']:,.0f}) | {row['ms_sampling']:.1f} "
        f"| {row['ms_learning']:.1f} | {ratio['median']:.2f} ({by_round}) |"
    )


def main() -> None:
    """Measure the cases asked for, print them, keep them."""
    arguments = parse_arguments()
    cases: dict[str, Any] = {}
    for case in arguments.cases.split(","):
        cases[case] = measure(arguments, case)
        print(as_markdown(case, cases[case]["summary"]), end="\n\n")
    versions = {name: version(name) for name in ("hybridppo", PEER, *OTHER_PEERS)}
    payload = {"arguments": vars(arguments), "versions": versions, "threads": 1, "cases": cases}
    print(f"Raw figures: {machine.save('fixed_work_quick' if arguments.quick else 'fixed_work', payload)}")


if __name__ == "__main__":
    main()
