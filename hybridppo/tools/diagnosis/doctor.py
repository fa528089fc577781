"""What this machine has, and whether everything works on it, within two minutes.

    $ hybridppo doctor --json doctor.json

Every check is a case as the acceptance has them (`hybridppo/acceptance/`), but these are few, quick, and more about the
machine than about the library. They share one process: `--thorough` gives each a process of its own.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info

from hybridppo.agents import PPOConfig
from hybridppo.auto.comparison import compare_placements
from hybridppo.environments.checking.check import check_env
from hybridppo.errors import DeviceError
from hybridppo.placements.base import Placement
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.single_device import SingleDevice
from hybridppo.run_directory.files import replace_synced
from hybridppo.run_directory.lines import as_json, finite
from hybridppo.runs.loading import load
from hybridppo.system.accelerator import accelerator_of, described_cuda_devices, num_cuda_devices
from hybridppo.system.blas import advice
from hybridppo.system.figures import shown_seconds
from hybridppo.system.threads import cpu_cores, limit_threads
from hybridppo.tools.diagnosis.acceptance.case import (
    SMALL,
    TOLERANCES,
    Bench,
    Case,
    NotPossibleHere,
    Outcome,
    attempt,
    distance,
    require,
    values_of,
)
from hybridppo.tools.diagnosis.acceptance.running import machine

MOST_SECONDS = 110.0
"""Checks that have not begun by then are left out, which is said."""
UPDATES = 12
"""Of the trainings that are compared to the last bit."""


@dataclass
class Diagnosis:
    """What was found."""

    machine: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """What was measured: `blas`, kernels by library, and `kernels_advice` on them; `environment`; `placements`, a row
    for each."""

    @property
    def is_well(self) -> bool:
        """Whether nothing failed; what is not possible here is no failure."""
        return not any(outcome.status == "failed" for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        outcomes = [outcome.to_json() for outcome in self.outcomes]
        figures: dict[str, Any] = finite(self.figures)
        return {"machine": self.machine, "is_well": self.is_well, "checks": outcomes, "figures": figures}


def diagnose(
    env_id: str = "CartPole-v1",
    *,
    seconds: float = 2.0,
    most_seconds: float = MOST_SECONDS,
    cases: Iterable[Case] | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Diagnosis:
    """Look at the machine, and train a little under each placement that it has.

    Args:
        env_id: the environment whose speed is measured, and that is trained in for it.
        seconds: how long to train under each placement.
        most_seconds: after which no further check is begun.
        cases: others than those of this file.
        say: told a line a check.
    """
    diagnosis = Diagnosis(machine())
    device = "cuda" if num_cuda_devices() else "cpu"
    start = time.perf_counter()
    for case in checks(env_id, seconds, diagnosis.figures) if cases is None else cases:
        if time.perf_counter() - start > most_seconds:
            outcome = Outcome(case.name, case.what, "not possible here", f"left out: {most_seconds:.0f} s are over")
        else:
            with tempfile.TemporaryDirectory(prefix="hybridppo-doctor-") as folder:
                outcome = attempt(case, Bench(device, Path(folder)))
        diagnosis.outcomes.append(outcome)
        say(f"{outcome.status}: {outcome.name} ({outcome.seconds:.1f} s): {outcome.detail}")
    return diagnosis


def write(diagnosis: Diagnosis, path: Path) -> None:
    """A diagnosis as a file of JSON, to attach to a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_synced(path, as_json(diagnosis.to_json()).encode())


def checks(env_id: str, seconds: float, figures: dict[str, Any]) -> list[Case]:
    """All of them, in the order in which they are made; what they measure goes into `figures`."""

    def speed(bench: Bench) -> str:
        return _environment_speed(env_id, figures)

    def placements(bench: Bench) -> str:
        return _placement_speeds(env_id, seconds, figures)

    return [
        Case("devices", "torch sees the devices that there are, and they multiply as the CPU does", _devices),
        Case("threads", "numeric libraries keep to the number of threads they are told", lambda _: _threads(figures)),
        Case("page-locked copies", "what a GPU is given without waiting arrives whole", _page_locked_copies),
        Case("graphs", "recorded optimizer steps give what others give", _graphs),
        Case("bf16", "the learner's device multiplies bfloat16, and nearly as float32", _bf16),
        Case("environment", "the environment works, and how fast it steps", speed),
        *(
            Case(f"same result: {name}", "a training ends where the plain one on the CPU does", _agreement(make))
            for name, make in _compared().items()
        ),
        Case("same result: overlap", "two trainings that overlap end at the same bits", _overlap),
        Case("same result: workers", "worker processes step environments as this process does", _workers),
        Case("files", "a run directory is written, and its agent read back", _files),
        Case("speed of placements", "a few seconds of training under each", placements),
    ]


