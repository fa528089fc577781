"""Put random faults into many short trainings: nothing may be lost, hang, or be left behind.

    python tests/tools/chaos.py --faults 200
    python tests/tools/chaos.py --faults 1000000 --seed 7      # Ctrl-C ends it
    python tests/tools/chaos.py --faults 50 --kinds learners --hang-seconds 120 --save chaos_policies
    python tests/tools/chaos.py --faults 8 --kinds coarse fine --iterations 100 --hang-seconds 120 --jobs 1

Each training is started by the command line, hit by some faults in a row, resumed after each fault, and then runs to
its end. Faults are SIGKILL, SIGTERM, SIGINT and SIGUSR1 to the trainer at random moments (also while it starts),
SIGKILL to a worker process, a learner or a sampler (and SIGSTOP to learners), a damaged newest checkpoint, and a disk
that is full for a while. After each fault, the script checks that

- the process has ended, or continues if lost workers are replaced: 30 seconds without progress are a hang (use
  --hang-seconds on a machine with other work);
- no process that it started is left, and no file in /dev/shm or in its temporary folder;
- the newest whole checkpoint is not older than before (apart from one that was damaged on purpose), and has every
  iteration of the metrics if the trainer ended by itself (exit codes 0 and 130). A trainer that is interrupted while it
  starts may also leave metrics and checkpoints unchanged.

At the end of each training, its metrics must have no gap, all steps must be made, and its parameters must equal those
of the same training without a fault, to the last bit. Exceptions are `central`, which promises no bits, and trainings
whose lost workers were replaced or whose error says so, because these begin other episodes. Files in Ray's own folder
do not count. The first failure ends the script with exit code 1, and the folder is kept. Linux only.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import machine
import psutil
import torch
from chaos_kinds import KINDS, Kind

import hybridppo
from hybridppo.errors import CheckpointError
from hybridppo.run_directory import checkpoints
from hybridppo.run_directory.files import as_json

MARK = "HYBRIDPPO_CHAOS"
SIGNALS = {"SIGKILL": 3, "SIGTERM": 2, "SIGINT": 2, "SIGUSR1": 1}
"""The relative frequency of each signal."""
ROWS = 64
MOST_LOSSES = 4
"""The most lost workers of a trainer that replaces them."""


@dataclass(frozen=True)
class Limits:
    """The length of a training, and the longest time without progress.

    Args:
        iterations: iterations of a training.
        hang_seconds: seconds without progress after which a training counts as hung.
    """

    iterations: int
    hang_seconds: float

    def settings(self, seed: int) -> list[str]:
        """Flags of a training."""
        return (
            f"--total-steps {self.iterations * ROWS} --num-envs 2 --num-steps {ROWS // 2} --num-minibatches 2 "
            f"--hidden-sizes 8 --checkpoint-seconds 0 --no-progress --seed {seed}"
        ).split()


class FailureError(Exception):
    """A training has broken a promise."""


@dataclass
class Counts:
    """The counts of faults and outcomes so far, of all trainings together."""

    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    runs: int = 0
    endings: collections.Counter[str] = field(default_factory=collections.Counter)
    identical: int = 0
    by_kind: collections.Counter[str] = field(default_factory=collections.Counter)
    log: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, fault: str, ending: str, lines: int) -> int:
        """Count a fault that the training has survived; return the number of faults so far."""
        with self.lock:
            self.faults[fault] += 1
            self.endings[ending] += 1
            self.by_kind[kind] += 1
            self.log.append({"kind": kind, "fault": fault, "ending": ending, "at_line": lines})
            return self.faults.total()


class Trainer:
    """A process of `hybridppo train` or `hybridppo resume` in its own session, and all processes that it starts."""

    def __init__(self, command: Sequence[str], temporary: Path, hang_seconds: float) -> None:
        self.mark, self._hang_seconds = uuid.uuid4().hex, hang_seconds
        self.temporary = temporary
        temporary.mkdir(exist_ok=True)
        # Sockets of Ray's are in its folder, and their paths must be short.
        self._of_ray = Path(tempfile.gettempdir()) / f"chaos-ray-{self.mark[:8]}"
        environment = {
            **os.environ, MARK: self.mark, "TMPDIR": str(temporary), "RAY_TMPDIR": str(self._of_ray),
            "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",  # a full disk would leave truncated bytecode
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._said: collections.deque[str] = collections.deque(maxlen=100)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._said.extend(self.process.stderr)

    @property
    def said(self) -> str:
        """The end of its output to stderr."""
        return "".join(self._said)

    def others(self) -> list[psutil.Process]:
        """The living processes that it started, whatever their parent is now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_dead = process.pid == self.process.pid or process.status() == psutil.STATUS_ZOMBIE
                if not is_dead and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def check_gone(self) -> None:
        """Require that no process or file of it is left."""
        deadline = time.monotonic() + self._hang_seconds
        while left := [*map(str, self.others()), *self._files()]:
            if time.monotonic() > deadline:
                raise FailureError(f"left behind: {left}\n{self.said}")
            time.sleep(0.05)
        self._reader.join(timeout=5.0)
        shutil.rmtree(self._of_ray, ignore_errors=True)

    def _files(self) -> list[str]:
        in_memory = Path("/dev/shm").glob(f"hybridppo-{self.process.pid}-*")
        return [str(path) for path in (*in_memory, *self.temporary.rglob("*"))]

    def end(self) -> None:
        """Kill all of its processes, in any state."""
        for process in [*self.others(), psutil.Process(self.process.pid) if self.process.poll() is None else None]:
            if process is not None:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.wait()


