"""How fast the examples of changed algorithms train, beside the built-in algorithm with the same hyperparameters.

    python benchmarks/research.py
    python benchmarks/research.py --examples rnd,sac --rounds 1

Each file of `examples/` and the library's own algorithm train by turns in one process, on the same environment; double
DQN has no such counterpart, and takes turns with DDPG in Pendulum. `results/research_lines.json` has the lines of code
that each change takes here and in other libraries; how they were counted is in docs/own_loss.md.
"""

import argparse
import contextlib
import io
import runpy
import statistics
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import machine
from turns import history_of

from hybridppo import PPO

EXAMPLES = Path(__file__).parents[1] / "examples"
OWN = ("agent", "loss", "networks", "modules", "advantages", "action_distribution", "settings", "callbacks")
SKIPPED = ("particles", "tagging")
"""Environments."""


def training_of(name: str) -> tuple[Any, dict[str, Any]]:
    """The environment and the arguments of `train` in an example, which is run up to its training."""
    silent = contextlib.redirect_stdout(io.StringIO())
    with silent, mock.patch("hybridppo.train", return_value=mock.MagicMock()) as train:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return train.call_args.args[0], {**train.call_args.kwargs, "placement": "cpu"}


def built_in(name: str, env: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The training of the library's algorithm."""
    found = {key: value for key, value in options.items() if key not in OWN}
    if isinstance(agent := options.get("agent"), PPO):  # which has its configuration
        found["config"] = agent.config
    return "Pendulum-v1" if name == "double_dqn" else env, found


def steps_per_second(env: Any, options: dict[str, Any], seconds: float) -> float:
    """The speed of some seconds of a training, after a quarter of that as a warm-up."""
    given = {key: value for key, value in options.items() if key not in ("total_steps", "callbacks")}
    history = history_of(env, seconds / 4.0, seconds, **given)
    (start, first), (end, last) = history[0], history[-1]
    return (last["env_steps"] - first["env_steps"]) / (end - start)


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = ["| example | steps/s | built-in, steps/s | ratio, median (by round) |", "|---|---:|---:|---:|"]
    for row in result["rows"]:
        own, other = row["steps_per_second"], row["built_in_steps_per_second"]
        shares = [a / b for a, b in zip(own, other, strict=True)]
        rounds = ", ".join(f"{share:.2f}" for share in shares)
        speeds = f"{statistics.median(own):,.0f} | {statistics.median(other):,.0f}"
        lines.append(f"| {row['example']} | {speeds} | {statistics.median(shares):.2f} ({rounds}) |")
    return "\n".join(lines)


def main() -> None:
    """Measure the examples, print and save."""
    names = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in SKIPPED)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", default=",".join(names), help="which (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn (default %(default)s)")
    parser.add_argument("--name", default="research", help="name of the file (default %(default)s)")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.examples.split(","):
        env, options = training_of(name)
        contestants = {"steps_per_second": (env, options), "built_in_steps_per_second": built_in(name, env, options)}
        speeds: dict[str, list[float]] = {key: [] for key in contestants}
        for number in range(arguments.rounds):
            for key in contestants if number % 2 else reversed(contestants):
                speeds[key].append(steps_per_second(*contestants[key], arguments.seconds))
        rows.append({"example": name, **speeds})
        print(f"  {name}: {speeds}", file=sys.stderr)
    payload = {"arguments": vars(arguments), "rows": rows}
    machine.report(arguments.name, payload, as_markdown(payload))


if __name__ == "__main__":
    main()
