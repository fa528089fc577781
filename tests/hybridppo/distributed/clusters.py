"""Ray for the tests: one small cluster on this machine, and a check for its remains."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partialmethod
from typing import Any

import psutil
import pytest

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
    from ray._private.parameter import RayParams

    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        # Two of Ray's processes have nothing to do here: they look for machines to add, and for lines to print.
        alone = {"no_monitor": True, "include_log_monitor": False}
        patch.setattr(RayParams, "__init__", partialmethod(RayParams.__init__, **alone))
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


_shared = ExitStack()
_handlers: list[Any] = []


def shared_cluster() -> Any:
    """The small cluster of all tests in this process, started for the first; what Ray would do at SIGTERM."""
    if not _handlers:
        _handlers.append(_shared.enter_context(small_cluster()))
    return _handlers[0]


def end_shared_cluster() -> None:
    """End it, if there is one, for a test that needs another."""
    _handlers.clear()
    _shared.close()