class Run:
    """A training with its faults, resumptions and end."""

    def __init__(
        self, folder: Path, moments: random.Random, seed: int, name: str, limits: Limits, counts: Counts
    ) -> None:
        self._counts = counts
        self.name, self.kind, self.limits = name, ALL_KINDS[name], limits
        self.has_lost_bits = self.kind.reference is None
        self.path, self.moments, self.seed = folder / "run", moments, seed
        self.temporary = folder / "tmp"
        self.newest = -1
        self.damaged: set[Path] = set()
        self.found = self.written()

    def survived(self, fault: str, ending: str) -> None:
        """Count a fault, and print it."""
        total = self._counts.add(self.name, fault, ending, self.lines())
        print(f"{total:6} {self.name:10} {fault:18} {ending:20} at {self.lines()} lines", flush=True)

    def start(self) -> Trainer:
        """The command to start or resume the training."""
        self.found = self.written()
        command = [*self.kind.command, "resume", str(self.path), "--no-progress"]
        if not (self.path / "config.json").exists():
            command = train_command(self.kind, self.kind.settings, self.limits, self.seed, self.path)
        return Trainer(command, self.temporary, self.limits.hang_seconds)

    def metrics(self) -> bytes:
        """The content of `metrics.jsonl`."""
        try:
            return (self.path / "metrics.jsonl").read_bytes()
        except FileNotFoundError:
            return b""

    def written(self) -> tuple[bytes, list[Path]]:
        """The metrics, and the checkpoints, damaged ones included."""
        return self.metrics(), checkpoints.folders(self.path / "checkpoints")

    def lines(self) -> int:
        """The number of complete lines of metrics."""
        return self.metrics().count(b"\n")

    def last_iteration(self) -> int:
        """The iteration of the last line; earlier lines may be missing because of a full disk."""
        metrics = self.metrics().splitlines()
        return int(json.loads(metrics[-1])["iteration"]) if metrics else 0

    def wait(self, trainer: Trainer, *, more_lines: int | None = None) -> bool:
        """Wait until the process ends (False), or has logged `more_lines` more (True). No progress is a failure."""
        start = seen = self.lines()
        progress_at = time.monotonic()
        while trainer.process.poll() is None:
            lines = self.lines()
            if more_lines is not None and lines >= start + more_lines:
                return True
            if lines != seen:
                seen, progress_at = lines, time.monotonic()
            if time.monotonic() - progress_at > self.limits.hang_seconds:
                raise FailureError(f"no progress for {self.limits.hang_seconds:g} s at {lines} lines\n{trainer.said}")
            time.sleep(0.005)
        return False

    def hit(self) -> tuple[str, str]:
        """Start, wait for a random moment, cause a fault, and check; return the fault and how the process ended."""
        trainer = self.start()
        try:
            strikes = {"signal": 3, "damage": 1, "disk": 1}
            if self.kind.workers:
                strikes |= {"replaced": 4} if self.kind.replaces else {"worker": 2}
            kind = self.moments.choices(list(strikes), list(strikes.values()))[0]
            if kind == "signal":
                return self.signalled(trainer)
            if not self.wait(trainer, more_lines=self.moments.randint(2, 15)):
                return "none", self.ended(trainer, {0})  # it was through already
            strike = {
                "damage": self.damage, "disk": self.fill_disk, "worker": self.kill_worker, "replaced": self.lose_workers
            }  # fmt: skip
            return strike[kind](trainer)
        except BaseException:
            trainer.end()
            raise

    def signalled(self, trainer: Trainer) -> tuple[str, str]:
        """Send any signal at any moment; a third of the signals come while the trainer starts."""
        name = self.moments.choices(list(SIGNALS), list(SIGNALS.values()))[0]
        if self.moments.random() < 1 / 3:
            with contextlib.suppress(subprocess.TimeoutExpired):
                trainer.process.wait(timeout=self.moments.uniform(0.0, self.kind.seconds_to_start))
        else:
            self.wait(trainer, more_lines=self.moments.randint(1, 20))
            time.sleep(self.moments.uniform(0.0, 0.03))
        number = signal.Signals[name]
        trainer.process.send_signal(number)
        return name, self.ended(trainer, {0, 130, -number})

    def kill_worker(self, trainer: Trainer) -> tuple[str, str]:
        """Send SIGKILL to a worker: the trainer must report the loss and end."""
        self.strike(trainer, signal.SIGKILL)
        ending = self.ended(trainer, {0, 1})
        if ending == "exit 1" and "SIGKILL" not in trainer.said and "learner 1 of 2 died" not in trainer.said:
            raise FailureError(f"a killed worker was not named\n{trainer.said}")
        self.has_lost_bits |= "new episodes, so not to the bits" in trainer.said
        return "worker killed", ending

    def lose_workers(self, trainer: Trainer) -> tuple[str, str]:
        """Kill or stop workers: the trainer must report the losses, and continue with others in their place."""
        for more in reversed(range(self.moments.randint(1, MOST_LOSSES))):
            is_silent = self.kind.stops_workers and self.moments.random() < 0.25
            number = signal.SIGSTOP if is_silent else signal.SIGKILL
            name, is_struck = f"worker {number.name}", self.strike(trainer, number)
            self.has_lost_bits |= is_struck and not self.kind.keeps_bits
            if not is_struck or not self.wait(trainer, more_lines=self.moments.randint(3, 8)):
                return name if is_struck else "none", self.ended(trainer, {0})
            if not is_silent and "in its place" not in trainer.said and "in place of" not in trainer.said:
                raise FailureError(f"a killed worker was not named\n{trainer.said}")
            if more:
                self.survived(name, "went on")
        last = self.moments.choice((signal.SIGTERM, signal.SIGKILL))
        trainer.process.send_signal(last)
        self.ended(trainer, {0, 130, -last})
        return name, "went on"

    def strike(self, trainer: Trainer, number: signal.Signals) -> bool:
        """Send a signal to one of the workers; return whether there was one."""
        found = []
        for process in trainer.others():
            with contextlib.suppress(psutil.Error):
                if any(part in " ".join(process.cmdline()) for part in self.kind.workers):
                    found.append(process)
        if not found:
            return False
        with contextlib.suppress(psutil.Error):
            self.moments.choice(found).send_signal(number)
        return True

    def damage(self, trainer: Trainer) -> tuple[str, str]:
        """Kill the trainer, and damage its newest checkpoint."""
        trainer.process.kill()
        ending = self.ended(trainer, {0, -signal.SIGKILL})
        found = checkpoints.folders(self.path / "checkpoints")
        if len(found) > 1:
            file = found[-1] / self.moments.choice(["state.json", "tensors.safetensors"])
            data = bytearray(file.read_bytes())
            place = self.moments.randrange(len(data))
            how = self.moments.choice(["flip", "cut", "delete"])
            if how == "delete":
                file.unlink()
            elif how == "cut":
                file.write_bytes(data[:place])
            else:
                data[place] ^= 1 << self.moments.randrange(8)
                file.write_bytes(data)
            self.newest = int(found[-2].name)
            self.damaged.add(found[-1])
            with contextlib.suppress(CheckpointError):
                checkpoints.load(found[-1])
                raise FailureError(f"{file}: {how} at byte {place} was not noticed")
        return "checkpoint damaged", ending

    def fill_disk(self, trainer: Trainer) -> tuple[str, str]:
        """Let no file grow for a while, as on a full disk; the training must continue, then and later."""
        import resource

        no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        try:
            resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            time.sleep(self.moments.uniform(0.05, 0.5))
            resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE, no_limit)
        except ProcessLookupError:
            return "none", self.ended(trainer, {0})
        if self.wait(trainer, more_lines=5):
            trainer.process.kill()
            self.ended(trainer, {0, -signal.SIGKILL})
        elif trainer.process.returncode != 0 and "not on the disk" not in trainer.said:
            raise FailureError(f"a full disk ended the training with {trainer.process.returncode}\n{trainer.said}")
        return "disk full", "went on"

    def ended(self, trainer: Trainer, codes: set[int]) -> str:
        """Wait for the end of the process, and check its files and processes."""
        self.wait(trainer)
        code = trainer.process.returncode
        trainer.check_gone()
        if code not in codes:
            raise FailureError(f"exit code {code}, not of {sorted(codes)}\n{trainer.said}")
        found = checkpoints.folders(self.path / "checkpoints")
        newest = -1
        if found:
            path, checkpoint = checkpoints.load_latest(self.path / "checkpoints")
            newest = int(path.name)
            passed_over = {each for each in found if int(each.name) > newest}
            if passed_over - self.damaged:  # the damaged stay until a trainer lives long enough to set them aside
                raise FailureError(f"{passed_over - self.damaged} is damaged, and nobody damaged it")
            iteration = checkpoint.state["runner"]["iteration"]
            # One that was interrupted before it removed what is newer than the checkpoint has saved and lost nothing.
            has_ended_by_itself = code == 0 or (code == 130 and self.written() != self.found)
            if has_ended_by_itself and iteration != self.last_iteration():
                raise FailureError(
                    f"exit code {code}, but saved at iteration {iteration} of {self.last_iteration()}\n{trainer.said}"
                )
        if newest < self.newest:
            raise FailureError(f"the newest checkpoint was {self.newest}, and is {newest}\n{trainer.said}")
        self.newest = newest
        return f"exit {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def finish(self) -> None:
        """Let it run to its end without faults, and check the result."""
        trainer = self.start()
        try:
            self.ended(trainer, {0})
        except BaseException:
            trainer.end()
            raise
        if not (self.path / "result.json").exists():
            raise FailureError("it ended without a result.json")
        metrics = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        iterations, steps = [line["iteration"] for line in metrics], metrics[-1]["env_steps"]
        if steps < self.limits.iterations * ROWS:
            raise FailureError(f"it ended after {steps} of {self.limits.iterations * ROWS} steps")
        if sorted(set(iterations)) != iterations:
            raise FailureError(f"the metrics are not in order: {iterations}")
        left = [str(path) for path in self.path.rglob(".*")]
        if left:
            raise FailureError(f"left in the run directory: {left}")


