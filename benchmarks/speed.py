"""The same work for this library, stable-baselines3 and skrl, side by side: environment steps per second.

    python benchmarks/speed.py
    python benchmarks/speed.py --quick
    python benchmarks/speed.py --cases wide --forms cpu,cpu-compiled-2,hybrid
    python benchmarks/speed.py --cases lander,cheetah,racing     # environments that are slow to step

Each turn is a fresh process with one torch thread (`contestants.py`). The contestants take turns, in reversed order
every other round, so that other work on the machine affects all of them. Compare the ratios, which are made within each
round; absolute figures belong to the machine.
"""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import contestants
import machine
import torch
from cases import ALL_CASES, CASES, SLOW_CASES
from turns import Round, medians, ratios, take_turns

PEER = "stable-baselines3"
FORMS = ("cpu", "overlap")
SLOW_FORMS = ("cpu-workers0", "cpu-workers2", "overlap-workers2")
FLAGS = {
    "bf16": ["--precision", "bf16"],
    "compiled": ["--compiled-updates"],
    "fused": ["--vectorization", "compiled"],
    "workers0": ["--num-workers", "0"],
    "workers2": ["--num-workers", "2"],
}


def flags_of(form: str) -> list[str]:
    """The flags of a form of this library: a placement, and what is behind it, as `cpu-compiled-2`."""
    placement, *others = form.split("-")
    return [
        "--placement",
        placement,
        *(flag for other in others for flag in FLAGS.get(other, ["--torch-threads", other])),
    ]


def command_lines(arguments: argparse.Namespace, case: str) -> dict[str, list[str]]:
    """For each contestant, the command of its turn."""
    start = [sys.executable, str(Path(contestants.__file__))]
    end = [case, "--learning-device", arguments.learning_device, *(["--iterations", "2"] if arguments.quick else [])]
    forms = arguments.forms.split(",") if arguments.forms else SLOW_FORMS if case in SLOW_CASES else FORMS
    found = {f"hybridppo {form}": [*start, "hybridppo", *end, *flags_of(form)] for form in forms}
    found[PEER] = [*start, PEER, *end]
    if case in SLOW_CASES:
        found[f"{PEER}, 4 processes"] = [*found[PEER], "--vector", "subproc", "--num-envs", "4"]
    else:
        found["skrl"] = [*start, "skrl", *end]
    return found


def table(case: str, rounds: list[Round]) -> str:
    """A case as a table."""
    lines = [
        f"### {case}: {ALL_CASES[case].in_words()}",
        "",
        f"| | steps/s, median (min to max) | sampling ms | learning ms | ratio to {PEER}, median (by round) |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in rounds[0]:
        speeds, middle = [turns[name]["steps_per_second"] for turns in rounds], medians(rounds, name)
        ratio = ratios(rounds, name, PEER, "steps_per_second")
        lines.append(
            f"| {name} | {middle['steps_per_second']:,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f}) "
            f"| {middle['ms_sampling']:.1f} | {middle['ms_learning']:.1f} "
            f"| {ratio['median']:.2f} ({', '.join(f'{each:.2f}' for each in ratio['rounds'])}) |"
        )
    return "\n".join(lines)


def as_markdown(result: dict[str, Any]) -> str:
    """The tables of a result file."""
    return "\n\n".join(table(case, found["rounds"]) for case, found in result["cases"].items())


def main() -> None:
    """Measure the cases asked for, print and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(ALL_CASES)} (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant (default %(default)s)")
    parser.add_argument(
        "--forms",
        help="of hybridppo: a placement, with -bf16, -compiled (updates), -fused (compiled environments), -workers2 or "
        "a number of threads behind it",
    )
    parser.add_argument(
        "--learning-device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="of placements with two devices (default %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="1 round of 2 iterations, to see that it works")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases.split(",")) - set(ALL_CASES):
        parser.error(f"unknown cases {sorted(unknown)}: use {', '.join(ALL_CASES)}")
    cases = {
        case: {"rounds": take_turns(command_lines(arguments, case), 1 if arguments.quick else arguments.rounds)}
        for case in arguments.cases.split(",")
    }
    versions = {name: version(name) for name in ("hybridppo", PEER, "skrl")}
    payload = {"arguments": vars(arguments), "versions": versions, "cases": cases}
    machine.report("speed_quick" if arguments.quick else "speed", payload, as_markdown(payload))


if __name__ == "__main__":
    main()
