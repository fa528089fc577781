"""Fixtures and settings of every test.

Only functions import torch here: the process that distributes tests to others does without.
"""

import gc
import logging
import os
import re
import shutil
import signal
from pathlib import Path

import cloudpickle
import pytest
from processes import CAN_FORK, WarmSubprocess, WarmTrainers, share_warm_processes

# The tests send both. A shell that runs them in the background ignores the first, nohup the second.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What is compiled for tests is kept beside pytest's own files: a minute the first time, seconds from then on.
os.environ["HYBRIDPPO_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "compiled")


# By default it is 15, and Ray's workers would wait for all other tests.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray writes it

# Until all is collected: half a million objects are made, which stay.
gc.disable()

# What a training writes is synced, which takes most of the time of a small one: but not in memory.
IN_MEMORY = Path("/dev/shm")
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 2**30:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(IN_MEMORY)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The process that distributes tests to others starts the warm processes for all of them."""
    if session.config.getoption("dist", "no") != "no" and not hasattr(session.config, "workerinput"):
        share_warm_processes()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Use more processes than cores (`-n auto`): tests wait a third of their time for others, the extras half of it."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + min((cores + 1) // 2 if "not extras" in config.option.markexpr else cores, 4)


EXTRAS = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.extras\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of the extras without them, as what they import takes seconds."""
    if collection_path.suffix != ".py" or "not extras" not in config.option.markexpr:
        return None
    return EXTRAS.search(collection_path.read_text(encoding="utf-8")) is not None or None


def pytest_collection_finish() -> None:
    """From now on, collect garbage only among what tests make, and not among what was imported."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000)  # by Python's own, collecting takes an eighth of a short training
    # pytest puts its handlers on each logger that does not propagate, several times for a test; torch has fifty.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(autouse=True)
def warm_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers, learners and runs are copies of a warm process, except in tests that look at how they start."""
    from hybridppo.distributed import learners
    from hybridppo.runners import processes

    if CAN_FORK and request.node.get_closest_marker("cold_workers") is None:
        monkeypatch.setattr(processes, "subprocess", WarmSubprocess)
        if request.node.get_closest_marker("torch_in_workers") is not None:
            monkeypatch.setattr(WarmSubprocess, "kind", "--serve-workers-with-torch")
        monkeypatch.setattr(learners, "subprocess", WarmTrainers)


@pytest.fixture(autouse=True)
def no_commit_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not ask git, which takes longer than all else that a short run writes; `test_origin.py` does."""
    monkeypatch.setattr("hybridppo.settings.COMMIT", ("no-git",))


@pytest.fixture(scope="session")
def second_device() -> str:
    """The name of a device other than the CPU, see second_device.py."""
    from second_device import register

    return register()


def _needs_second_device(item: pytest.Item) -> bool:
    return "second_device" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch
    from second_device import announce

    from hybridppo.system.threads import libraries

    # Small networks on a shared machine: more threads only get in each other's way. NumPy's spin while they wait.
    torch.set_num_threads(1)
    libraries().limit(limits=1, user_api="blas")
    # To compare two tensors, torch would import its distributed tensors and sympy, which takes each process a second.
    torch.testing._comparison._HAS_DTENSOR = False  # type: ignore[attr-defined]
    # A device that torch has been told of stays, and memory can be locked for no other then: who needs it goes last.
    items.sort(key=_needs_second_device)
    if items and _needs_second_device(items[-1]):
        announce()
    # What worker processes get of a test goes to them as it is: they would else load the test's file, and with it torch
    # and pytest, which takes each of them many times longer than all that it has to do.
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
