"""Reports the devices of this machine, and whether everything works on it, within two minutes.

    $ hybridppo doctor --json doctor.json
    $ hybridppo doctor --thorough       # every placement, precision and CUDA device, in some minutes

All checks share one process. Further tests of a GPU run in a checkout: `make gpu`.
"""

import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info

from hybridppo._version import __version__
from hybridppo.agents import PPOConfig
from hybridppo.auto.comparison import compare_placements
from hybridppo.environments.checking.check import check_env
from hybridppo.placements.mirrored import Mirrored
from hybridppo.run_directory.files import as_json, finite, making, replace_synced
from hybridppo.runs.loading import load
from hybridppo.system.devices import accelerator_of, described_cuda_devices, num_cuda_devices
from hybridppo.system.messages import shown_seconds
from hybridppo.system.threads import advice, cpu_cores, limit_threads
from hybridppo.tools.case import (
    PLACEMENTS,
    SMALL,
    Bench,
    Case,
    NotPossibleHere,
    Outcome,
    agrees,
    attempt,
    distance,
    near,
    require,
    values_of,
)

MOST_SECONDS = 110.0
"""Seconds after which no further check begins; the remaining checks are reported as left out."""
RECORDED = replace(SMALL, cuda_graphs=True)
UPDATES = 12
"""Updates of trainings whose bits are compared."""


@dataclass
class Diagnosis:
    """The machine, the outcomes of the checks, and the measurements."""

    machine: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Measurements: `blas` (kernels by library), `kernels_advice`, `environment`, and `placements` (a row for each)."""

    @property
    def is_well(self) -> bool:
        """Whether no check failed; a check that is not possible here has not failed."""
        return not any(outcome.status == "failed" for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as JSON."""
        checks, figures = [asdict(outcome) for outcome in self.outcomes], finite(self.figures)
        return {"machine": self.machine, "is_well": self.is_well, "checks": checks, "figures": figures}


def machine() -> dict[str, object]:
    """The versions, cores and CUDA devices of this machine."""
    return {
        "hybridppo": __version__,
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda or "none",
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count() or 1,
        "CUDA devices": described_cuda_devices(),
    }


def diagnose(
    env_id: str = "CartPole-v1",
    *,
    seconds: float = 2.0,
    most_seconds: float = MOST_SECONDS,
    thorough: bool = False,
    cases: Iterable[Case] | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Diagnosis:
    """Check the machine, and train briefly under each placement that it can run.

    Args:
        env_id: the environment whose speed is measured.
        seconds: seconds of training under each placement.
        most_seconds: seconds after which no further check begins.
        thorough: compare every placement, precision and CUDA device, without a time limit.
        cases: checks in place of those of this file.
        say: called with a line for each check.
    """
    diagnosis = Diagnosis(machine())
    device = "cuda" if num_cuda_devices() else "cpu"
    start = time.perf_counter()
    if cases is None:
        cases = checks(env_id, seconds, diagnosis.figures)
        if thorough:
            cases, most_seconds = [*cases, *thorough_checks()], math.inf
    for case in cases:
        if time.perf_counter() - start > most_seconds:
            outcome = Outcome(case.name, case.what, "not possible here", f"left out: {most_seconds:.0f} s are over")
        else:
            with tempfile.TemporaryDirectory(prefix="hybridppo-doctor-") as folder:
                outcome = attempt(case, Bench(device, Path(folder)))
        diagnosis.outcomes.append(outcome)
        say(f"{outcome.status}: {outcome.name} ({outcome.seconds:.1f} s): {outcome.detail}")
    return diagnosis


def write(diagnosis: Diagnosis, path: Path) -> None:
    """Write a diagnosis as JSON, to attach to a bug report."""
    with making(path):
        replace_synced(path, as_json(diagnosis.to_json()).encode())


def checks(env_id: str, seconds: float, figures: dict[str, Any]) -> list[Case]:
    """All checks, in their order; they write measurements into `figures`."""
    return [
        Case("devices", "torch sees the devices that there are, and they multiply as the CPU does", _devices),
        Case("threads", "numeric libraries keep to the number of threads they are told", lambda _: _threads(figures)),
        Case("page-locked copies", "what a GPU is given without waiting arrives whole", _page_locked_copies),
        Case(
            "graphs", "recorded optimizer steps give what others give", partial(agrees, name="single", config=RECORDED)
        ),
        Case("bf16", "the learner's device multiplies bfloat16, and nearly as float32", _bf16),
        Case(
            "environment", "the environment works, and how fast it steps", lambda _: _environment_speed(env_id, figures)
        ),
        *_same_results(),
        Case("same result: overlap", "two trainings that overlap end at the same bits", _overlap),
        Case("same result: workers", "worker processes step environments as this process does", _workers),
        Case("files", "a run directory is written, and its agent read back", _files),
        Case(
            "speed of placements",
            "a few seconds of training under each",
            lambda _: _placement_speeds(env_id, seconds, figures),
        ),
    ]


def _same_results() -> Iterator[Case]:
    """Checks of the placements without lag, on the CPU and on a GPU."""
    what = "a training ends where the plain one on the CPU does"
    for name in ("migrate", "hybrid"):
        yield Case(f"same result: {name} on the CPU", what, partial(_agrees_here, name=name))
    for name in ("single", "migrate", "hybrid"):
        yield Case(f"same result: {name}", what, partial(_agrees_on_a_gpu, name=name))


def _agrees_here(bench: Bench, name: str) -> str:
    return agrees(replace(bench, device_name="cpu"), name, updates=UPDATES)


def _agrees_on_a_gpu(bench: Bench, name: str, config: PPOConfig = SMALL, device: str = "cuda") -> str:
    bench.needs_gpu(name)
    if device == "cuda:1" and num_cuda_devices() < 2:
        raise NotPossibleHere("this machine has one CUDA device")
    return agrees(replace(bench, device_name=device), name, config)


def thorough_checks() -> Iterator[Case]:
    """Checks of every placement with eager and recorded steps, in every precision, and on a second device."""
    forms = {"eager": replace(SMALL, fast_updates=False), "recorded": RECORDED}
    for form, config in forms.items():
        for name in PLACEMENTS:
            for device in ("cuda", "cuda:1"):
                case = partial(_agrees_on_a_gpu, name=name, config=config, device=device)
                yield Case(f"same result: {name}, {form}, {device}", "as on the CPU", case)
        for precision in ("tf32", "bf16"):
            wide = replace(config, precision=precision, hidden_sizes=(256, 256))
            case = partial(_agrees_on_a_gpu, name="hybrid", config=wide)
            yield Case(f"same result: hybrid, {form}, {precision}", "near the CPU's float32", case)


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
    np.ones((2, 2)) @ np.ones((2, 2))  # loads libraries that are loaded at their first use
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
    return near(distance(second[0].agent, first[0].agent, bench.begun(SMALL)))


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
