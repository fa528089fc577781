"""A GPU's day in one command: what this library does on a machine with one CUDA device, within 25 minutes.

    make gpu-day
    python benchmarks/gpu.py --parts tests,images --minutes 9 --output day
    python benchmarks/gpu.py --table day                        # the tables of what was measured
    python benchmarks/gpu.py --device cpu --minutes 4 --seconds 0.3 --output trial      # a trial without a GPU

Its parts, in this order. Each has a share of the time, and what a part does not need goes to those behind it.

    tests     the tests that need a CUDA device
    images    Pong: placements, 8, 64 and 256 environments, no workers to two for each core; EnvPool's Pong
    field     PPO of other libraries on the device, on the same work (`peers`)
    sizes     placements for CartPole and HalfCheetah, with two layers of 64, 256 and 1,024
    batched   CartPole on torch tensors by the number of environments, on the device and stepped from the host

Each part writes PART.json in the folder after every row. What cannot be measured is a row with the reason: a package is
missing, it takes longer than `--limit`, or no time is left. A row of this library is one training through
`hybridppo.train`: its figures are means over at least `--seconds` and three iterations, after a warm-up of as many.
The rows of other libraries are their own turns (`field.py`), whose use of the machine includes their start. The share
of the bound is `max(sampling, learning)` of a training over the time of its iterations: 1 if one hides the other.

Needed are a CUDA device, about 16 cores, and the packages of `make bench`; parts also need ale-py, EnvPool, mujoco, and
the peers. `nvidia-ml-py` or nvidia-smi measures the use of the device, psutil that of the cores. On a machine without
network, which has torch, bring the packages as wheels (`carry.py`): `make gpu-day WHEELS=FOLDER`.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import carry
import machine
import torch
from turns import end, history_of, last_line, take_turn
from watch import Watch

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
SHARES = {"tests": 0.12, "images": 0.33, "field": 0.25, "sizes": 0.2, "batched": 0.1}
"""The parts in their order, and the share of the time of each."""
WARM_UP = 1.0
"""Most seconds of a training that do not count, unless three iterations take longer."""
LEAST = 3
"""Iterations that count, at least, and those before them."""
NO_TIME = "no time was left for it"
PLACEMENTS = ("cpu", "cuda", "migrate", "hybrid", "overlap", "overlap, cpu and cpu", "overlap, cuda and cuda")


def share_of(part: str, parts: list[str], left: float) -> float:
    """The seconds of a part, of those that are left for it and for the parts behind it."""
    return left * SHARES[part] / sum(SHARES[each] for each in parts[parts.index(part) :])


def image_cells(cores: int) -> list[Row]:
    """Trainings in Pong, the most telling first: rollouts of 1,024 to 4,096 steps, by placement and workers.

    Without workers, threads in C++ step the games, one for each core.
    """
    numbers = {8: (0, 8), 64: (0, cores, 2 * cores), 256: (0, cores, 2 * cores)}
    order = [
        (envs, placement, workers)
        for envs, of_envs in numbers.items()
        for placement, workers in product(("cuda", "overlap, cuda and cuda", "hybrid", "overlap"), of_envs)
        if (placement, workers) != ("overlap", 0)  # which would sample with the trainer's own Python
    ]
    order += product((8, 64, 256), ("cuda", "overlap, cuda and cuda"), (1, 4))
    order += [(8, "cpu", 0), (8, "cuda", 2), (64, "cuda", 2), (64, "cuda", 8)]
    steps = {8: 128, 64: 32, 256: 16}
    shape = {"hidden_sizes": "512"}
    cells = [
        {**shape, "env_id": "ALE/Pong-v5", "num_envs": envs, "num_steps": steps[envs], "placement": placement,
         "num_workers": workers, "torch_threads": cores if placement == "cpu" else 1}
        for envs, placement, workers in dict.fromkeys(order) if workers <= envs
    ]  # fmt: skip
    return cells + [
        {**shape, "env_id": "envpool/Pong-v5", "num_envs": envs, "num_steps": steps[envs], "placement": "cuda",
         "batch_size": at_once}
        for envs in (64, 256) for at_once in (envs // 2, envs)
    ]  # fmt: skip


def size_cells(cores: int) -> list[Row]:
    """Every placement for every size of network, with rollouts of 8 x 128 steps."""
    return [
        {"env_id": env_id, "hidden_sizes": f"{width},{width}", "num_envs": 8, "num_steps": 128, "placement": placement}
        for width, env_id, placement in product((256, 64, 1024), ("CartPole-v1", "HalfCheetah-v5"), PLACEMENTS[:-1])
    ]


def batched_cells(cores: int) -> list[Row]:
    """Environments on torch tensors: rollouts of 32 steps, and one epoch of four minibatches."""
    return [
        {"env_id": "TorchCartPole", "hidden_sizes": "64,64", "num_envs": number, "num_steps": 32, "num_epochs": 1,
         "placement": "cuda", "on": on}
        for number, on in product((4096, 65536, 256), ("cuda", "cpu"))
    ]  # fmt: skip


def placement_of(name: str, device: str) -> Any:
    """A placement by its name, with the device in place of cuda."""
    from hybridppo import Migrating, Mirrored, SingleDevice

    if name == "overlap, cuda and cuda":
        return Mirrored(device, device, max_lag=1)
    return {
        "cpu": SingleDevice("cpu"),
        "cuda": SingleDevice(device),
        "migrate": Migrating("cpu", device),
        "hybrid": Mirrored("cpu", device, force_copy=device == "cpu"),
        "overlap": Mirrored("cpu", device, max_lag=1),
        "overlap, cpu and cpu": Mirrored("cpu", "cpu", max_lag=1),
    }[name]


def trained(cell: Row, device: str, seconds: float) -> Row:
    """The figures of a training."""
    from settings import cleanrl

    from hybridppo.tensors import TorchCartPole

    env: Any = cell["env_id"]
    if env == "TorchCartPole":
        env = partial(TorchCartPole, cell["num_envs"], device if cell["on"] == "cuda" else "cpu")
    fields = {key: cell[key] for key in ("num_envs", "num_steps", "num_epochs", "torch_threads") if key in cell}
    sizes = tuple(int(size) for size in cell["hidden_sizes"].split(","))
    options = {"num_workers": cell["num_workers"]} if "num_workers" in cell else {}
    options |= {"env_kwargs": {"batch_size": cell["batch_size"]}} if "batch_size" in cell else {}
    with Watch() as watch:
        history = history_of(
            env, WARM_UP, seconds, least=LEAST if device == "cuda" else 1, config=cleanrl(**fields, hidden_sizes=sizes),
            placement=placement_of(cell["placement"], device), **options,
        )  # fmt: skip
    (start, first), (stop, last) = history[0], history[-1]
    counted = [metrics for _, metrics in history[1:]]
    means = {
        f"ms_{part}": 1e3 * sum(metrics.get(f"seconds_{part}", 0.0) for metrics in counted) / len(counted)
        for part in ("sampling", "overlapped", "learning", "copying")
    }
    sampling = means["ms_sampling"] + means.pop("ms_overlapped")
    return {
        "steps_per_second": (last["env_steps"] - first["env_steps"]) / (stop - start),
        **means,
        "ms_sampling": sampling,
        "iterations": len(counted),
        "share_of_bound": max(sampling, means["ms_learning"]) * len(counted) / (1e3 * (stop - start)),
        "bytes_per_iteration": (last["bytes_copied"] - first["bytes_copied"]) / len(counted),
        **watch.found(start, stop),
    }


def serve(device: str, seconds: float) -> None:
    """Answer each cell on stdin by a line on stdout, until one fails: it may have left the device unusable."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        row, ends = {}, False
        try:
            row = trained(json.loads(line), device, seconds)
        except Exception as error:
            row, ends = {"left_out": f"{type(error).__name__}: {last_line(str(error))[:300]}"}, True
        print(json.dumps(row), file=answers, flush=True)
        if ends:
            return


