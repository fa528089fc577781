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
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hybridppo.errors import ConfigurationError, DistributionError, pip_install, shown

logger = logging.getLogger(__name__)

SECONDS_TO_CONNECT = 10.0
"""How long a cluster may take to answer."""
MOST_BYTES = 2**30
"""What a store of objects that is started here may hold; what does not fit goes to the disk."""


class Cluster:
    """Ray, joined when made, and let go of when closed.

    Args:
        policy: that asks for it, for messages.
        address: of a cluster that is there already, `auto` or HOST:PORT; `local` starts one on this machine. None is
            the cluster that this process has joined by itself, or the one that the variable RAY_ADDRESS names, or else
            `local`.
        num_cpus: that a cluster started here is to say it has.

    Raises:
        ConfigurationError: if Ray is not installed, or this process has joined another cluster by itself.
        DistributionError: if no cluster answers at the address, or none can be started here.
    """

    def __init__(self, policy: str, address: str | None, num_cpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                f"distribution {policy} needs Ray, which cannot be imported ({error}): {pip_install('ray')}"
            ) from error
        self._ray = ray
        self._is_own = not ray.is_initialized()
        self._put_back: Any = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self.is_started_here = False
        """Whether it was started for this training, on this machine."""
        if not self._is_own:
            _require_joined(ray.get_runtime_context().gcs_address, address)
            self._put_back = _taken_from_ray()
            return
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.is_started_here = address == "local"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no statistics are sent unless asked for
        options: dict[str, Any] = {"logging_level": logging.ERROR, "address": address}
        if self.is_started_here:
            options |= {"include_dashboard": False, "num_cpus": num_cpus, "object_store_memory": MOST_BYTES}
        try:
            _require_somebody_at(address)
            with _handlers_kept(), _on_the_loopback(ray) if self.is_started_here else contextlib.nullcontext():
                ray.init(**options)
                if self.is_started_here and sys.platform == "linux":
                    self._watcher = _watched()
        except Exception as error:  # plain ones too: "The current node timed out during startup"
            where = "could not be started on this machine" if self.is_started_here else f"does not answer at {address}"
            raise DistributionError(
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

    None if there is none, or somebody else's.
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


@contextlib.contextmanager
def _on_the_loopback(ray: Any) -> Iterator[None]:
    """Within it, Ray that is started listens on the loopback alone, as it does by itself on Windows and macOS.

    On Linux it would listen on every interface, and has no argument for it: it takes the loopback's own address for a
    mistake, and replaces it.
    """
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
    if not ip_address(address := ray.util.get_node_ip_address()).is_loopback:
        logger.warning(
            "Ray %s listens at %s, which other machines may reach, and not on the loopback: use a network that is "
            "yours, or another version of Ray", ray.__version__, address,
        )  # fmt: skip


def _with_causes(error: BaseException | None) -> str:
    """An error, and what Ray says was the cause of it: of a traceback, its last line."""
    found, cause = list[str](), error
    while cause is not None:
        text = str(cause).strip()
        in_text = "Traceback" in text
        found.append(text.splitlines()[-1] if in_text else f"{type(cause).__name__}: {text}")
        cause = None if in_text else cause.__cause__ or cause.__context__
    return "; because of ".join(found)


def _require_joined(joined: str, address: str | None) -> None:
    """Refuse an address if this process has joined another cluster by itself."""
    if address not in (None, "auto") and _resolved(str(address)) != _resolved(joined):
        raise ConfigurationError(
            f"this process has joined the Ray cluster at {joined} by ray.init, and address is {shown(address)}: leave "
            "address out to use that cluster, or call ray.shutdown() first"
        )


def _resolved(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):  # a name that nobody knows is compared as it is
        host = socket.gethostbyname(host)
    return host, port


def _require_somebody_at(address: str) -> None:
    """Raise an OSError if nobody listens at the address: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Within it, Ray may set handlers of signals, as it does; what a signal does is not its to decide."""
    if threading.current_thread() is not threading.main_thread():  # only it can set a handler
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # not set by Python, and so not to be set by it
                signal.signal(number, handler)
