"""The published comparison of placements, repeated: what `scripts/compare_placements.py` runs.

An article timed a textbook's PPO on CartPole (500 episodes, an update after each, one hidden layer of 128) on the CPU,
on the GPU, and sampling on the CPU while learning on the GPU. It concluded which network wants which, and that fewer
copies between devices pay for DDPG, but not for PPO with a pool of past trajectories. Here every cell is a training in
a fresh process (`placement_turn.py`), and the candidates of a cell take turns. `conclusions` says which of the
statements hold on this machine.
"""

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import placement_turn
import torch
import turns
from placement_turn import BY_EPISODE, BY_ROLLOUT, DDPG, NO_LIMIT, WITH_POOL

Row = dict[str, Any]

TEXTBOOK_SIZE = (128,)
SIZES = ((64,), (64, 64), (128,), (128, 128), (256,), (256, 256))
STEPS_PER_EPISODE = 400
"""Steps per episode of an agent that learns as the textbook's does. A training whose rollouts come from several
environments takes as many steps as 500 such episodes have."""
STEPS = {WITH_POOL: 40_000, DDPG: 3_000}
PUBLISH_EVERY = (1, 10, 50)
SAME = 1.03
"""Figures whose ratio is smaller count as equal."""
ONE_THREAD, DEFAULT_THREADS = "cpu, 1 thread", "cpu, torch's default threads"
OVERLAP_ON_CPU = "overlap, cpu and cpu"
LOOP = "textbook loop, "
LOOP_MIGRATES = f"{LOOP}cpu samples and cuda learns"


@dataclass(frozen=True)
class Candidate:
    """How a cell of the table is measured."""

    name: str
    options: tuple[str, ...]
    """Options of `placement_turn.py`."""
    threads: int | None = 1
    """None for torch's default."""
    needs_cuda: bool = False

    @property
    def is_loop(self) -> bool:
        """Whether it is the textbook's loop, and not this library."""
        return self.name.startswith(LOOP)


def mirror(every: int, device: str) -> Candidate:
    """A mirror that publishes after so many updates; between two buffers of the CPU, it makes the same copies."""
    options = ("library", "--placement", "mirror", "--publish-every", str(every), "--learning-device", device)
    name = f"hybrid, publish_every {every}" if device == "cuda" else f"mirror on the cpu, publish_every {every}"
    return Candidate(name, options, needs_cuda=device == "cuda")


ON_CUDA = ("--learning-device", "cuda")
CANDIDATES = (
    Candidate(ONE_THREAD, ("library", "--placement", "cpu")),
    Candidate(DEFAULT_THREADS, ("library", "--placement", "cpu"), None),
    Candidate(OVERLAP_ON_CPU, ("library", "--placement", "overlap")),
    Candidate("cuda", ("library", "--placement", "cuda"), needs_cuda=True),
    *(
        Candidate(name, ("library", "--placement", name, *ON_CUDA), needs_cuda=True)
        for name in ("migrate", "hybrid", "overlap")
    ),
)
LOOPS = (
    Candidate(LOOP + ONE_THREAD, ("textbook",)),
    Candidate(LOOP + DEFAULT_THREADS, ("textbook",), None),
    Candidate(f"{LOOP}cuda", ("textbook", "--sampling-device", "cuda", *ON_CUDA), None, needs_cuda=True),
    Candidate(LOOP_MIGRATES, ("textbook", *ON_CUDA), None, needs_cuda=True),
)
MIRRORS = tuple(mirror(every, device) for device in ("cpu", "cuda") for every in PUBLISH_EVERY)


