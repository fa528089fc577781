"""Run cases, each in a process of its own and several at once, and go on where an earlier run was broken off.

A GPU that was given a wrong address is of no more use to the process that gave it: so every case has its own, and one
that crashes or hangs takes no other with it.
"""

import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from hybridppo._version import __version__
from hybridppo.errors import ConfigurationError
from hybridppo.run_directory.lines import as_json
from hybridppo.system.accelerator import described_cuda_devices
from hybridppo.system.threads import cpu_cores
from hybridppo.tools.diagnosis.acceptance import report as reports
from hybridppo.tools.diagnosis.acceptance.case import Bench, Case, Outcome, attempt
from hybridppo.tools.diagnosis.acceptance.catalogue import catalogue
from hybridppo.tools.diagnosis.acceptance.report import Report

logger = logging.getLogger(__name__)

SECONDS_FOR_A_CASE = 600.0
MOST_AT_ONCE, CORES_FOR_A_CASE = 4, 4
"""Each case has a context on the GPU, some 500 MiB, and a worker process or two."""
MODULE = ("-m", "hybridppo.tools.diagnosis.acceptance")
"""What the process of a case runs."""

Attempt = Callable[[Case, str], Outcome]
"""Runs a case with a device of this name."""


@dataclass(frozen=True)
class Stage:
    """A command of a checkout: a test suite, a measurement."""

    name: str
    what: str
    command: Sequence[str]
    folder: Path
    seconds: float = 4 * 3600.0
    needs_gpu: bool = True


def machine() -> dict[str, object]:
    """What a report is about: results of another machine or version do not count for this one."""
    return {
        "hybridppo": __version__,
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda or "none",
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count() or 1,
        "CUDA devices": described_cuda_devices(),
    }


def cases_at_once() -> int:
    """As many as this machine has cores for."""
    return min(MOST_AT_ONCE, max(1, cpu_cores() // CORES_FOR_A_CASE))


def run(
    folder: Path,
    *,
    device: str = "cuda",
    only: str = "",
    jobs: int = 1,
    stages: Iterable[Stage] = (),
    cases: Iterable[Case] | None = None,
    attempting: Attempt | None = None,
    say: Callable[[str], object] = print,
) -> Report:
    """Try every case, then every stage; after each, the report in the folder is up to date.

    What an earlier run in this folder found on this machine stays, but for what failed: that is tried again.

    Args:
        folder: of the report, and of the stages' output.
        device: to learn on; the CPU may stand in for one.
        only: run those whose names contain this.
        jobs: cases at once, but for those that go by a stopwatch.
        stages: what a checkout adds.
        cases: others than the catalogue's.
        attempting: how a case is run; None for a process of its own.
        say: told a line a case.

    Raises:
        ConfigurationError: where the folder holds a report of another machine or version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = _begun(folder, device)
    done = {outcome["name"]: outcome for outcome in report["outcomes"] if outcome["status"] != "failed"}
    attempting = attempting if attempting is not None else in_a_process
    wanted, stages = list(catalogue().values() if cases is None else cases), list(stages)
    names = [*(case.name for case in wanted), *(stage.name for stage in stages)]
    order = {name: place for place, name in enumerate(names)}

    def note(outcome: Outcome) -> None:
        say(f"{outcome.status}: {outcome.name} ({outcome.seconds:.1f} s): {outcome.detail}")
        others = [other for other in report["outcomes"] if other["name"] != outcome.name]
        # In the order of the catalogue, in whatever order they end.
        outcomes = [*others, outcome.to_json()]
        report["outcomes"] = sorted(outcomes, key=lambda each: order.get(each["name"], -1))
        reports.write(folder, report)

    for outcome in _outcomes([c for c in wanted if only in c.name and c.name not in done], attempting, device, jobs):
        note(outcome)
    for stage in stages:
        if only in stage.name and stage.name not in done:
            note(run_stage(stage, folder))
    reports.write(folder, report)
    return report


def _outcomes(cases: Sequence[Case], attempting: Attempt, device: str, jobs: int) -> Iterator[Outcome]:
    """What becomes of each, as they end."""
    alone = [case for case in cases if case.alone or jobs == 1]
    if len(alone) < len(cases):
        with ThreadPoolExecutor(jobs) as threads:
            together = [threads.submit(attempting, case, device) for case in cases if not case.alone]
            try:
                for ended in as_completed(together):
                    yield ended.result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
    for case in alone:
        yield attempting(case, device)


def _begun(folder: Path, device: str) -> Report:
    here = json.loads(as_json({**machine(), "learning device": device}))
    earlier = reports.read(folder)
    if earlier is None:
        return {"machine": here, "outcomes": []}
    if earlier["machine"] != here:
        differences = [name for name, value in here.items() if earlier["machine"].get(name) != value]
        raise ConfigurationError(
            f"{folder} holds a report of another machine, version or device ({', '.join(differences)} differ): "
            "name another folder with --output"
        )
    return earlier


def in_this_process(case: Case, device: str) -> Outcome:
    """Without a process of its own, as cases themselves are run, and tests run them."""
    with tempfile.TemporaryDirectory(prefix="hybridppo-acceptance-") as folder:
        return attempt(case, Bench(device, Path(folder)))


def in_a_process(case: Case, device: str, seconds: float = SECONDS_FOR_A_CASE) -> Outcome:
    """In a process that can crash or hang alone."""
    start = time.perf_counter()

    def failed(why: str) -> Outcome:
        return Outcome(case.name, case.what, "failed", why, time.perf_counter() - start)

    with tempfile.TemporaryDirectory(prefix="hybridppo-acceptance-") as folder:
        answer = Path(folder) / "outcome.json"
        command = [sys.executable, *MODULE, "--case", case.name]
        command += ["--device", device, "--answer", str(answer)]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return failed(f"not over after {seconds:.0f} s")
        if answer.exists():
            return Outcome(**json.loads(answer.read_text()))
        said = (process.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return failed(f"its process ended with {process.returncode}: {said}")


def run_stage(stage: Stage, folder: Path) -> Outcome:
    """A command, its output in a file beside the report."""
    if stage.needs_gpu and not described_cuda_devices():
        return Outcome(stage.name, stage.what, "not possible here", f"torch {torch.__version__} sees no CUDA device")
    start = time.perf_counter()
    path = folder / f"{stage.name.replace('/', '-')}.log"
    with path.open("w") as output:
        try:
            process = subprocess.run(
                stage.command, cwd=stage.folder, stdout=output, stderr=output, timeout=stage.seconds, check=False
            )
            ended = f"ended with {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            ended = f"not over after {stage.seconds:.0f} s"
    seconds = time.perf_counter() - start
    if ended:
        return Outcome(stage.name, stage.what, "failed", f"{ended}: see {path.name}", seconds)
    lines = path.read_text().strip().splitlines() or [""]
    return Outcome(stage.name, stage.what, "passed", lines[-1], seconds)