def _devices(bench: Bench) -> str:
    cores = f"{cpu_cores()} cores"
    found = described_cuda_devices()
    if not found:
        if torch.version.cuda is None and torch.version.hip is None and shutil.which("nvidia-smi"):
            raise RuntimeError(
                f"nvidia-smi is installed, and torch {torch.__version__} is built without CUDA: install a build with "
                "it (https://pytorch.org/get-started)"
            )
        built = f"is built for CUDA {torch.version.cuda} and sees no device" if torch.version.cuda else "has no CUDA"
        return f"{cores}; no GPU (torch {torch.__version__} {built})"
    left, right = torch.rand(64, 64), torch.rand(64, 64)
    for index in range(len(found)):
        there = (left.to(f"cuda:{index}") @ right.to(f"cuda:{index}")).cpu()
        difference = float((there - left @ right).abs().max())
        require(difference < 1e-3, f"a product of cuda:{index} is {difference:g} from the CPU's")
    names = ", ".join(f"{device['name']} ({device['bytes'] / 2**30:.0f} GiB)" for device in found)
    return f"{cores}; {names}"


def _threads(figures: dict[str, Any]) -> str:
    np.ones((2, 2)) @ np.ones((2, 2))  # loads what is loaded when first used
    figures["threads"] = {"torch": torch.get_num_threads(), "cores": cpu_cores()}
    figures["blas"] = [
        {key: library.get(key) for key in ("internal_api", "version", "architecture", "num_threads", "filepath")}
        for library in threadpool_info()
    ]
    with limit_threads(1):
        limited = [library for library in threadpool_info() if library["user_api"] == "blas"]
        require(torch.get_num_threads() == 1, f"torch was told 1 thread and has {torch.get_num_threads()}")
        for library in limited:
            said = f"{library['internal_api']} was told 1 thread and has {library['num_threads']}"
            require(library["num_threads"] == 1, said)
    kernels = [f"{b['internal_api']} {b['version'] or ''} {b['architecture'] or ''}".strip() for b in figures["blas"]]
    found = ", ".join(kernels) or "no library is known to threadpoolctl"
    figures["kernels_advice"] = advice()
    return "; ".join(filter(None, (f"torch has {figures['threads']['torch']}", found, figures["kernels_advice"])))


def _page_locked_copies(bench: Bench) -> str:
    bench.needs_gpu("page-locked memory")
    accelerator = accelerator_of(bench.device)
    numbers = torch.arange(1_000_000, dtype=torch.float32)
    there = accelerator.page_locked(numbers).to(bench.device, non_blocking=True)
    back = accelerator.page_locked(torch.zeros_like(numbers))
    back.copy_(there, non_blocking=True)
    accelerator.wait()
    require(torch.equal(back, numbers), "numbers that were copied to the device and back are others")
    return "4 MB there and back"


def _graphs(bench: Bench) -> str:
    bench.needs_gpu("recording a graph")
    recorded = replace(SMALL, cuda_graphs=True)
    expected = bench.train("cpu", SMALL)[0].agent
    found = bench.train(SingleDevice("cuda"), recorded)[0].agent
    return _near(distance(found, expected, bench.begun(SMALL)), "fp32")


def _bf16(bench: Bench) -> str:
    bench.needs_precision("bf16")
    left, right = torch.rand(256, 256, device=bench.device), torch.rand(256, 256, device=bench.device)
    exact, rounded = left @ right, (left.bfloat16() @ right.bfloat16()).float()
    difference = float((exact - rounded).norm() / exact.norm())
    require(difference < 0.01, f"a product in bfloat16 is {difference:.1%} from float32's")
    return f"{bench.device}: {difference:.2%} from float32"


