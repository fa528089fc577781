"""DDPG under placements that publish every update, every tenth, every fiftieth, for `scripts/compare_placements.py`.

The article whose experiment that script makes anew reports that fewer copies between devices pay for DDPG, whose
updates are many and small. Each cell is a training in a fresh process (`off_policy_turn.py`); where a GPU is needed
and not there, the cell says so. Beside them, the same copies between two buffers of the CPU.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import off_policy_turn
import torch
from comparison import NOT_MEASURED, SAME, Conclusion
from turns import Turn, take_turn

PUBLISH_EVERY = (1, 10, 50)
SIZES = ((64, 64), (256, 256))
STEPS = 3_000

Row = dict[str, Any]


def candidates() -> dict[str, tuple[list[str], bool]]:
    """Each candidate's options, and whether it needs a CUDA device."""
    on_cuda = ["--learning-device", "cuda"]
    found: dict[str, tuple[list[str], bool]] = {"cpu": (["--placement", "cpu"], False)}
    for every in PUBLISH_EVERY:
        found[on_cpu(every)] = (mirror(every), False)
    found["cuda"] = (["--placement", "cuda"], True)
    found["migrate"] = (["--placement", "migrate", *on_cuda], True)
    for every in PUBLISH_EVERY:
        found[hybrid(every)] = ([*mirror(every), *on_cuda], True)
    return found


def mirror(every: int) -> list[str]:
    """Options of a replica that is brought up to date so often."""
    return ["--placement", "mirror", "--publish-every", str(every)]


def on_cpu(every: int) -> str:
    """The name of the candidate that copies between two buffers of the CPU."""
    return f"mirror on the cpu, publish_every {every}"


def hybrid(every: int) -> str:
    """The name of the candidate that samples on the CPU and learns on the GPU."""
    return f"hybrid, publish_every {every}"


def run(
    *,
    sizes: Sequence[tuple[int, ...]] = SIZES,
    steps: int = STEPS,
    seeds: int = 1,
    report: Callable[[str], object],
    take: Callable[[list[str]], Turn] = take_turn,
) -> dict[str, Any]:
    """Every cell that this machine can measure, and what follows of the article's statement."""
    has_cuda, rows = torch.cuda.is_available(), []
    for hidden_sizes in sizes:
        turns: dict[str, list[Turn]] = {}
        for i in range(seeds):
            able = [(name, options) for name, (options, needs_cuda) in candidates().items() if has_cuda >= needs_cuda]
            # In reversed order every other round, so that whatever else the machine does falls on all of them.
            for name, options in able if i % 2 == 0 else able[::-1]:
                turn = take(_command(hidden_sizes, options, steps, seed=i))
                turns.setdefault(name, []).append(turn)
                report(f"DDPG, {_sizes(hidden_sizes)}: {name}: {turn['steps_per_second']:,.0f} steps/s")
        rows += [_row(hidden_sizes, name, turns.get(name)) for name in candidates()]
    return {"rows": rows, "conclusions": [vars(each) for each in conclusions(rows)]}


def _command(hidden_sizes: tuple[int, ...], options: list[str], steps: int, seed: int) -> list[str]:
    command = [sys.executable, str(Path(off_policy_turn.__file__)), "library", "--agent", "ddpg", *options]
    command += ["--hidden-sizes", _sizes(hidden_sizes), "--steps", str(steps), "--seed", str(seed)]
    return [*command, "--learning-starts", str(min(500, steps // 4)), "--evaluation-episodes", "0"]


def _row(hidden_sizes: tuple[int, ...], name: str, turns: list[Turn] | None) -> Row:
    row: Row = {"hidden_sizes": list(hidden_sizes), "candidate": name, "turns": turns}
    for key in ("steps_per_second", "publishes", "bytes_copied"):
        row[key] = None if turns is None else statistics.median(turn[key] for turn in turns)
    return row


def conclusions(rows: Sequence[Row]) -> list[Conclusion]:
    """Whether fewer copies between devices pay, by network, as the article has it; and those on the CPU."""
    found = []
    for sizes in dict.fromkeys(tuple(row["hidden_sizes"]) for row in rows):
        speed = {row["candidate"]: row["steps_per_second"] for row in rows if tuple(row["hidden_sizes"]) == sizes}
        for name, article in ((hybrid, "fewer pay"), (on_cpu, "not asked")):
            speeds = [speed[name(every)] for every in PUBLISH_EVERY]
            where = "between devices" if name is hybrid else "between buffers of the CPU"
            statement = f"DDPG, hidden layers {_sizes(sizes)}: fewer copies {where} pay"
            if any(figure is None for figure in speeds):
                found.append(Conclusion(statement, article, NOT_MEASURED, None))
                continue
            figures = zip(PUBLISH_EVERY, speeds, strict=True)
            here = ", ".join(f"every {every}: {figure:,.0f} steps/s" for every, figure in figures)
            found.append(Conclusion(statement, article, here, bool(max(speeds[1:]) > SAME * speeds[0])))
    return found


def as_markdown(results: dict[str, Any]) -> str:
    """A row for each cell, and the conclusions."""
    lines = ["| DDPG, hidden layers | candidate | steps/s | publishes | MB copied |", "|---|---|---:|---:|---:|"]
    for row in results["rows"]:
        cells = [_sizes(row["hidden_sizes"]), row["candidate"]]
        if row["steps_per_second"] is None:
            cells += [NOT_MEASURED, "", ""]
        else:
            cells += [
                f"{row['steps_per_second']:,.0f}",
                f"{row['publishes']:,.0f}",
                f"{row['bytes_copied'] / 1e6:,.1f}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    verdicts = {True: "yes", False: "no", None: NOT_MEASURED}
    lines += ["", "| statement | the article | here | holds here |", "|---|---|---|---|"]
    for each in results["conclusions"]:
        lines.append(f"| {each['statement']} | {each['article']} | {each['here']} | {verdicts[each['holds']]} |")
    return "\n".join(lines)


def _sizes(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
