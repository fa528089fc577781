"""The machine and the versions behind a measurement, and where its results are kept.

    python benchmarks/machine.py

prints them. Every result file holds the same under `machine`.
"""

import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"


@functools.cache
def describe() -> dict[str, Any]:
    """What a reader needs to judge the figures; what cannot be found out is None."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch_threads_by_default": torch.get_num_threads(),
        "blas_kernels": _blas_kernels(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gymnasium": importlib.metadata.version("gymnasium") if importlib.util.find_spec("gymnasium") else None,
        "numpy": np.__version__,
    }


def environment(**variables: str) -> dict[str, str]:
    """Environment variables of a measured process: one thread, and the kernels that each library picks for this CPU."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    return {**inherited, **one_thread, **variables}


def save(name: str, payload: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write `<name>.json` into the folder: the date, the machine, and the payload.

    Raises:
        TypeError: if `runs` is no list, such as a dict, of which only the keys would be written.
    """
    from hybridppo.run_directory.files import as_json

    runs = payload.get("runs", [])
    if not isinstance(runs, list):
        raise TypeError(f"runs must be a list, got a {type(runs).__name__}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {"date": time.strftime("%Y-%m-%d"), "machine": describe(), **payload}
    # Runs are of one line each: a curve has a thousand numbers.
    marks = [f"run {number}" for number in range(len(runs))]
    text = as_json(content | {"runs": marks} if runs else content)
    for mark, run in zip(marks, runs, strict=True):
        text = text.replace(f'"{mark}"', as_json(run, indent=None).rstrip(), 1)
    path.write_text(text, encoding="utf-8")
    return path


def report(name: str, payload: dict[str, Any], table: str = "", folder: Path = RESULTS, *, keeps: bool = True) -> None:
    """Print a table, and save the figures behind it as `save` does."""
    if table:
        print(f"{table}\n")
    if keeps:
        print(f"Raw figures: {save(name, payload, folder)}", flush=True)


def in_one_line(machine: dict[str, Any]) -> str:
    """A description by `describe`, as a line of text."""
    memory = "" if machine["memory_gib"] is None else f", {machine['memory_gib']:.0f} GiB"
    device = machine["cuda_device"] or "no CUDA device"
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "gymnasium", "numpy"))
    return f"{machine['cpu']}, {machine['cores']} cores{memory}, {device}; {versions}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _blas_kernels() -> str:
    """The kernels of NumPy's BLAS in processes that have `environment`."""
    code = "import numpy, threadpoolctl; print(*(i.get('architecture') for i in threadpoolctl.threadpool_info()))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _memory_gib() -> float | None:
    try:
        import psutil
    except ModuleNotFoundError:
        return None
    return round(psutil.virtual_memory().total / 2**30, 1)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe(), indent=1) + "\n")
