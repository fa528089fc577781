"""How busy a machine is while something runs: its cores, and its first CUDA device.

with Watch() as watch:
    ...
watch.found()
"""

import importlib.util
import math
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable

Figures = dict[str, float | None]
SMI = ("nvidia-smi", "--id=0", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")


class Watch:
    """Looks every `period` seconds, in a thread.

    It sees all processes. The cores need psutil, the device NVML's bindings (`nvidia-ml-py`) or nvidia-smi: what cannot
    be seen is None.
    """

    def __init__(self, period: float = 0.2) -> None:
        self._period = period
        self._looks: list[tuple[float, float | None, float | None, float | None]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        see_cores, see_gpu = _cores(), _gpu()
        while True:
            self._looks.append((time.perf_counter(), see_cores(), *see_gpu()))
            if self._ended.wait(self._period):
                self._looks.append((time.perf_counter(), see_cores(), *see_gpu()))
                return

    def found(self, since: float = 0.0, until: float = math.inf) -> Figures:
        """The mean number of busy cores, the mean percent of the device's time, and most of its memory in MiB.

        Only what is seen between these times of `time.perf_counter` counts.
        """
        looks = [look for look in self._looks if since <= look[0] <= until] or self._looks[-1:]
        (first, busy_before, _, _), (last, busy, _, _) = looks[0], looks[-1]
        percents = [percent for _, _, percent, _ in looks if percent is not None]
        memory = [used for *_, used in looks if used is not None]
        return {
            "cores_busy": (busy - busy_before) / (last - first)
            if busy is not None and busy_before is not None and last > first
            else None,
            "gpu_percent": statistics.mean(percents) if percents else None,
            "gpu_mib": max(memory, default=None),
        }


def _cores() -> Callable[[], float | None]:
    """Returns the seconds that all cores together have worked since the machine started."""
    if importlib.util.find_spec("psutil") is None:
        return lambda: None
    import psutil

    def seconds() -> float:
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))

    return seconds


def _gpu() -> Callable[[], tuple[float | None, float | None]]:
    """Returns the percent and the MiB of the first device that are used now."""
    if importlib.util.find_spec("pynvml") is not None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:  # no driver
            return lambda: (None, None)
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return lambda: (
            float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu),
            pynvml.nvmlDeviceGetMemoryInfo(device).used / 2**20,
        )
    if shutil.which(SMI[0]) is None:
        return lambda: (None, None)

    def by_command() -> tuple[float, float]:
        percent, memory = subprocess.run(SMI, check=True, capture_output=True, text=True).stdout.split(",")
        return float(percent), float(memory)

    return by_command