class Trainer:
    """A process that trains cell after cell, and is started again if it has ended, or took too long."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None

    def row(self, cell: Row, limit: float) -> Row:
        """The answer within so many seconds, or the reason why there is none."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment,
                start_new_session=True,
            )  # fmt: skip
        process, start = self._process, time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(limit, end, (process,))
        timer.start()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(cell), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        found: Row = json.loads(answer or "{}")
        code = process.wait() if "steps_per_second" not in found else None
        took = time.monotonic() - start
        timer.cancel()
        if found:
            return found
        return {
            "left_out": f"it took longer than {limit:.0f} s" if took >= limit else f"its process ended with code {code}"
        }

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            end(self._process)


class Day:
    """What all parts use."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.cores = os.cpu_count() or 1
        self.sites = carry.unpack(arguments.wheels, ROOT / "build" / "carried") if arguments.wheels else {}
        common = [str(self.sites[carry.COMMON])] if carry.COMMON in self.sites else []
        inherited = [path] if (path := os.environ.get("PYTHONPATH")) else []
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *common, *inherited])
        sys.path += [str(ROOT), *common]

    def environment(self, peer: str = "") -> dict[str, str]:
        """The variables of a process: a peer's own packages come before the common ones."""
        own = [str(self.sites[peer])] if peer in self.sites else []
        return machine.environment(PYTHONPATH=os.pathsep.join([*own, os.environ["PYTHONPATH"]]))

    def cells(self, cells_of: Callable[[int], list[Row]], deadline: float) -> Iterator[Row]:
        """A row for each cell of a part."""
        options = self.arguments
        command = [sys.executable, __file__, "--serve", "--device", options.device, "--seconds", str(options.seconds)]
        trainer = Trainer(command, self.environment())
        with contextlib.closing(trainer):
            for whole in cells_of(self.cores):
                short = {} if options.device == "cuda" else {"num_steps": max(4, whole["num_steps"] // 16)}
                cell = whole | short
                left = min(deadline - time.monotonic(), options.limit)
                yield cell | (trainer.row(cell, left) if left > WARM_UP + options.seconds else {"left_out": NO_TIME})

    def field(self, deadline: float) -> Iterator[Row]:
        """This library and others, each turn in a process of its own."""
        device, here = self.arguments.device, Path(__file__).parent
        own = {"cpu": {"cpu": [], "overlap": ["--learning-device", "cpu"]}}.get(
            device, {"cuda": [], "hybrid": [], "overlap": []}
        )
        for case in self.arguments.cases.split(","):
            count = ["--iterations", "5" if device == "cuda" else "1"]
            turns = {
                f"hybridppo, {name}": ["contestants.py", "hybridppo", case, "--placement", name, *flags, *count]
                for name, flags in own.items()
            }
            if case == "pong":
                turns["hybridppo, 8 workers"] = [*turns[f"hybridppo, {device}"], "--num-workers", "8"]
                turns["stable-baselines3, 8 processes"] = [
                    "contestants.py", "stable-baselines3", case, "--vector", "subproc", "--device", device, *count
                ]  # fmt: skip
            scripts = self.sites.get(carry.SCRIPTS, self.arguments.checkouts)
            checkouts = ["--checkouts", str(scripts)] if scripts else []
            for peer in self.arguments.peers.split(","):
                turns[peer] = ["peers/turn.py", peer, case, "--device", device, *checkouts, *count]
            for name, (script, *flags) in turns.items():
                row: Row = {"case": case, "candidate": name}
                left = min(deadline - time.monotonic(), self.arguments.limit)
                if left < 2 * WARM_UP:
                    yield row | {"left_out": NO_TIME}
                    continue
                peer = name.partition(",")[0]
                venv = self.arguments.venvs / peer.replace(" ", "-") / "bin" / "python"
                command = [str(venv) if venv.exists() else sys.executable, str(here / script), *flags]
                with Watch() as watch:
                    row |= take_turn(command, self.environment(peer), left)
                if row.get("ms_sampling") and "overlap" not in name:
                    parts = row["ms_sampling"], row["ms_learning"]
                    row["share_of_bound"] = max(parts) / sum(parts)
                yield row | watch.found()

    def tests(self, deadline: float) -> Iterator[Row]:
        """One row: how many tests had which outcome, and why some failed."""
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-p", "no:cacheprovider", "--tb=line"]
        processes = min(12, self.cores) if importlib.util.find_spec("xdist") else 1
        command += ["-n", str(processes)] if processes > 1 else []
        path, start = self.arguments.output / "tests.txt", time.monotonic()
        row: Row = {"candidate": f"pytest -m gpu, {processes} processes"}
        with path.open("w+", encoding="utf-8") as output, Watch() as watch:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=self.environment(),
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(deadline - start)
            except subprocess.TimeoutExpired:
                row["left_out"] = f"cut off after {deadline - start:.0f} s"
            finally:
                end(process)
        found = outcomes(path.read_text(encoding="utf-8", errors="replace"))
        if not found["outcomes"]:
            row.setdefault("left_out", f"no test ran: see {path.name}")
        yield row | found | {"seconds": time.monotonic() - start} | watch.found()


OUTCOME = re.compile(r"^(?:(tests/.*?) )?(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b ?(tests/\S.*)?", re.MULTILINE)
"""Matches a line of pytest: the outcome stands behind the test, or before it if tests are distributed."""
SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)


def outcomes(text: str) -> Row:
    """How many tests had which outcome, from what pytest has printed until now, and the failures with their reasons."""
    text = re.sub(r"^\[gw\d+\] \[ *\d+%\] ", "", text, flags=re.MULTILINE)
    ran, *summary = SUMMARY.split(text, maxsplit=1)
    found: dict[str, int] = {}
    failures = []
    for before, outcome, behind in OUTCOME.findall(ran):
        if not (before or behind):
            continue
        found[outcome.lower()] = found.get(outcome.lower(), 0) + 1
        if outcome in ("FAILED", "ERROR"):
            failures.append(before or behind)
    reasons = [line for line in "".join(summary).splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {"outcomes": found, "failures": reasons or failures}


COLUMNS: dict[str, tuple[str, str]] = {
    "steps/s": ("steps_per_second", ",.0f"),
    "sampling ms": ("ms_sampling", ",.1f"),
    "learning ms": ("ms_learning", ",.1f"),
    "share of the bound": ("share_of_bound", ".2f"),
    "busy cores": ("cores_busy", ".1f"),
    "GPU %": ("gpu_percent", ".0f"),
    "GPU MiB": ("gpu_mib", ",.0f"),
}
"""The headings of a table, and the keys and formats of their figures. A column without a figure is left out."""


def work_of(row: Row) -> str:
    """What a row has in common with those that it is compared with."""
    sizes = [f"layers of {row['hidden_sizes']}"] if "hidden_sizes" in row else []
    number = [f"{row['num_envs']:,} environments"] if "num_envs" in row else []
    return ", ".join(
        [row["case"]] if "case" in row else [*([row["env_id"]] if "env_id" in row else []), *sizes, *number]
    )


def name_of(row: Row) -> str:
    """What a row measures."""
    if "candidate" in row:
        return str(row["candidate"])
    if "on" in row:
        return "on the device" if row["on"] == "cuda" else "stepped from the host"
    units = {"num_workers": "workers", "batch_size": "at once"}
    return ", ".join([row["placement"], *(f"{row[key]} {unit}" for key, unit in units.items() if key in row)])


def as_markdown(result: Row) -> str:
    """A line for each row, by their work, the fastest in bold; and what was not measured, by reason."""
    rows = [row for row in result["rows"] if "left_out" not in row]
    columns = {head: key for head, key in COLUMNS.items() if any(row.get(key[0]) is not None for row in rows)}
    lines = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---:|' * len(columns)}"] if rows else []
    fastest: dict[str, float] = {}
    for row in rows:
        fastest[work_of(row)] = max(fastest.get(work_of(row), 0.0), row["steps_per_second"])
    for row in sorted(rows, key=lambda row: list(fastest).index(work_of(row))):
        work, name = work_of(row), name_of(row)
        cells = ["" if row.get(key) is None else f"{row[key]:{form}}" for key, form in columns.values()]
        is_fastest = row["steps_per_second"] == fastest[work]
        lines.append(f"| {work} | {f'**{name}**' if is_fastest else name} | {' | '.join(cells)} |")
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in result["rows"]:
        if "left_out" in row:
            reasons.setdefault(row["left_out"], {}).setdefault(work_of(row), []).append(name_of(row))
    lines += [""] if reasons else []
    for reason, works in reasons.items():
        which = "; ".join(f"{work}: {', '.join(names)}" for work, names in works.items())
        lines.append(f"- Not measured, because {reason}: {which}.")
    return "\n".join(lines)


def in_words(folder: Path) -> str:
    """All parts that a folder has, for a page."""
    found = []
    for part in SHARES:
        if not (path := folder / f"{part}.json").exists():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        where = machine.in_one_line(result["machine"])
        stand_in = "" if result["device"] == "cuda" else " **A CPU stood in for the GPU.**"
        found.append(f"### {part}\n")
        if part == "tests":
            for row in result["rows"]:
                numbers = ", ".join(f"{number} {outcome}" for outcome, number in row["outcomes"].items())
                found.append(f"{row['candidate']}: {numbers or 'nothing'} in {row['seconds']:.0f} s.{stand_in}")
                found += [f"- {line}" for line in [*row["failures"], *filter(None, [row.get("left_out")])]]
        else:
            found.append(as_markdown(result))
        found.append(f"\nMeasured on {result['date']}: {where}.{stand_in}\n")
    return "\n".join(found)


def main() -> None:
    """Measure, save and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(SHARES), help="(default %(default)s)")
    parser.add_argument("--minutes", type=float, default=25.0, help="of all parts (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a training that count (default %(default)s)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one row (default %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", machine.RESULTS / "gpu-day")))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu stands in, with short rollouts")
    parser.add_argument("--wheels", type=Path, help="a folder of `carry.py`")
    parser.add_argument("--checkouts", type=Path, help="a folder with clones of `cleanrl` and `LeanRL`")
    parser.add_argument("--venvs", type=Path, default=ROOT / "build" / "peers", help="environments of `field.py`")
    parser.add_argument("--cases", default="pong,wide,cheetah", help="of the field (default %(default)s)")
    parser.add_argument("--peers", default=",".join(carry.PEERS), help="of the field (default %(default)s)")
    parser.add_argument("--table", type=Path, metavar="FOLDER", help="measure nothing, print the tables of a folder")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.device, arguments.seconds)
    if arguments.table:
        return print(in_words(arguments.table))
    if unknown := set(arguments.parts.split(",")) - set(SHARES):
        parser.error(f"unknown parts {sorted(unknown)}: use {', '.join(SHARES)}")
    parts = [part for part in SHARES if part in arguments.parts.split(",")]
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device: try the script with --device cpu")
    ends = time.monotonic() + 60.0 * arguments.minutes
    arguments.output.mkdir(parents=True, exist_ok=True)
    day = Day(arguments)
    run: dict[str, Callable[[float], Iterator[Row]]] = {
        "tests": day.tests,
        "images": partial(day.cells, image_cells),
        "field": day.field,
        "sizes": partial(day.cells, size_cells),
        "batched": partial(day.cells, batched_cells),
    }
    for part in parts:
        start = time.monotonic()
        rows: list[Row] = []
        for row in run[part](start + share_of(part, parts, ends - start)):
            rows.append(row)
            figure = row.get("left_out") or row.get("outcomes") or f"{row['steps_per_second']:,.0f} steps/s"
            print(f"  {part}: {work_of(row)}: {name_of(row)}: {figure}", file=sys.stderr, flush=True)
            taken = time.monotonic() - start
            machine.save(part, {"device": arguments.device, "seconds": taken, "rows": rows}, arguments.output)
    print(in_words(arguments.output))
    return None


if __name__ == "__main__":
    main()
