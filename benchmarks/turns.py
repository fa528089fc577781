"""Contestants by turns: each turn is a process of its own, and the last line of its output is its result, as JSON."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine

Turn = dict[str, Any]
Round = dict[str, Turn]


def take_turn(command: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None) -> Turn:
    """Run one process to its end, by default in `machine.environment`; returns its result."""
    environment = machine.environment() if environment is None else environment
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=cwd)
    turn: Turn = json.loads(output.stdout.splitlines()[-1])
    return turn


def take_turns(
    commands: dict[str, list[str]],
    rounds: int,
    *,
    key: str = "steps_per_second",
    take: Callable[[list[str]], Turn] = take_turn,
) -> list[Round]:
    """Take all turns of all contestants, in reversed order every other round.

    So whatever else the machine does affects all of them. A contestant left out of the first round is left out of all.

    Args:
        commands: for each contestant, the command of its turn.
        rounds: turns of each.
        key: the entry of a turn that the line on stderr shows.
        take: takes a turn.
    """
    commands = dict(commands)
    finished: list[Round] = []
    for i in range(rounds):
        turns: Round = {}
        for name in list(commands) if i % 2 == 0 else list(reversed(commands)):
            turn = take(commands[name])
            if "left_out" in turn:
                print(f"left out: {name}: {turn['left_out']}")
                del commands[name]
                continue
            turns[name] = turn
            print(f"  round {i + 1}: {name}: {turn[key]:,.4g} {key.replace('_', ' ')}", file=sys.stderr)
        finished.append(turns)
    return finished


def history_of(env: Any, warm_up: float, seconds: float, **options: Any) -> list[tuple[float, dict[str, float]]]:
    """Train for some seconds after a warm-up; returns when each later iteration ended, and its metrics."""
    import hybridppo

    history: list[tuple[float, dict[str, float]]] = []

    class Watch(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: dict[str, float]) -> None:
            history.append((time.perf_counter(), metrics))
            if history[-1][0] - history[0][0] > warm_up + seconds:
                run.stop("it was long enough")

    hybridppo.train(env, total_steps=10**9, seed=0, progress=False, callbacks=[Watch()], **options)
    begun = next(i for i, (at, _) in enumerate(history) if at - history[0][0] >= warm_up or i == len(history) - 2)
    return history[begun:]


def medians(rounds: list[Round], name: str) -> dict[str, float]:
    """A contestant's medians over the rounds, of all numbers in its turns."""
    numbers = [key for key, value in rounds[0][name].items() if isinstance(value, int | float)]
    return {key: statistics.median(turns[name][key] for turns in rounds) for key in numbers}


def ratios(rounds: list[Round], name: str, other: str, key: str) -> dict[str, Any]:
    """A contestant's figure divided by the other's: in each round, and the median."""
    each = [turns[name][key] / turns[other][key] for turns in rounds]
    return {"median": statistics.median(each), "rounds": each}


def in_words(ratio: dict[str, Any]) -> str:
    """A ratio of `ratios`: median (least to most)."""
    return f"{ratio['median']:.2f} ({min(ratio['rounds']):.2f} to {max(ratio['rounds']):.2f})"
