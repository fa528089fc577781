"""The published experiment on placements, repeated: what `scripts/compare_placements.py` runs.

An article timed a textbook's PPO on CartPole (500 episodes, an update after each, one hidden layer of 128) on the CPU,
on the GPU, and sampling on the CPU while learning on the GPU, and concluded which network wants which. Here every cell
is a training in a fresh process (`placement_turn.py`), the candidates of a cell take turns, and `conclusions` says
which of the article's statements hold where it ran. The CPU with one thread stands beside every other.
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

Row = dict[str, Any]

TEXTBOOK_SIZE = (128,)
SIZES = ((64,), (64, 64), (128,), (128, 128), (256,), (256, 256))
STEPS_PER_EPISODE = 400
"""Steps per episode of an agent that learns as the textbook's does, averaged over 500 episodes. It sets the length of a
training whose rollouts come from several environments, so that it does as much work as one with whole episodes."""
BY_EPISODE, BY_ROLLOUT = placement_turn.BY_EPISODE, placement_turn.BY_ROLLOUT


@dataclass(frozen=True)
class Candidate:
    """How a cell of the table is measured."""

    name: str
    contestant: str
    """`library` or `textbook`."""
    options: tuple[str, ...]
    """Options of `placement_turn.py`."""
    threads: int | None = 1
    """None for torch's default."""


CPU_ONE_THREAD = "cpu, 1 thread"
CPU_DEFAULT_THREADS = "cpu, torch's default threads"
TEXTBOOK_ONE_THREAD = "textbook loop, cpu, 1 thread"
TEXTBOOK_DEFAULT_THREADS = "textbook loop, cpu, torch's default threads"
TEXTBOOK_CUDA = "textbook loop, cuda"
TEXTBOOK_MIGRATES = "textbook loop, cpu samples and cuda learns"
OVERLAP_CPU = "overlap, cpu and cpu"


def candidates(*, has_cuda: bool, cores: int, default_threads: int) -> tuple[list[Candidate], list[str]]:
    """What a machine can run of the library's placements and the textbook's loop, and a line for all that it cannot."""
    everything: list[tuple[Candidate, str | None]] = []

    def add(name: str, contestant: str, *options: str, threads: int | None = 1, missing: str | None = None) -> None:
        everything.append((Candidate(name, contestant, options, threads), missing))

    no_cuda = None if has_cuda else "no CUDA device here"
    no_threads = None if default_threads > 1 else "torch's default is one thread here"
    no_core = None if cores > 1 else "one core here"
    on_cuda = ("--learning-device", "cuda")
    add(CPU_ONE_THREAD, "library", "--placement", "cpu")
    add(CPU_DEFAULT_THREADS, "library", "--placement", "cpu", threads=None, missing=no_threads)
    add(OVERLAP_CPU, "library", "--placement", "overlap", missing=no_core)
    add("cuda", "library", "--placement", "cuda", missing=no_cuda)
    for name in ("migrate", "hybrid", "overlap"):
        add(name, "library", "--placement", name, *on_cuda, missing=no_cuda)
    add(TEXTBOOK_ONE_THREAD, "textbook")
    add(TEXTBOOK_DEFAULT_THREADS, "textbook", threads=None, missing=no_threads)
    add(TEXTBOOK_CUDA, "textbook", "--sampling-device", "cuda", *on_cuda, threads=None, missing=no_cuda)
    add(TEXTBOOK_MIGRATES, "textbook", *on_cuda, threads=None, missing=no_cuda)
    left_out = [f"Left out: {candidate.name} ({missing})." for candidate, missing in everything if missing]
    return [candidate for candidate, missing in everything if missing is None], left_out


@dataclass(frozen=True)
class Work:
    """A row of the table: a network, and what an update learns from."""

    hidden_sizes: tuple[int, ...]
    rollout: str

    def candidates(self, of: Sequence[Candidate]) -> list[Candidate]:
        """The candidates for this work: the textbook's loop is measured on its own network only."""
        is_textbooks = self == Work(TEXTBOOK_SIZE, BY_EPISODE)
        return [candidate for candidate in of if candidate.contestant == "library" or is_textbooks]