@dataclass(frozen=True)
class Work:
    """A row of the table: what an update learns from, and the network."""

    rollout: str
    hidden_sizes: tuple[int, ...]

    def candidates(self, *, has_cuda: bool, default_threads: int) -> list[Candidate]:
        """What this machine can run: the textbook's loop only for its own network, mirrors where copies count."""
        if self.rollout in STEPS:
            found = [each for each in CANDIDATES if each.threads == 1 and each.name != "hybrid"] + [*MIRRORS]
        else:
            found = [*CANDIDATES, *(LOOPS if self == Work(BY_EPISODE, TEXTBOOK_SIZE) else ())]
        able = [each for each in found if has_cuda or not each.needs_cuda]
        return [each for each in able if each.threads is not None or default_threads > 1]


def take_turn(work: Work, candidate: Candidate, *, episodes: int, seed: int) -> Row:
    """One training in a process of its own."""
    command = [sys.executable, str(Path(placement_turn.__file__)), *candidate.options, "--rollout", work.rollout]
    command += ["--hidden-sizes", ",".join(map(str, work.hidden_sizes)), "--seed", str(seed)]
    if work.rollout == BY_EPISODE:
        command += ["--episodes", str(episodes)]
    else:  # as much work for each episode as in the others
        steps = STEPS.get(work.rollout, 500 * STEPS_PER_EPISODE) * episodes // 500
        command += ["--steps", str(max(steps, 1)), "--episodes", str(NO_LIMIT)]
    environment = machine.environment()
    if candidate.threads is None:
        environment = {name: value for name, value in environment.items() if not name.endswith("_NUM_THREADS")}
    else:
        command += ["--threads", str(candidate.threads)]
    turn = turns.take_turn(command, environment)
    if "left_out" in turn:
        raise RuntimeError(f"{candidate.name}: {turn['left_out']}")
    return turn


def measure(works: Sequence[Work], *, episodes: int, seeds: int, report: Callable[[str], object]) -> list[Row]:
    """A row for each piece of work and candidate; the candidates of a piece of work take turns over the seeds."""
    rows: list[Row] = []
    for work in works:
        able = work.candidates(has_cuda=torch.cuda.is_available(), default_threads=torch.get_num_threads())
        taken: dict[str, list[Row]] = {candidate.name: [] for candidate in able}
        for seed in range(seeds):
            # In reversed order every other round, so that other work on the machine affects all of them.
            for candidate in able if seed % 2 == 0 else able[::-1]:
                turn = take_turn(work, candidate, episodes=episodes, seed=seed)
                taken[candidate.name].append(turn)
                report(f"{in_words(work.hidden_sizes)}, {work.rollout}: {candidate.name}: {_speed(turn)}")
        rows += [summarize(work, name, of_candidate) for name, of_candidate in taken.items()]
    return rows


def summarize(work: Work, candidate: str, turns: list[Row]) -> Row:
    """Medians over one candidate's turns, and the turns."""

    def median(figures: list[Any]) -> Any:
        return None if any(figure is None for figure in figures) else statistics.median(figures)

    row = {**asdict(work), "candidate": candidate, "turns": turns}
    numbers = [key for key, value in turns[0].items() if isinstance(value, int | float)]
    row |= {key: median([turn[key] for turn in turns]) for key in numbers}
    parts = ("sampling", "learning", "copying")
    row["us_per_step"] = median([1e6 * turn["seconds"] / turn["env_steps"] for turn in turns])
    row |= {
        f"us_{part}": median([1e6 * turn[f"seconds_{part}"] / turn["env_steps"] for turn in turns]) for part in parts
    }
    return row | {"ms_per_update": median([1e3 * turn["seconds_learning"] / turn["updates"] for turn in turns])}


@dataclass(frozen=True)
class Conclusion:
    """A statement, what the article measured, what was measured here, and whether it holds (None: not measured)."""

    statement: str
    article: str
    here: str
    holds: bool | None


