"""Reports what is installed on this machine, whether it works, and which placement is the fastest.

    $ hybridppo doctor --json doctor.json

Further tests of a GPU run in a checkout: `make gpu`.
"""

import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info
from torch import Tensor

from hybridppo._version import __version__
from hybridppo.agents import PPOConfig
from hybridppo.errors import shown
from hybridppo.loading import load
from hybridppo.placements.placement import Migrating, Mirrored, Placement, SingleDevice
from hybridppo.run_directory.files import as_json, making, replace_synced
from hybridppo.system.devices import described_cuda_devices, num_cuda_devices
from hybridppo.system.messages import shown_seconds
from hybridppo.system.threads import cpu_cores, libraries, limit_threads
from hybridppo.tools.check import check_env
from hybridppo.tools.compare import compare_placements
from hybridppo.training import train

EXTRAS = ("matplotlib", "optuna", "onnx", "onnxruntime", "numba", "ray", "pettingzoo", "imageio-ffmpeg", "tensorboard")
"""Packages of extras that tools and samplers use."""
BLAS_KEYS = ("internal_api", "version", "architecture", "num_threads", "filepath")
SMALL = PPOConfig(num_envs=4, num_steps=32, num_epochs=2, num_minibatches=2, hidden_sizes=(32, 32), learning_rate=1e-3)
"""The small training of the checks, which look for agreement: rounding errors grow."""
TOLERANCE = 5e-4
"""The largest distance between the parameters and those of a training on the CPU, as a share of their norm: about a
two-hundredth of the way that these trainings move them."""


@dataclass(frozen=True)
class Check:
    """What was checked, and what was found."""

    name: str
    passed: bool
    detail: str
    seconds: float


@dataclass
class Diagnosis:
    """The machine, and the outcomes of the checks."""

    machine: dict[str, Any]
    checks: list[Check] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)

    def write(self, path: Path) -> None:
        """Write it as JSON, to attach to a bug report."""
        with making(path):
            replace_synced(path, as_json({**asdict(self), "is_well": self.is_well}).encode())


def machine() -> dict[str, object]:
    """The versions, cores and CUDA devices of this machine."""
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    return {
        "hybridppo": __version__,
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda or "none",
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count() or 1,
        "CUDA devices": described_cuda_devices(),
        "BLAS": [{key: library.get(key) for key in BLAS_KEYS} for library in threadpool_info()],
        "packages": {name: installed.get(name, "not installed") for name in EXTRAS},
    }


def diagnose(
    env_id: str = "CartPole-v1", *, seconds: float = 2.0, say: Callable[[str], object] = lambda line: None
) -> Diagnosis:
    """Check the machine, and train briefly under each placement that it can run.

    Args:
        env_id: the environment whose speed is measured.
        seconds: seconds of training under each placement.
        say: called with a line for the installed packages, and one for each check.
    """
    diagnosis = Diagnosis(machine())
    packages = [f"{name} {version}" for name, version in diagnosis.machine["packages"].items()]
    say(f"not checked: {', '.join(packages)}")
    for name, check in checks(env_id, seconds).items():
        start, passed = time.perf_counter(), True
        try:
            detail = check()
        except Exception as error:  # any error is a finding
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = shown(str(error), 600).strip("'\"")
            detail, passed = f"{type(error).__name__}: {said} ({Path(place.filename).name}:{place.lineno})", False
        found = Check(name, passed, detail, time.perf_counter() - start)
        diagnosis.checks.append(found)
        say(f"{'passed' if passed else 'failed'}: {name} ({found.seconds:.1f} s): {detail}")
    return diagnosis


def checks(env_id: str, seconds: float) -> dict[str, Callable[[], str]]:
    """All checks by name, in their order; they return the finding."""
    placements: dict[str, Placement] = {
        "migrate on the CPU": Migrating("cpu", "cpu", force_copy=True),
        "hybrid on the CPU": Mirrored("cpu", "cpu", verify=True, force_copy=True),
    }
    for device in (f"cuda:{index}" for index in range(num_cuda_devices())):
        placements[device] = SingleDevice(device)
        placements[f"migrate on {device}"] = Migrating("cpu", device)
        placements[f"hybrid on {device}"] = Mirrored("cpu", device, verify=True)
    return {
        "devices": _devices,
        "threads": _threads,
        "environment": partial(_environment, env_id),
        **{f"same result: {name}": partial(_agrees, placement) for name, placement in placements.items()},
        "same result: workers": partial(_agrees, SingleDevice("cpu"), num_workers=2),
        "files": _files,
        "speed of placements": partial(_placement_speeds, env_id, seconds),
    }


