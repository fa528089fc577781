"""Ray: one that is there already, or one of this machine for as long as a training takes."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybridppo.errors import ConfigurationError, DistributionError

SECONDS_TO_CONNECT = 10.0
"""How long a cluster may take to answer."""
MOST_BYTES = 2**30
"""What a store of objects that is started here may hold; what does not fit goes to the disk."""


class Cluster:
    """Ray, joined when made, and let go of when closed.

    Args:
        policy: that asks for it, for messages.
        address: of a cluster that is there already, `auto` or HOST:PORT; None starts one on this machine, unless this
            process has joined one by itself.
        num_cpus: that a cluster started here is to say it has.

    Raises:
        ConfigurationError: where Ray is not installed.
        DistributionError: where no cluster answers at the address, or none can be started here.
    """

    def __init__(self, policy: str, address: str | None, num_cpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                f"distribution {policy} needs Ray, which cannot be imported ({error}): pip install 'hybridppo[ray]'"
            ) from error
        self._ray = ray
        self._is_own = not ray.is_initialized()
        self._put_back: Any = None
        self._watcher: subprocess.Popen[bytes] | None = None
        if not self._is_own:
            self._put_back = _taken_from_ray()
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody unless it is asked for
        options: dict[str, Any] = {"logging_level": logging.ERROR}
        if address is None:
            size = {"num_cpus": num_cpus, "object_store_memory": MOST_BYTES}
            options |= {"address": "local", "include_dashboard": False, **size}
        else:
            options["address"] = address
        try:
            _require_somebody_at(address)
            with _handlers_kept():
                ray.init(**options)
                if address is None and sys.platform == "linux":
                    self._watcher = _watched()
        except Exception as error:  # plain ones too: "The current node timed out during startup"
            where = "could not be started on this machine" if address is None else f"does not answer at {address}"
            raise DistributionError(
                f"Ray {where} ({type(error).__name__}: {error}). A cluster is started by ray start --head, and joined "
                "by other machines with ray start --address HOST:PORT, all with the same versions of Python and Ray"
            ) from error

    def close(self) -> None:
        """Leave it, and end it if it was started here."""
        if self._is_own:
            with _handlers_kept():
                self._ray.shutdown()
            if self._watcher is not None:
                self._watcher.communicate()
                self._watcher = None
        elif self._put_back is not None:
            signal.signal(signal.SIGTERM, self._put_back)
            self._put_back = None


def _taken_from_ray() -> Any:
    """Ray's handler of SIGTERM, which leaves the process, taken away for as long as a training saves and ends by it.

    None where there is none, or somebody else's.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_rays = str(getattr(handler, "__module__", "")).partition(".")[0] == "ray"
    if not is_rays or threading.current_thread() is not threading.main_thread():
        return None
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return handler


def _watched() -> "subprocess.Popen[bytes]":
    """What ends Ray where this process is killed; it ends when its standard input does."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watcher.py")), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.read(1)
    return process


def _require_somebody_at(address: str | None) -> None:
    """Raise an OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Within it, Ray may set handlers of signals, as it does; what a signal does is not its to decide."""
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # not set by Python, and so not to be set by it
                signal.signal(number, handler)
