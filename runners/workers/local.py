"""Workers in processes of this machine: starts and ends them, and carries messages to and from them."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from hybridppo.environments.pickling import IN_THIS_PROCESS, pack
from hybridppo.errors import EnvError
from hybridppo.rollouts.buffer import Layout
from hybridppo.runners.workers.interpreter import command_of, wait_for_ends
from hybridppo.runners.workers.pool import Pool
from hybridppo.runners.workers.process import KEY_VARIABLE, signals_blocked
from hybridppo.runners.workers.shared_arrays import SharedArrays
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.system.interruption import give_up_if_stopped

SECONDS_TO_CLOSE = 5.0
"""Seconds for workers to end by themselves before they are killed."""


@dataclass(frozen=True)
class _Starting:
    """A worker that has not connected yet."""

    listener: Listener
    address: str
    env_seed: int
    since: float
    """The time of its start."""


class LocalProcesses(Pool):
    """Workers in processes of this machine, which share arrays with this one.

    Args:
        module: the module that a process runs.
        role: the name of a worker in messages.
        shares: the environments of each worker.
        setup: sent to all workers.
        timeout: seconds without an answer or a step after which a worker is lost.
        layout: the layout of the shared arrays; `stop` and the workers' `heartbeats` are added.
        restarts: whether another worker may be started in place of a lost one.
        otherwise: as for `pack`.
    """

    seconds_between_looks = 1.0
    asks_for_rows = False

    def __init__(
        self,
        module: str,
        role: str,
        shares: Sequence[slice],
        setup: dict[str, Any],
        timeout: float,
        *,
        layout: Layout | None = None,
        restarts: bool,
        otherwise: str = IN_THIS_PROCESS,
    ) -> None:
        super().__init__(role, shares, timeout)
        self._module, self._restarts = module, restarts
        self._setup = pack(setup, otherwise)  # it names the source or the options if they cannot be pickled
        self._layout = {**(layout or {}), "stop": ((1,), "uint8"), "heartbeats": ((len(shares), 1), "int64")}
        self.arrays = SharedArrays(self._layout)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._starting: dict[int, _Starting] = {}

    @property
    def workers(self) -> list[int]:  # noqa: D102 - as in the base
        return list(self._processes)

    def start(self, worker: int, env_seed: int) -> None:
        """Start a worker's process, which loads its modules meanwhile. See `connect`."""
        key = secrets.token_bytes(32)
        # One thread each, because the processes are the parallelism.
        environment = {
            **os.environ,
            KEY_VARIABLE: key.hex(),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        address = _address_without_a_file()
        listener = Listener(address, authkey=key)
        address = address or str(listener.address)
        command = command_of(self._module, address.replace("\0", "@"))
        try:
            with signals_blocked():
                self._processes[worker] = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        except BaseException:
            listener.close()
            raise
        self._starting[worker] = _Starting(listener, address, env_seed, time.monotonic())

    def connect(self, worker: int, timeout: float) -> None:
        """Wait for a started worker to connect, and send its setup."""
        if worker not in self._starting:
            return
        process, starting = self._processes[worker], self._starting.pop(worker)
        with starting.listener as listener, ThreadPoolExecutor(1) as thread:
            told = thread.submit(self._tell, worker, listener, starting.env_seed)
            try:
                while not told.done():
                    if process.poll() is not None and not futures.wait([told], timeout=0.1).done:
                        raise WorkerLostError(f"{self.name(worker)} ended at its start{self._how_it_ended(worker)}")
                    if time.monotonic() - starting.since > timeout:
                        raise WorkerLostError(
                            f"{self.name(worker)} has not connected within {timeout:g} s of its start: Python hangs "
                            "while it starts, or is slower than worker_timeout (--worker-timeout) allows"
                        )
                    give_up_if_stopped(self.name(worker))
                    futures.wait([told], timeout=0.1)
            except BaseException:  # the thread must end first
                process.kill()
                with contextlib.suppress(OSError):
                    Client(starting.address).close()  # in place of the worker, which may never connect
                raise
            try:
                told.result()
            except (EOFError, OSError, AuthenticationError) as error:
                raise self._died(worker) from error

    def _tell(self, worker: int, listener: Listener, env_seed: int) -> None:
        connection = self._connections[worker] = listener.accept()
        shared = self._layout, self.arrays.path
        connection.send({"worker": worker, "envs": self._shares[worker], "seed": env_seed, "shared": shared})
        connection.send_bytes(self._setup)

    def all_ready(self) -> None:
        """Remove the name of the shared arrays, unless another worker may have to map them."""
        if not self._restarts:
            self.arrays.unlink()

    def ask(self, worker: int, kind: str, value: Any) -> None:  # noqa: D102 - as in the base
        connection = self._connections[worker]
        try:
            connection.send((kind, value))
        except OSError as error:
            with contextlib.suppress(EOFError, OSError, WorkerLostError):
                while connection.poll():
                    self.receive(worker)
            raise self._died(worker) from error

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:
        """As in the base, but it never waits for several answers."""
        by_connection: dict[Any, int] = {self._connections[worker]: worker for worker in workers}
        return [by_connection[connection] for connection in wait(list(by_connection), seconds)]

    def receive(self, worker: int) -> tuple[Any, float]:  # noqa: D102 - as in the base
        try:
            kind, value, seconds = self._connections[worker].recv()
        except (EOFError, OSError) as error:
            raise self._died(worker) from error
        if kind == "error":
            raise EnvError(f"{self.name(worker)} failed: {value}")
        return value, seconds

    def rows(self, worker: int) -> int:  # noqa: D102 - as in the base
        return int(self.arrays["heartbeats"][worker, 0])

    def silence(self, worker: int, rows: int, timeout: float) -> str:  # noqa: D102 - as in the base
        return (
            f"has made no step for {timeout:g} s, after {rows} of its rollout: a step or a reset hangs, or is slower "
            "than worker_timeout (--worker-timeout) allows"
        )

    def _died(self, worker: int) -> WorkerLostError:
        return WorkerLostError(f"{self.name(worker)} has died{self._how_it_ended(worker)}")

    def _how_it_ended(self, worker: int) -> str:
        try:
            code = self._processes[worker].wait(timeout=SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            return ""
        if code < 0:
            return f": killed by {signal.Signals(-code).name}"
        return f": exit code {code}"

    def kill(self, worker: int) -> None:  # noqa: D102 - as in the base
        if worker in self._connections:
            self._connections[worker].close()
        self._processes[worker].kill()
        self._processes[worker].wait()

    def close(self) -> None:
        """End all of them, and free the shared arrays; a second call does nothing."""
        for worker, starting in self._starting.items():  # without waiting, because they have no work yet
            starting.listener.close()
            self._processes[worker].kill()
        self._starting = {}
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # it has died before
                connection.send(("close", None))
            connection.close()
        wait_for_ends(self._processes.values(), SECONDS_TO_CLOSE)  # a step may take longer
        self._connections, self._processes = {}, {}
        self.arrays.close()


def _address_without_a_file() -> str | None:
    """A name for a socket that is in no folder (on Linux), so that a killed trainer leaves no file."""
    return f"\0hybridppo-{os.getpid()}-{secrets.token_hex(8)}" if sys.platform == "linux" else None
