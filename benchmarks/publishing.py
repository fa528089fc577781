"""What less frequent publishing gains: DDPG, and PPO with a pool, for `scripts/compare_placements.py`.

The article whose experiment that script repeats reports that fewer copies between devices pay for DDPG, whose
updates are many and small, and do not pay for PPO with a pool of past trajectories. Each cell is a training in a fresh
process. A machine without a GPU leaves out the cells that need one. The others make the same copies between two buffers
of the CPU, and compare updates during sampling (`overlap`) with updates after it.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comparison
import off_policy_turn
import placement_turn
import torch
from comparison import NOT_MEASURED, SAME, Conclusion, verdicts
from turns import Turn, take_turn

PUBLISH_EVERY = (1, 10, 50)
QUICK_STEPS = 200

Row = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """An agent, and the article's statement about it."""

    agent: str
    sizes: tuple[tuple[int, ...], ...]
    steps: int
    quick_steps: int
    fewer_pay: bool
    """Whether fewer copies between devices pay, according to the article."""
    turn: Callable[[int], list[str]]
    """Options of a turn of this many environment steps, except network, placement and seed."""

    @property
    def quick(self) -> "Experiment":
        """A short version, to see that it works."""
        return Experiment(self.agent, self.sizes[:1], self.quick_steps, 0, self.fewer_pay, self.turn)