class Table:
    """The rows by work and candidate."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row["rollout"], tuple(row["hidden_sizes"]), row["candidate"]): row for row in rows}
        self.works = list(dict.fromkeys(key[:2] for key in self._rows))

    def figure(self, rollout: str, sizes: tuple[int, ...], candidate: str, key: str = "us_per_step") -> float | None:
        """A figure of a row, None without the row."""
        row = self._rows.get((rollout, sizes, candidate))
        return None if row is None else row.get(key)

    def at_most(
        self, statement: str, article: str, low: str, high: str, key: str = "us_per_step", unit: str = "us a step"
    ) -> Conclusion:
        """That the textbook's loop has no greater figure with the first candidate than with the second."""
        sides = {name: self.figure(BY_EPISODE, TEXTBOOK_SIZE, LOOP + name, key) for name in (low, high)}
        return _judged(f"Textbook loop: {statement}", article, sides, unit, lambda: sides[low] <= sides[high])

    def winner(self, sizes: tuple[int, ...], winners: tuple[str, ...]) -> Conclusion:
        """That one of the candidates is the fastest, with an update an episode."""
        kinds = {"cpu": (ONE_THREAD, DEFAULT_THREADS), "cuda": ("cuda",), "hybrid": ("migrate", "hybrid")}
        best = {
            kind: min((us for name in names if (us := self.figure(BY_EPISODE, sizes, name)) is not None), default=None)
            for kind, names in kinds.items()
        }
        statement = f"Hidden layers {in_words(sizes)}, an update an episode: {' or '.join(winners)} is fastest"
        return _judged(
            statement, "the same", best, "us a step", lambda: min(best, key=lambda each: best[each]) in winners
        )

    def one_thread(self, others: Sequence[str], statement: str, prefix: str = "") -> Conclusion:
        """That the CPU with one thread is at least as fast as the fastest of others, in every piece of work."""
        ratios = {}
        for rollout, sizes in self.works:
            one = self.figure(rollout, sizes, prefix + ONE_THREAD)
            found = [us for each in others if (us := self.figure(rollout, sizes, prefix + each)) is not None]
            if one is not None and found and rollout not in STEPS:
                ratios[f"{in_words(sizes)} ({rollout})"] = min(found) / one
        return _judged(statement, "not asked", ratios, "times", lambda: min(ratios.values()) * SAME >= 1.0)

    def fewer_copies(self, rollout: str, sizes: tuple[int, ...], device: str, *, pay: bool) -> Conclusion:
        """Whether publishing less often is faster by more than noise, as the article says."""
        names = {every: mirror(every, device).name for every in PUBLISH_EVERY}
        speeds = {
            f"every {every}": self.figure(rollout, sizes, name, "steps_per_second") for every, name in names.items()
        }
        where = "between devices" if device == "cuda" else "between buffers of the CPU"
        statement = f"{rollout}, hidden layers {in_words(sizes)}: fewer copies {where} {'pay' if pay else 'do not pay'}"

        def holds() -> bool:
            first, *others = speeds.values()
            return bool((max(others) > SAME * first) == pay)

        return _judged(statement, "the same" if device == "cuda" else "not asked", speeds, "steps/s", holds)


def _judged(statement: str, article: str, figures: dict[str, Any], unit: str, holds: Callable[[], bool]) -> Conclusion:
    known = {name: figure for name, figure in figures.items() if figure is not None}
    here = (
        ", ".join(f"{name} {figure:{',.0f' if figure > 100 else '.3g'}}" for name, figure in known.items()) + f" {unit}"
    )
    if not figures or len(known) < len(figures):
        return Conclusion(statement, article, "not measured here", None)
    return Conclusion(statement, article, here, holds())


