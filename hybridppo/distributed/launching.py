"""Starts learners on this machine, or joins those of torchrun; and makes the store by which they connect."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from hybridppo.errors import DistributedError
from hybridppo.runners.processes import command_of, signals_blocked, wait_for_ends

T = TypeVar("T")

SECONDS_TO_CLOSE = 10.0
"""Seconds that learners may take to end before they are killed."""

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for the processes that it starts."""
HOST = "127.0.0.1"
"""The address for learners of one machine; no other machine reaches it."""
HAS_LIBUV = sys.platform != "win32"
"""Whether torch's builds have libuv, which TCPStore uses by default."""
SECONDS_BETWEEN_LOOKS = 0.2
"""Seconds between the returns to Python from a wait in native code, in which signals are handled."""
_trainings = itertools.count()


def is_joining() -> bool:
    """Whether torchrun has started this process."""
    return set(TORCHRUN) <= os.environ.keys()


class Launched:
    """Learners 1 to `size - 1`, each a process of `python -m hybridppo.learner_process`.

    Each reads its setup from its standard input, and ends when that input closes, also if this process is killed.

    Args:
        size: number of learners, including this process.
        port: port of the store on this machine.
        setup: the setup of all learners, pickled.
    """

    def __init__(self, size: int, port: int, setup: bytes) -> None:
        message = len(setup).to_bytes(8, "little") + setup
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for rank in range(1, size):
                command = command_of("hybridppo.learner_process", str(port), str(rank), str(size))
                with signals_blocked():
                    process = subprocess.Popen(command, stdin=subprocess.PIPE)
                self._processes[rank] = process
            for process in self._processes.values():
                # In a thread: a learner that does not read would block this process.
                threading.Thread(target=_tell, args=(process.stdin, message), daemon=True).start()
        except BaseException:
            self.close(0.0)
            raise

    def how_it_ended(self, rank: int) -> str | None:
        """How the process of a learner ended; "" if it runs, None if this process has not started it."""
        if rank not in self._processes:
            return None
        code = self._processes[rank].poll()
        if code is None:
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def close(self, seconds: float = SECONDS_TO_CLOSE) -> None:
        """Wait for all to end, and kill those that still run after this number of seconds."""
        wait_for_ends(self._processes.values(), seconds)
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()


def _tell(stdin: Any, message: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it has died or was closed: a wait for it will show it
        stdin.write(message)
        stdin.flush()


def store_of_this_machine() -> TCPStore:
    """A store that only processes of this machine reach. By default, TCPStore listens on every interface."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        port = bound.getsockname()[1]
        return TCPStore(
            HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=bound.detach(), use_libuv=HAS_LIBUV
        )


def join_store(port: int, seconds: float) -> TCPStore:
    """The store of another process of this machine."""
    return TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=seconds), use_libuv=HAS_LIBUV)


def in_background(
    call: Callable[[], T], seconds: float, meanwhile: Callable[[float], object] = lambda passed: None
) -> T:
    """The result of a call that waits in native code. It is made in a thread, so that this thread handles signals.

    Args:
        call: the call. Without a network it may wait for a quarter of an hour; it is then abandoned.
        seconds: the longest wait.
        meanwhile: called from time to time with the seconds that have passed; it may raise an error.

    Raises:
        RuntimeError: if the call takes longer. Errors of the call are raised, too.
    """
    found: Future[T] = Future()

    def make() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=make, name="hybridppo-waits", daemon=True).start()
    begun = time.monotonic()
    while not futures.wait([found], min(seconds, SECONDS_BETWEEN_LOOKS)).done:
        passed = time.monotonic() - begun
        meanwhile(passed)
        if passed > seconds:
            raise RuntimeError(f"no answer within {seconds:g} s")
    return found.result()


def master_of_torchrun() -> tuple[str, int]:
    """Host and port of torchrun's store."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def store_of_torchrun(rank: int, seconds: float) -> Any:
    """Torchrun's store, or one that the first learner makes."""
    host, port = master_of_torchrun()
    is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    options = {"is_master": is_master, "wait_for_workers": False, "multi_tenant": True, "use_libuv": HAS_LIBUV}
    try:
        store = in_background(partial(TCPStore, host, port, timeout=timedelta(seconds=seconds), **options), 2 * seconds)
    except RuntimeError as error:
        raise DistributedError(
            f"learner {rank} does not reach the first at {host}:{port} (MASTER_ADDR, MASTER_PORT): {error}"
        ) from error
    # The store may exist longer than a training, and with --max-restarts longer than its processes.
    return PrefixStore(f"hybridppo/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_trainings)}", store)


def address_towards(host: str, port: int) -> str:
    """The address of this machine on the network that leads to another machine."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # this sends nothing
        return str(probe.getsockname()[0])
