"""Contestants by turns: each turn is a process of its own, and its result the last line of its output, as JSON."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import machine

Turn = dict[str, Any]
Round = dict[str, Turn]


def take_turn(command: list[str]) -> Turn:
    """Run one process to its end; its result."""
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=machine.environment())
    turn: Turn = json.loads(output.stdout.splitlines()[-1])
    return turn


def take_turns(
    commands: dict[str, list[str]],
    rounds: int,
    *,
    key: str = "steps_per_second",
    take: Callable[[list[str]], Turn] = take_turn,
) -> list[Round]:
    """All turns of all contestants, in reversed order every other round.

    Whatever else the machine does then falls on all of them. Who is left out of the first round, is left out of the
    others.

    Args:
        commands: a process for each contestant.
        rounds: turns of each.
        key: of a turn, for the line on stderr that tells of it.
        take: what a turn is.
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


def medians(rounds: list[Round], name: str) -> dict[str, float]:
    """A contestant's median over the rounds of everything in its turns that is a number."""
    numbers = [key for key, value in rounds[0][name].items() if isinstance(value, int | float)]
    return {key: statistics.median(turns[name][key] for turns in rounds) for key in numbers}


def ratios(rounds: list[Round], name: str, other: str, key: str) -> dict[str, Any]:
    """How many times the other's figure a contestant's is: within each round, and the median of that."""
    each = [turns[name][key] / turns[other][key] for turns in rounds]
    return {"median": statistics.median(each), "rounds": each}


def in_words(ratio: dict[str, Any]) -> str:
    """A ratio of `ratios`: median (least to most)."""
    return f"{ratio['median']:.2f} ({min(ratio['rounds']):.2f} to {max(ratio['rounds']):.2f})"
