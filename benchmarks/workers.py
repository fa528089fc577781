"""Environments that are slow to step: worker processes against none, and against stable-baselines3's processes.

    python benchmarks/workers.py
    python benchmarks/workers.py --cases lander --rounds 3
    python benchmarks/workers.py --quick

Every turn is a fresh process (`contestants.py`) that trains and times both phases, so that one turn gives two speeds:
steps per second of sampling (for stable-baselines3, of its `collect_rollouts`), and steps per second of the whole
training. All do the same work: as many steps per rollout, and as many minibatches of the same size.
stable-baselines3 runs a process per environment, so the number of environments affects its speed; it is varied like
its start method. For either speed, the ratio is to the best of these settings. The trainer's
torch has one thread for all: minibatches of this size take longer with two.
"""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import contestants
import machine
from cases import SLOW_CASES
from turns import Round, in_words, medians, ratios, take_turns

IN_PROCESS, OURS, PEER = "hybridppo in-process", "hybridppo 2 workers", "stable-baselines3 subproc"
KEYS = ("sampled_per_second", "steps_per_second")


def command_lines(case: str, extra: list[str]) -> dict[str, list[str]]:
    """For each contestant, the command of its turn."""
    start, case_and_extra = [sys.executable, str(Path(contestants.__file__))], [case, *extra]
    ours = [*start, "hybridppo", *case_and_extra]
    theirs = [*start, "stable-baselines3", *case_and_extra]
    subproc = [*theirs, "--vector", "subproc"]
    num_envs = SLOW_CASES[case].num_envs
    numbers = [number for number in (2, 4, 8, 16) if number <= num_envs]
    return {
        IN_PROCESS: [*ours, "--num-workers", "0"],
        OURS: [*ours, "--num-workers", "2"],
        f"{OURS}, overlap": [*ours, "--num-workers", "2", "--placement", "overlap", "--learning-device", "cpu"],
        "stable-baselines3 dummy": theirs,
        **{f"{PEER} {number}": [*subproc, "--num-envs", str(number)] for number in numbers},
        f"{PEER} 4, fork": [*subproc, "--num-envs", "4", "--start-method", "fork"],
        f"{PEER} 4, spawn": [*subproc, "--num-envs", "4", "--start-method", "spawn"],
    }


def summarize(rounds: list[Round]) -> dict[str, Any]:
    """Medians of all, the best setting of the peer for either speed, and the ratios to it."""
    rows = {name: medians(rounds, name) for name in rounds[0]}
    subproc = [name for name in rows if name.startswith(PEER)]
    best = {key: max(subproc, key=lambda name: rows[name][key]) for key in KEYS}
    return {
        "rows": rows,
        "best_subproc": best,
        "to_in_process": {key: ratios(rounds, OURS, IN_PROCESS, key) for key in KEYS},
        "to_best_subproc": {key: ratios(rounds, OURS, best[key], key) for key in KEYS},
        "to_dummy": {key: ratios(rounds, OURS, "stable-baselines3 dummy", key) for key in KEYS},
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The tables of a result file."""
    parts = []
    for name, case in result["cases"].items():
        summary = case["summary"]
        lines = [f"`{name}`: {case['work']}", "", "| | steps sampled/s | steps trained/s |", "|---|---:|---:|"]
        for contestant, row in summary["rows"].items():
            # With overlap, the time spent sampling is only what the trainer waited for.
            sampled = "" if "overlap" in contestant else f"{row['sampled_per_second']:,.0f}"
            lines.append(f"| {contestant} | {sampled} | {row['steps_per_second']:,.0f} |")
        lines += ["", f"| {OURS}, times | sampling | training |", "|---|---:|---:|"]
        for label, key in (
            (IN_PROCESS, "to_in_process"),
            (f"the best {PEER}", "to_best_subproc"),
            ("stable-baselines3 dummy", "to_dummy"),
        ):
            lines.append(f"| {label} | " + " | ".join(in_words(summary[key][each]) for each in KEYS) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    """Measure the cases asked for, print and save the results."""
    known = SLOW_CASES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(known), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="1 round of 1 iteration, to see that it works")
    arguments = parser.parse_args()
    names = arguments.cases.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"unknown cases {sorted(unknown)}: use {', '.join(known)}")
    if arguments.quick:
        arguments.rounds = 1
    cases: dict[str, Any] = {}
    for name in names:
        print(f"case {name}", file=sys.stderr)
        commands = command_lines(name, ["--iterations", "1"] if arguments.quick else [])
        rounds = take_turns(commands, arguments.rounds)
        cases[name] = {"work": known[name].in_words(), "summary": summarize(rounds), "rounds": rounds}
    versions = {name: version(name) for name in ("hybridppo", "stable-baselines3", "Box2D", "mujoco")}
    payload = {"arguments": vars(arguments), "versions": versions, "cases": cases}
    machine.report("workers_quick" if arguments.quick else "workers", payload, as_markdown(payload))


if __name__ == "__main__":
    main()