ALL_KINDS = {name: kind for group in KINDS.values() for name, kind in group.items()}


def train_command(kind: Kind, settings: str, limits: Limits, seed: int, path: Path) -> list[str]:
    """The command of a training."""
    flags = [*settings.split(), *limits.settings(seed), "--run-dir", str(path)]
    return [*kind.command, "train", "CartPole-v1", *flags]


def reference(folder: Path, kind: Kind, limits: Limits, seed: int) -> Path:
    """Run the same training without a fault, for comparison."""
    assert kind.reference is not None  # or nothing is compared
    path = folder / f"reference-{kind.reference.replace(' ', '_')}-{seed}"
    if not path.exists():
        command = [sys.executable, *train_command(kind, kind.reference, limits, seed, path)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return path


def trainings(folder: Path, arguments: argparse.Namespace, job: int, counts: Counts, stop: threading.Event) -> None:
    """Run one training after the other, until there were enough faults in all."""
    moments, number = random.Random(f"{arguments.seed}/{job}"), 0
    limits, names = Limits(arguments.iterations, arguments.hang_seconds), kinds_named(arguments.kinds)
    while counts.faults.total() < arguments.faults and not stop.is_set():
        # By turns: those that take longest would else be met least.
        name = names[(job + arguments.jobs * number) % len(names)]
        number += 1
        here = folder / f"{job}-{number}"
        here.mkdir()
        run = Run(here, moments, moments.randrange(3), name, limits, counts)
        try:
            for _ in range(moments.randint(1, arguments.most_in_a_row)):
                fault, ending = run.hit()
                if fault != "none":
                    run.survived(fault, ending)
                if ending == "exit 0" or stop.is_set():
                    break
            run.finish()
            if arguments.exact and not run.has_lost_bits:
                with counts.lock:  # one at a time makes a reference
                    undisturbed = reference(folder, run.kind, limits, run.seed)
                found, expected = (hybridppo.load(path).parameters.values for path in (run.path, undisturbed))
                if not torch.equal(found, expected):
                    raise FailureError(f"the parameters are not those of {undisturbed}, which had no fault")
                with counts.lock:
                    counts.identical += 1
        except BaseException as error:
            stop.set()
            error.add_note(f"{name}, kept in {here}") if hasattr(error, "add_note") else None
            raise
        with counts.lock:
            counts.runs += 1
        shutil.rmtree(here)


def kinds_named(names: Sequence[str]) -> list[str]:
    """The kinds of these groups, and kinds that are named themselves."""
    found = [kind for name in names for kind in KINDS.get(name, [name])]
    if unknown := set(found) - ALL_KINDS.keys():
        raise SystemExit(f"unknown kinds {sorted(unknown)}: there are {', '.join([*KINDS, *ALL_KINDS])}")
    return found


def runs_in(name: str) -> list[Any]:
    """The results that were saved before."""
    path = machine.RESULTS / f"{name}.json"
    found: list[Any] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    return found


def main() -> int:
    """Cause faults until there were enough, or one was not survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of which faults, and when")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to train; a temporary folder otherwise")
    parser.add_argument(
        "--kinds", nargs="+", default=["placements"], metavar="KIND",
        help=f"groups ({', '.join(KINDS)}) or kinds ({', '.join(ALL_KINDS)}); default %(default)s",
    )  # fmt: skip
    parser.add_argument("--iterations", type=int, default=300, help="of a training (default %(default)s)")
    parser.add_argument(
        "--hang-seconds", type=float, default=30.0, help="without progress, which are a hang (default %(default)s)"
    )
    parser.add_argument("--most-in-a-row", type=int, default=8, help="faults of a training (default %(default)s)")
    parser.add_argument("--save", metavar="NAME", help="add what was found to benchmarks/results/NAME.json")
    parser.add_argument("--exact", action=argparse.BooleanOptionalAction, default=True, help="compare parameters too")
    arguments = parser.parse_args()
    kinds_named(arguments.kinds)
    folder = Path(tempfile.mkdtemp(prefix="hybridppo-chaos-", dir=arguments.folder))
    counts, stop, start = Counts(), threading.Event(), time.monotonic()
    failure: BaseException | None = None
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [pool.submit(trainings, folder, arguments, job, counts, stop) for job in range(arguments.jobs)]
        try:
            for job in as_completed(jobs):
                job.result()
        except (Exception, KeyboardInterrupt) as error:
            stop.set()
            failure = error
    summary: dict[str, Any] = {
        "faults_survived": counts.faults.total(),
        "by_fault": dict(counts.faults.most_common()),
        "by_kind": dict(counts.by_kind.most_common()),
        "endings": dict(counts.endings.most_common()),
        "trainings_ended": counts.runs,
        "of_them_bit_identical": counts.identical,
        "failures": int(isinstance(failure, Exception)),
        "seconds": round(time.monotonic() - start),
    }
    print(as_json(summary).rstrip())
    if arguments.save:
        command = {name: value for name, value in vars(arguments).items() if name not in ("folder", "save")}
        runs = [*runs_in(arguments.save), {"arguments": command, **summary, "faults": counts.log}]
        machine.save(arguments.save, {"runs": runs})
    if isinstance(failure, Exception):
        notes = "\n".join(getattr(failure, "__notes__", []))
        print(f"FAILED: {type(failure).__name__}: {failure}\n{notes}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