def _turn_of_ddpg(steps: int) -> list[str]:
    script = str(Path(off_policy_turn.__file__))
    starts = str(min(500, steps // 4))
    return [script, "library", "--agent", "ddpg", "--learning-starts", starts, "--evaluation-episodes", "0"]


def _turn_of_pool(steps: int) -> list[str]:
    endless = str(placement_turn.NO_LIMIT)
    script = str(Path(placement_turn.__file__))
    return [script, "library", "--rollout", placement_turn.WITH_POOL, "--threads", "1", "--episodes", endless]


DDPG = Experiment("DDPG", ((64, 64), (256, 256)), 3_000, QUICK_STEPS, True, _turn_of_ddpg)
POOL = Experiment("PPO with a pool of 4", comparison.SIZES, 40_000, 4_096, False, _turn_of_pool)
EXPERIMENTS = (DDPG, POOL)


def candidates() -> dict[str, tuple[list[str], bool]]:
    """Each candidate's options, and whether it needs a CUDA device."""
    on_cuda = ["--learning-device", "cuda"]
    found: dict[str, tuple[list[str], bool]] = {"cpu": (["--placement", "cpu"], False)}
    found["overlap, cpu and cpu"] = (["--placement", "overlap"], False)
    for every in PUBLISH_EVERY:
        found[on_cpu(every)] = (mirror(every), False)
    found["cuda"] = (["--placement", "cuda"], True)
    found["migrate"] = (["--placement", "migrate", *on_cuda], True)
    found["overlap"] = (["--placement", "overlap", *on_cuda], True)
    for every in PUBLISH_EVERY:
        found[hybrid(every)] = ([*mirror(every), *on_cuda], True)
    return found


def mirror(every: int) -> list[str]:
    """Options of a mirror with this `publish_every`."""
    return ["--placement", "mirror", "--publish-every", str(every)]


def on_cpu(every: int) -> str:
    """The name of the candidate that copies between two buffers of the CPU."""
    return f"mirror on the cpu, publish_every {every}"


def hybrid(every: int) -> str:
    """The name of the candidate that samples on the CPU and learns on the GPU."""
    return f"hybrid, publish_every {every}"


def run(
    experiments: Sequence[Experiment] = EXPERIMENTS,
    *,
    seeds: int = 1,
    report: Callable[[str], object],
    take: Callable[[list[str]], Turn] = take_turn,
) -> dict[str, Any]:
    """Measure every cell that this machine can, and compare with the article's statements."""
    has_cuda, rows = torch.cuda.is_available(), []
    found: list[Conclusion] = []
    for experiment in experiments:
        for hidden_sizes in experiment.sizes:
            turns: dict[str, list[Turn]] = {}
            for i in range(seeds):
                able = [(name, options) for name, (options, on_cuda) in candidates().items() if has_cuda >= on_cuda]
                # In reversed order every other round, so that whatever else the machine does affects all of them.
                for name, options in able if i % 2 == 0 else able[::-1]:
                    command = [sys.executable, *experiment.turn(experiment.steps), *options]
                    command += ["--hidden-sizes", _sizes(hidden_sizes), "--seed", str(i)]
                    turn = take([*command, "--steps", str(experiment.steps)])
                    turns.setdefault(name, []).append(turn)
                    speed = f"{turn['steps_per_second']:,.0f} steps/s"
                    report(f"{experiment.agent}, {_sizes(hidden_sizes)}: {name}: {speed}")
            of_network = [_row(experiment.agent, hidden_sizes, name, turns.get(name)) for name in candidates()]
            found += conclusions(experiment, of_network)
            rows += of_network
    return {"rows": rows, "conclusions": [vars(each) for each in found]}


def _row(agent: str, hidden_sizes: tuple[int, ...], name: str, turns: list[Turn] | None) -> Row:
    row: Row = {"agent": agent, "hidden_sizes": list(hidden_sizes), "candidate": name, "turns": turns}
    for key in ("steps_per_second", "publishes", "bytes_copied"):
        row[key] = None if turns is None else statistics.median(turn[key] for turn in turns)
    return row


def conclusions(experiment: Experiment, rows: Sequence[Row]) -> list[Conclusion]:
    """For one network: do fewer copies pay, between devices and on the CPU, and do updates while sampling?"""
    speed = {row["candidate"]: row["steps_per_second"] for row in rows}
    whose = f"{experiment.agent}, hidden layers {_sizes(rows[0]['hidden_sizes'])}"
    pay = "pay" if experiment.fewer_pay else "do not pay"
    copies = [
        (f"fewer copies between devices {pay}", "the same", hybrid),
        (f"fewer copies between buffers of the CPU {pay}", "not asked", on_cpu),
    ]
    found = []
    for statement, article, name in copies:
        figures = {f"every {every}": speed[name(every)] for every in PUBLISH_EVERY}
        first, *others = figures.values()

        def as_the_article(first: float = first, others: list[float] = others) -> bool:
            return (max(others) > SAME * first) == experiment.fewer_pay

        found.append(_conclusion(f"{whose}: {statement}", article, figures, as_the_article))
    for sampling_first, meanwhile, where in (("cpu", "overlap, cpu and cpu", "CPU"), (hybrid(1), "overlap", "GPU")):
        figures = {"sampling first": speed[sampling_first], "while sampling": speed[meanwhile]}
        statement = f"{whose}: an update on the {where} while sampling is faster than one after it"

        def is_faster(figures: dict[str, Any] = figures) -> bool:
            return bool(figures["while sampling"] > SAME * figures["sampling first"])

        found.append(_conclusion(statement, "not asked", figures, is_faster))
    return found


def _conclusion(statement: str, article: str, figures: dict[str, Any], holds: Callable[[], bool]) -> Conclusion:
    if any(figure is None for figure in figures.values()):
        return Conclusion(statement, article, NOT_MEASURED, None)
    here = ", ".join(f"{name}: {figure:,.0f} steps/s" for name, figure in figures.items())
    return Conclusion(statement, article, here, holds())


def as_markdown(results: dict[str, Any]) -> str:
    """A row for each measured cell, and the conclusions."""
    lines = ["| agent | hidden layers | candidate | steps/s | publishes | MB copied |", "|---|---|---|---:|---:|---:|"]
    for row in results["rows"]:
        if row["steps_per_second"] is not None:
            figures = f"{row['steps_per_second']:,.0f} | {row['publishes']:,.0f} | {row['bytes_copied'] / 1e6:,.1f}"
            lines.append(f"| {row['agent']} | {_sizes(row['hidden_sizes'])} | {row['candidate']} | {figures} |")
    return "\n".join([*lines, "", *verdicts([Conclusion(**each) for each in results["conclusions"]])])


def _sizes(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
