"""Ray for the tests: one small cluster on this machine, and a check for its remains."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

SMALL: dict[str, Any] = {
    "address": "local",  # whatever other tests have started
    "num_cpus": 6, "include_dashboard": False, "object_store_memory": 200 * 2**20, "logging_level": "ERROR",
    "log_to_driver": False,
}  # fmt: skip


def processes_of_ray(of: int | None = None) -> list[psutil.Process]:
    """Processes below another, by default below this one."""
    found = []
    for child in psutil.Process(of).children(recursive=True):
        try:
            if "ray" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def small_cluster() -> Iterator[Any]:
    """One that this process has joined by itself; what Ray would do at SIGTERM, which is put aside."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    ray.init(**SMALL)
    rays = signal.signal(signal.SIGTERM, before)
    try:
        yield rays
    finally:
        children = processes_of_ray()
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []
