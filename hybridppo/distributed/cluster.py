"""A Ray cluster: a running one, or one that is started on this machine for a training."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hybridppo.errors import ConfigurationError, DistributedError, pip_install, shown
from hybridppo.system.signals import handlers_kept

logger = logging.getLogger(__name__)

SECONDS_TO_CONNECT = 10.0
"""Seconds that a cluster may take to answer."""
MOST_BYTES = 2**30
"""The largest object store of a cluster that is started here; further objects are written to disk."""
_OF_RAY = (signal.SIGINT, signal.SIGTERM)
"""The signals whose handlers Ray replaces."""


class Cluster:
    """A connection to Ray, until it is closed.

    Args:
        policy: the way to distribute that needs it, for messages.
        address: address of a running cluster, `auto` or HOST:PORT; `local` starts one on this machine. None for the
            cluster that this process has joined, or the one in the variable RAY_ADDRESS, or else `local`.
        num_cpus: the number of CPUs that a cluster started here reports.

    Raises:
        ConfigurationError: if Ray is not installed, or this process has joined another cluster.
        DistributedError: if no cluster answers at the address, or none can be started here.
    """

    def __init__(self, policy: str, address: str | None, num_cpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                f"distributed={policy} needs Ray, which cannot be imported ({error}): {pip_install('ray')}"
            ) from error
        self._ray = ray
        self._is_own = not ray.is_initialized()
        self._put_back: Any = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self.is_started_here = False
        """Whether it was started for this training."""
        if not self._is_own:
            _require_joined(ray.get_runtime_context().gcs_address, address)
            self._put_back = _taken_from_ray()
            return
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.is_started_here = address == "local"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports unless the user wants them
        options: dict[str, Any] = {"logging_level": logging.ERROR, "address": address}
        if self.is_started_here:
            # By default it is 15, and other programs leave the workers almost no time of a core.
            os.environ.setdefault("RAY_worker_niceness", "0")
            options |= {"include_dashboard": False, "num_cpus": num_cpus, "object_store_memory": MOST_BYTES}
        try:
            _require_somebody_at(address)
            with handlers_kept(_OF_RAY), _on_the_loopback(ray) if self.is_started_here else contextlib.nullcontext():
                ray.init(**options)
                if self.is_started_here and sys.platform == "linux":
                    self._watcher = _watched()
        except Exception as error:  # plain ones too: "The current node timed out during startup"
            where = "could not be started on this machine" if self.is_started_here else f"does not answer at {address}"
            raise DistributedError(
                f"Ray {where} ({_with_causes(error)}). A cluster is started by ray start --head, and joined by other "
                "machines with ray start --address HOST:PORT, all with the same versions of Python and Ray, with "
                "RAY_AUTH_MODE=token in the environment, and with the token of the first machine: see "
                "docs/clusters.md"
            ) from error
        if not self.is_started_here and os.environ.get("RAY_AUTH_MODE", "disabled") == "disabled":
            logger.warning(
                "the Ray cluster at %s asks for no token: whoever reaches it on the network may run commands as you. "
                "Set RAY_AUTH_MODE=token on all machines, see docs/clusters.md", address,
            )  # fmt: skip

    def close(self) -> None:
        """Disconnect, and end the cluster if it was started here."""
        if self._is_own:
            with handlers_kept(_OF_RAY):
                self._ray.shutdown()
            if self._watcher is not None:
                self._watcher.communicate()
                self._watcher = None
        elif self._put_back is not None:
            signal.signal(signal.SIGTERM, self._put_back)
            self._put_back = None


def _taken_from_ray() -> Any:
    """Remove Ray's handler of SIGTERM during a training, because it would end the process at once.

    Returns:
        Ray's handler; None if there is another handler or none.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_rays = str(getattr(handler, "__module__", "")).partition(".")[0] == "ray"
    if not is_rays or threading.current_thread() is not threading.main_thread():
        return None
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return handler


def _watched() -> "subprocess.Popen[bytes]":
    """A process that ends Ray if this process is killed. It ends when its standard input closes."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watcher.py")), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.read(1)
    return process


@contextlib.contextmanager
def _on_the_loopback(ray: Any) -> Iterator[None]:
    """A context in which Ray, if it starts, listens on the loopback only, as it does by default on Windows and macOS.

    On Linux, Ray would listen on every interface. It has no argument for this: it replaces the loopback's address.
    """
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
    if not ip_address(address := ray.util.get_node_ip_address()).is_loopback:
        logger.warning(
            "Ray %s listens at %s, which other machines may reach, instead of the loopback: use a private "
            "network, or another version of Ray", ray.__version__, address,
        )  # fmt: skip


def _with_causes(error: BaseException | None) -> str:
    """An error with its causes; of a traceback in its text, only the last line."""
    found, cause = list[str](), error
    while cause is not None:
        text = str(cause).strip()
        in_text = "Traceback" in text
        found.append(text.splitlines()[-1] if in_text else f"{type(cause).__name__}: {text}")
        cause = None if in_text else cause.__cause__ or cause.__context__
    return "; because of ".join(found)


def _require_joined(joined: str, address: str | None) -> None:
    """Refuse an address if this process has joined another cluster."""
    if address not in (None, "auto") and _resolved(str(address)) != _resolved(joined):
        raise ConfigurationError(
            f"this process has joined the Ray cluster at {joined} by ray.init, and address is {shown(address)}: leave "
            "address out to use that cluster, or call ray.shutdown() first"
        )


def _resolved(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):  # an unknown name is compared as text
        host = socket.gethostbyname(host)
    return host, port


def _require_somebody_at(address: str) -> None:
    """Raise an OSError if no process listens there. Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()