def _environment_speed(env_id: str, figures: dict[str, Any]) -> str:
    report = check_env(env_id)
    rate = 1.0 / report.seconds_per_step if report.steps else float("nan")
    figures["environment"] = {
        "env_id": env_id,
        "steps_per_second": rate,
        "seconds_per_reset": report.seconds_per_reset,
        "findings": [str(finding) for finding in report.findings],
    }
    require(report.is_usable, "; ".join(figures["environment"]["findings"]))
    return f"{env_id}: {rate:,.0f} steps/s of one environment, {shown_seconds(report.seconds_per_reset)} a reset"


def _compared() -> dict[str, Callable[[], Placement]]:
    """The placements without lag, by name: copies between equals on a CPU, and all that a GPU has."""
    here: dict[str, Callable[[], Placement]] = {
        "migrate on the CPU": lambda: Migrating("cpu", "cpu", force_copy=True),
        "hybrid on the CPU": lambda: Mirrored("cpu", "cpu", force_copy=True),
    }
    there: dict[str, Callable[[], Placement]] = {
        "cuda": lambda: SingleDevice("cuda"),
        "migrate": lambda: Migrating("cpu", "cuda"),
        "hybrid": lambda: Mirrored("cpu", "cuda"),
    }
    return here | there


def _agreement(make: Callable[[], Placement]) -> Callable[[Bench], str]:
    def run(bench: Bench) -> str:
        try:
            placement = make()
        except DeviceError as error:
            if num_cuda_devices():
                raise
            raise NotPossibleHere(str(error)) from None
        is_here = placement.learning_device.type == placement.sampling_device.type == "cpu"
        updates = UPDATES if is_here else 4  # rounding grows with them
        expected = bench.train("cpu", updates=updates)[0].agent
        found = bench.train(placement, updates=updates)[0].agent
        if not is_here:
            return _near(distance(found, expected, bench.begun(SMALL)), "fp32")
        require(torch.equal(values_of(found), values_of(expected)), "the parameters differ")
        return f"the same bits after {updates} updates"

    return run


def _near(found: float, precision: str) -> str:
    tolerance = TOLERANCES[precision]
    said = f"{found:.2g} of the way apart (at most {tolerance:g})"
    require(found <= tolerance, said)
    return said


def _overlap(bench: Bench) -> str:
    learning = "cuda" if bench.is_gpu else "cpu"
    first, second = (
        bench.train(Mirrored("cpu", learning, max_lag=1), updates=UPDATES, num_workers=None) for _ in range(2)
    )
    lags = {metrics["policy_lag"] for metrics in first[1]}
    require(max(lags) == 1, f"updates were {sorted(lags)} behind, and must be 1 at most, and 1 in the end")
    if not bench.is_gpu:
        same = torch.equal(values_of(first[0].agent), values_of(second[0].agent))
        require(same, "two trainings of one seed differ")
        return f"the same bits after {UPDATES} updates, one behind"
    return _near(distance(second[0].agent, first[0].agent, bench.begun(SMALL)), "fp32")


def _workers(bench: Bench) -> str:
    here = bench.train("cpu", updates=UPDATES)[0].agent
    there = bench.train("cpu", updates=UPDATES, num_workers=2)[0].agent
    require(torch.equal(values_of(here), values_of(there)), "the parameters differ")
    return f"two processes, the same bits after {UPDATES} updates"


def _files(bench: Bench) -> str:
    run_dir = bench.folder / "run"
    result, _ = bench.train("cpu", run_dir=run_dir)
    require(result.saved, "the checkpoint is not on the disk")
    require(torch.equal(values_of(load(run_dir)), values_of(result.agent)), "the agent that was read back is another")
    return f"in {tempfile.gettempdir()}"


def _placement_speeds(env_id: str, seconds: float, figures: dict[str, Any]) -> str:
    found = compare_placements(env_id, PPOConfig(), seconds=seconds, num_workers=0, progress=False)
    figures["placements"] = rows = found["candidates"]
    require(not found["left_out"], "; ".join(found["left_out"]))
    return ", ".join(f"{row['label']} {row['steps_per_second']:,.0f} steps/s" for row in rows)