def conclusions(rows: Sequence[Row]) -> list[Conclusion]:
    """The article's statements one by one, and then our own questions, all from the rows alone."""
    table = Table(rows)
    cpu = DEFAULT_THREADS
    migrates = LOOP_MIGRATES.removeprefix(LOOP)
    found = [
        table.at_most("the GPU alone is slower than the CPU alone", "128 s against 47 to 53 s", cpu, "cuda"),
        table.at_most(
            "sampling on the CPU, learning on the GPU is no slower", "43 to 45 s against 47 to 53 s", migrates, cpu
        ),
        table.at_most("the same, beside the CPU with one thread", "not measured", migrates, ONE_THREAD),
        table.at_most("an update is faster on the CPU", "3 to 4 ms against 5 ms", cpu, migrates, "ms_per_update", "ms"),
        table.at_most(
            "learning on the GPU takes load off the CPU", "much less", migrates, cpu, "cpu_load", "cores busy"
        ),
        *(table.winner(sizes, ("cpu",)) for sizes in ((64,), (64, 64))),
        *(table.winner(sizes, ("cpu", "hybrid")) for sizes in ((128,), (128, 128))),
        *(table.winner(sizes, ("hybrid",)) for sizes in ((256,), (256, 256))),
        table.one_thread([cpu], "Textbook loop: one thread is at least as fast as torch's default", LOOP),
        table.one_thread([cpu], "This library on the CPU: one thread is at least as fast as torch's default"),
        table.one_thread(
            ["cuda", "migrate", "hybrid"], "This library: one thread is at least as fast as any GPU placement"
        ),
    ]
    for rollout, sizes in table.works:
        if rollout in STEPS:
            found += [table.fewer_copies(rollout, sizes, device, pay=rollout == DDPG) for device in ("cuda", "cpu")]
    return found


def as_markdown(rows: Sequence[Row]) -> str:
    """The rows, with the fastest of each piece of work marked, and the conclusions that this machine could measure."""
    lines = [
        "| hidden layers | an update per | candidate | steps/s | us a step: sampling, learning, copying | ms an update "
        "| cores busy | GPU % | GPU MiB | publishes | MB copied | return, last 100 |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    fastest: dict[Any, float] = {}
    for row in rows:
        key = row["rollout"], tuple(row["hidden_sizes"])
        fastest[key] = max(fastest.get(key, 0.0), row["steps_per_second"])
    for row in rows:
        is_fastest = row["steps_per_second"] == fastest[row["rollout"], tuple(row["hidden_sizes"])]
        copied = None if row.get("bytes_copied") is None else row["bytes_copied"] / 1e6
        cells = [
            in_words(row["hidden_sizes"]),
            row["rollout"],
            f"**{row['candidate']}**" if is_fastest else row["candidate"],
            f"{row['steps_per_second']:,.0f}",
            ", ".join(_cell(row.get(f"us_{part}"), ".1f") for part in ("sampling", "learning", "copying")).strip(", "),
            _cell(row.get("ms_per_update"), ".2f"),
            *(_cell(row.get(key), form) for key, form in (("cpu_load", ".2f"), ("gpu_utilization", ",.0f"))),
            *(_cell(row.get(key), ",.0f") for key in ("gpu_memory_mib", "publishes")),
            _cell(copied, ",.1f"),
            _cell(row.get("return_mean"), ".0f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| statement | the article | here | holds here |", "|---|---|---|---|"]
    measured = [each for each in conclusions(rows) if each.holds is not None]
    lines += [f"| {c.statement} | {c.article} | {c.here} | {'yes' if c.holds else 'no'} |" for c in measured]
    return "\n".join(lines)


def in_words(sizes: Sequence[int]) -> str:
    """Widths of layers."""
    return " and ".join(map(str, sizes))


def _speed(turn: Row) -> str:
    return f"{turn['steps_per_second']:,.0f} steps/s"


def _cell(figure: float | None, form: str) -> str:
    return "" if figure is None else f"{figure:{form}}"


def run(*, sizes: Sequence[tuple[int, ...]], episodes: int, seeds: int, report: Callable[[str], object]) -> Row:
    """Measure all that can be measured here, and draw the conclusions."""
    works = [Work(rollout, size) for rollout in (BY_EPISODE, BY_ROLLOUT, WITH_POOL, DDPG) for size in sizes]
    rows = measure(works, episodes=episodes, seeds=seeds, report=report)
    return {"rows": rows, "conclusions": [asdict(each) for each in conclusions(rows)], "cores": os.cpu_count()}