def take_turn(work: Work, candidate: Candidate, *, episodes: int, seed: int) -> Row:
    """One training in a process of its own."""
    command = [sys.executable, str(Path(placement_turn.__file__)), candidate.contestant, *candidate.options]
    command += ["--hidden-sizes", ",".join(map(str, work.hidden_sizes)), "--seed", str(seed)]
    if work.rollout == BY_ROLLOUT:
        command += ["--rollout", BY_ROLLOUT, "--steps", str(STEPS_PER_EPISODE * episodes)]
        episodes = placement_turn.NO_LIMIT
    command += ["--episodes", str(episodes)]
    environment = machine.environment()
    if candidate.threads is None:
        environment = {name: value for name, value in environment.items() if not name.endswith("_NUM_THREADS")}
    else:
        command += ["--threads", str(candidate.threads)]
    return turns.take_turn(command, environment)


def measure(
    works: Sequence[Work],
    able: Sequence[Candidate],
    *,
    episodes: int,
    seeds: Sequence[int],
    report: Callable[[str], object],
) -> list[Row]:
    """A row for each piece of work and candidate; for each piece of work, candidates take turns over the seeds."""
    rows: list[Row] = []
    for work in works:
        present = work.candidates(able)
        taken: dict[str, list[Row]] = {candidate.name: [] for candidate in present}
        for i, seed in enumerate(seeds):
            # In reversed order every other round, so that whatever else the machine does affects all of them.
            for candidate in present if i % 2 == 0 else present[::-1]:
                turn = take_turn(work, candidate, episodes=episodes, seed=seed)
                taken[candidate.name].append(turn)
                sizes = "x".join(map(str, work.hidden_sizes))
                report(f"{sizes}, {work.rollout}: {candidate.name}: {turn['steps_per_second']:,.0f} steps/s")
        rows += [summarize(work, candidate, taken[candidate.name]) for candidate in present]
    return rows


def summarize(work: Work, candidate: Candidate, turns: list[Row]) -> Row:
    """Medians over one candidate's turns, and the turns."""

    def median(of: Callable[[Row], Any]) -> Any:
        values = [of(turn) for turn in turns]
        return None if any(value is None for value in values) else statistics.median(values)

    def us_per_step(part: str) -> float:
        return float(median(lambda turn: 1e6 * turn[f"seconds_{part}"] / turn["env_steps"]))

    row = {
        **asdict(work),
        "candidate": candidate.name,
        "contestant": candidate.contestant,
        "threads": turns[0]["threads"],
        "ms_per_update": median(lambda turn: 1e3 * turn["seconds_learning"] / turn["updates"]),
        "us_per_step": median(lambda turn: 1e6 * turn["seconds"] / turn["env_steps"]),
        **{f"us_{part}": us_per_step(part) for part in ("sampling", "learning", "copying")},
    }
    keys = ("seconds", "env_steps", "episodes", "steps_per_second", "updates", "cpu_load", "gpu_utilization")
    for key in (*keys, "gpu_memory_mib", "publishes", "bytes_copied", "return_mean"):
        row[key] = median(lambda turn, key=key: turn[key])  # type: ignore[misc]
    return {**row, "turns": turns}


NOT_MEASURED = "not measured here"
SAME = 1.03
"""How far apart two figures may lie and still count as equal."""


@dataclass(frozen=True)
class Conclusion:
    """A statement, what the article measured, what was measured here, and whether it holds (None: not measured)."""

    statement: str
    article: str
    here: str
    holds: bool | None


