"""Contestants by turns: each turn is a process of its own, and the last line of its output is its result, as JSON."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import machine

Turn = dict[str, Any]
Round = dict[str, Turn]


def take_turn(command: list[str], environment: dict[str, str] | None = None, limit: float | None = None) -> Turn:
    """Run one process to its end, by default in `machine.environment`.

    Returns its result; if there is none, or not within the limit of seconds, `left_out` has the reason.
    """
    environment = machine.environment() if environment is None else environment
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        # Files: the end of a pipe waits for the processes that the process has started.
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return {"left_out": f"its turn took longer than {limit:.0f} s"}
        finally:
            end(process)
            errors.seek(0)
            said = errors.read()
            sys.stderr.write(said)
        if code:
            return {"left_out": f"its turn ends with exit code {code}: {last_line(said)}"}
        output.seek(0)
        try:
            turn: Turn = json.loads(last_line(output.read()))
        except json.JSONDecodeError:
            return {"left_out": "its turn prints no result"}
        return turn


def end(process: "subprocess.Popen[Any]") -> None:
    """End a process that leads a session, and where the system can, all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()


def last_line(text: str) -> str:
    """The last line that is not empty, or nothing."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


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


def history_of(
    env: Any, warm_up: float, seconds: float, *, least: int = 1, **options: Any
) -> list[tuple[float, dict[str, float]]]:
    """Train for some seconds after a warm-up, each of which has at least so many iterations.

    Returns when each counted iteration ended, and its metrics; the first entry is the end of the warm-up.
    """
    import hybridppo

    history: list[tuple[float, dict[str, float]]] = []
    warming = True

    class Watch(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: dict[str, float]) -> None:
            nonlocal warming
            history.append((time.perf_counter(), metrics))
            if history[-1][0] - history[0][0] < (warm_up if warming else seconds) or len(history) <= least:
                return
            if warming:
                del history[:-1]
                warming = False
            else:
                run.stop("it was long enough")

    hybridppo.train(env, total_steps=10**9, seed=0, progress=False, callbacks=[Watch()], **options)
    return history


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