def require(holds: bool, what: str) -> None:
    """Raise an `AssertionError` unless this holds."""
    if not holds:
        raise AssertionError(what)


def _devices() -> str:
    cores = f"{cpu_cores()} cores"
    found = described_cuda_devices()
    if not found:
        is_of_cpu = torch.version.cuda is None and torch.version.hip is None
        remedy = "install a build with it (https://pytorch.org/get-started)"
        what = f"nvidia-smi is installed, and torch {torch.__version__} is built without CUDA: {remedy}"
        require(not (is_of_cpu and shutil.which("nvidia-smi")), what)
        built = f"is built for CUDA {torch.version.cuda} and sees no device" if torch.version.cuda else "has no CUDA"
        return f"{cores}; no GPU (torch {torch.__version__} {built})"
    left, right = torch.rand(64, 64), torch.rand(64, 64)
    for index in range(len(found)):
        there = (left.to(f"cuda:{index}") @ right.to(f"cuda:{index}")).cpu()
        difference = float((there - left @ right).abs().max())
        require(difference < 1e-3, f"a product of cuda:{index} is {difference:g} from the CPU's")
    names = ", ".join(f"{device['name']} ({device['bytes'] / 2**30:.0f} GiB)" for device in found)
    return f"{cores}; {names}"


def _threads() -> str:
    np.ones((2, 2)) @ np.ones((2, 2))  # loads libraries that are loaded at their first use
    libraries.cache_clear()  # more may have been loaded since they were looked for
    with limit_threads(1):
        require(torch.get_num_threads() == 1, f"torch was set to 1 thread and has {torch.get_num_threads()}")
        blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
        for library in blas:
            said = f"{library['internal_api']} was set to 1 thread and has {library['num_threads']}"
            require(library["num_threads"] == 1, said)
    kernels = [f"{b['internal_api']} {b['version'] or ''} {b.get('architecture') or ''}".strip() for b in blas]
    return f"torch has {torch.get_num_threads()}; {', '.join(kernels)}"


def _environment(env_id: str) -> str:
    report = check_env(env_id)
    require(report.is_usable, "; ".join(map(str, report.findings)))
    rate = 1.0 / report.seconds_per_step
    return f"{env_id}: {rate:,.0f} steps/s of one environment, {shown_seconds(report.seconds_per_reset)} a reset"


def _trained(placement: Placement, **options: Any) -> tuple[Tensor, Any]:
    """The parameters after a short training, on the CPU and in one order, and the result."""
    arguments: dict[str, Any] = {"vectorization": "sync", "num_workers": 0, "seed": 0, "progress": False, **options}
    result = train("CartPole-v1", placement=placement, config=SMALL, total_steps=4 * SMALL.batch_size, **arguments)
    agent: Any = result.agent
    networks = (agent.actor, agent.critic)
    return torch.cat([each.detach().cpu().flatten() for network in networks for each in network.parameters()]), result


def _agrees(placement: Placement, **options: Any) -> str:
    """Train under the placement and on the CPU; where both learn on the CPU, they must end at the same bits."""
    found, _ = _trained(placement, **options)
    expected, _ = _trained(SingleDevice("cpu"))
    if placement.learning_device.type == "cpu":
        require(torch.equal(found, expected), "the parameters differ from those of a training on the CPU")
        return "bit-for-bit as on the CPU"
    distance = float((found - expected).norm() / expected.norm())
    require(distance <= TOLERANCE, f"the parameters are {distance:.2g} from the CPU's (allowed: {TOLERANCE})")
    return f"{distance:.2g} from the CPU (allowed: {TOLERANCE})"


def _files() -> str:
    with tempfile.TemporaryDirectory(prefix="hybridppo-doctor-") as folder:
        _, result = _trained(SingleDevice("cpu"), run_dir=Path(folder) / "run")
        require(result.saved, "the checkpoint is not on the disk")
        kept = load(Path(folder) / "run").actor.state_dict()
        for name, value in result.agent.actor.state_dict().items():
            require(torch.equal(kept[name], value), "the agent that was read back is another")
    return f"a run was written in {tempfile.gettempdir()}, and its agent read back"


def _placement_speeds(env_id: str, seconds: float) -> str:
    found = compare_placements(env_id, PPOConfig(), seconds=seconds, num_workers=0, progress=False)
    require(not found["left_out"], "; ".join(found["left_out"]))
    speeds = [f"{row['label']} {row['steps_per_second']:,.0f} steps/s" for row in found["rows"]]
    return f"fastest: {found['chosen']}; {', '.join(speeds)}"