def conclusions(rows: Sequence[Row]) -> list[Conclusion]:
    """The article's statements one by one, and then our own question, all from the rows alone."""
    table = {(tuple(row["hidden_sizes"]), row["rollout"], row["candidate"]): row for row in rows}
    loop = {
        name: table.get((TEXTBOOK_SIZE, BY_EPISODE, name))
        for name in (TEXTBOOK_ONE_THREAD, TEXTBOOK_DEFAULT_THREADS, TEXTBOOK_CUDA, TEXTBOOK_MIGRATES)
    }
    # If torch's default is one thread, that is what the article's CPU run would have been.
    default = loop[TEXTBOOK_DEFAULT_THREADS] or loop[TEXTBOOK_ONE_THREAD]
    one_thread, cuda, migrates = loop[TEXTBOOK_ONE_THREAD], loop[TEXTBOOK_CUDA], loop[TEXTBOOK_MIGRATES]
    return [
        _at_most(
            "Textbook loop: the GPU alone is slower than the CPU alone",
            "128 s against 47 to 53 s",
            (("cpu", default), ("cuda", cuda)),
            "us_per_step",
            "us a step",
        ),
        _at_most(
            "Textbook loop: sampling on the CPU and learning on the GPU is at least as fast as the CPU alone",
            "43 to 45 s against 47 to 53 s",
            (("cpu and cuda", migrates), ("cpu", default)),
            "us_per_step",
            "us a step",
        ),
        _at_most(
            "The same, against the CPU with one thread",
            "not measured",
            (("cpu and cuda", migrates), ("cpu, 1 thread", one_thread)),
            "us_per_step",
            "us a step",
        ),
        _at_most(
            "Textbook loop: an update is faster on the CPU",
            "3 to 4 ms against 5 ms",
            (("cpu", default), ("cuda", migrates)),
            "ms_per_update",
            "ms",
        ),
        _at_most(
            "Textbook loop: learning on the GPU takes load off the CPU",
            "much less load",
            (("cpu and cuda", migrates), ("cpu", default)),
            "cpu_load",
            "cores busy",
        ),
        *(_winner(table, sizes, "the CPU alone", ("cpu",)) for sizes in ((64,), (64, 64))),
        *(_winner(table, sizes, "the hybrid or the CPU", ("cpu", "hybrid")) for sizes in ((128,), (128, 128))),
        *(_winner(table, sizes, "the hybrid", ("hybrid",)) for sizes in ((256,), (256, 256))),
        _thread_contention(rows, "textbook", TEXTBOOK_ONE_THREAD, TEXTBOOK_DEFAULT_THREADS),
        _thread_contention(rows, "library", CPU_ONE_THREAD, CPU_DEFAULT_THREADS),
        _one_thread_beats_the_gpu(rows),
    ]


def _at_most(
    statement: str, article: str, sides: tuple[tuple[str, Row | None], tuple[str, Row | None]], key: str, unit: str
) -> Conclusion:
    """That the first side's figure is no greater than the second's."""
    here = ", ".join(f"{name} {row[key]:.3g} {unit}" for name, row in sides if row is not None)
    (_, low), (_, high) = sides
    if low is None or high is None:
        return Conclusion(statement, article, f"{NOT_MEASURED} ({here})" if here else NOT_MEASURED, None)
    return Conclusion(statement, article, here, bool(low[key] <= high[key]))


KINDS = {CPU_ONE_THREAD: "cpu", CPU_DEFAULT_THREADS: "cpu", "cuda": "cuda", "migrate": "hybrid", "hybrid": "hybrid"}
"""What the article would have called the placements that learn from fresh parameters."""


def _winner(table: dict[tuple[Any, ...], Row], sizes: tuple[int, ...], wins: str, kinds: tuple[str, ...]) -> Conclusion:
    """Which kind of placement is fastest for one network, an update an episode."""
    statement = f"Hidden layers {_sizes(sizes)}, an update an episode: {wins} wins"
    best: dict[str, float] = {}
    for name, kind in KINDS.items():
        if (row := table.get((sizes, BY_EPISODE, name))) is not None:
            best[kind] = min(best.get(kind, row["us_per_step"]), row["us_per_step"])
    here = ", ".join(f"{kind} {figure:.1f} us a step" for kind, figure in best.items())
    if best.keys() != set(KINDS.values()):
        return Conclusion(statement, "the same", f"{NOT_MEASURED} ({here})" if here else NOT_MEASURED, None)
    return Conclusion(statement, "the same", here, min(best, key=lambda kind: best[kind]) in kinds)


def _thread_contention(rows: Sequence[Row], contestant: str, one: str, default: str) -> Conclusion:
    """Whether one thread is no slower than torch's default number of threads, in every piece of work measured."""
    subject = "Textbook loop" if contestant == "textbook" else "This library on the CPU"
    statement = f"{subject}: one thread is at least as fast as torch's default"
    by_work = _by_work(rows)
    ratios = {
        work: by_name[default]["us_per_step"] / by_name[one]["us_per_step"]
        for work, by_name in by_work.items()
        if one in by_name and default in by_name
    }
    return _count(statement, ratios, "torch's default takes {:.2f} to {:.2f} times as long")


def _one_thread_beats_the_gpu(rows: Sequence[Row]) -> Conclusion:
    """Whether the CPU with one thread is no slower than the best placement without lag that uses a GPU."""
    ratios = {}
    for work, by_name in _by_work(rows).items():
        others = [by_name[name]["us_per_step"] for name in ("cuda", "migrate", "hybrid") if name in by_name]
        if others and CPU_ONE_THREAD in by_name:
            ratios[work] = min(others) / by_name[CPU_ONE_THREAD]["us_per_step"]
    statement = "This library: the CPU with one thread is at least as fast as any placement with the GPU"
    return _count(statement, ratios, "the best with the GPU takes {:.2f} to {:.2f} times as long")


def _count(statement: str, ratios: dict[Any, float], text: str) -> Conclusion:
    if not ratios:
        return Conclusion(statement, "not asked", NOT_MEASURED, None)
    holding = sum(ratio * SAME >= 1.0 for ratio in ratios.values())
    here = f"in {holding} of {len(ratios)}; " + text.format(min(ratios.values()), max(ratios.values()))
    return Conclusion(statement, "not asked", here, holding == len(ratios))


def _by_work(rows: Sequence[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    by_work: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        by_work.setdefault((tuple(row["hidden_sizes"]), row["rollout"]), {})[row["candidate"]] = row
    return by_work


def _sizes(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, sizes))


def as_markdown(rows: Sequence[Row], left_out: Sequence[str]) -> str:
    """The rows, with the fastest of each work marked, the candidates that were left out, and the conclusions."""
    fastest = {work: min(row["us_per_step"] for row in of.values()) for work, of in _by_work(rows).items()}
    lines = [
        "| hidden layers | an update per | candidate | seconds | steps/s | us a step: sampling, learning, copying "
        "| ms an update | cores busy | GPU % | GPU MiB | publishes | MB copied | return, last 100 |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        is_fastest = row["us_per_step"] == fastest[tuple(row["hidden_sizes"]), row["rollout"]]
        parts = ", ".join(f"{row[f'us_{part}']:.1f}" for part in ("sampling", "learning", "copying"))
        copied = None if row["bytes_copied"] is None else row["bytes_copied"] / 1e6
        cells = [
            _sizes(row["hidden_sizes"]),
            row["rollout"],
            f"**{row['candidate']}**" if is_fastest else row["candidate"],
            f"{row['seconds']:.2f}",
            f"{row['steps_per_second']:,.0f}",
            parts,
            f"{row['ms_per_update']:.2f}",
            f"{row['cpu_load']:.2f}",
            *(_cell(figure, ",.0f") for figure in (row["gpu_utilization"], row["gpu_memory_mib"], row["publishes"])),
            _cell(copied, ",.1f"),
            f"{row['return_mean']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *left_out, *([""] if left_out else [])]
    return "\n".join([*lines, *verdicts(conclusions(rows))])


def verdicts(of: Sequence[Conclusion]) -> list[str]:
    """A table of the statements that this machine could measure."""
    lines = ["| statement | the article | here | holds here |", "|---|---|---|---|"]
    measured = [each for each in of if each.holds is not None]
    return lines + [f"| {c.statement} | {c.article} | {c.here} | {'yes' if c.holds else 'no'} |" for c in measured]


def _cell(figure: float | None, form: str) -> str:
    return "" if figure is None else f"{figure:{form}}"


def run(*, sizes: Sequence[tuple[int, ...]], episodes: int, seeds: int, report: Callable[[str], object]) -> Row:
    """Measure all that can be measured here, and draw the conclusions."""
    has_cuda, default_threads = torch.cuda.is_available(), torch.get_num_threads()
    able, left_out = candidates(has_cuda=has_cuda, cores=os.cpu_count() or 1, default_threads=default_threads)
    works = [Work(size, rollout) for rollout in (BY_EPISODE, BY_ROLLOUT) for size in sizes]
    rows = measure(works, able, episodes=episodes, seeds=range(seeds), report=report)
    return {"rows": rows, "left_out": left_out, "conclusions": [asdict(each) for each in conclusions(rows)]}
