"""The processes of `Workers`, and the messages to and from them.

A worker that dies, or makes no step for too long, is reported as a `WorkerLostError` where its answer is waited for.
The caller decides what to do.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any, cast

from hybridppo.errors import EnvError
from hybridppo.runners.workers.interpreter import command_of
from hybridppo.runners.workers.process import KEY_VARIABLE, signals_blocked
from hybridppo.runners.workers.transport import SECONDS_TO_START, WorkerLostError
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


class WorkerPool:
    """Processes by number, each with some of the environments.

    Args:
        envs: the environments of each worker.
        setup: pickled, sent to all workers (`process.serve`).
        rows_of: the number of rows that a worker has filled, which shows that it does not hang.
        timeout: seconds without a step after which a worker counts as hung.
        module: the module that a process runs.
        role: the name of a worker in messages.
    """

    def __init__(
        self,
        envs: Sequence[slice],
        setup: bytes,
        rows_of: Callable[[int], int],
        timeout: float,
        *,
        module: str = "hybridppo.runners.workers.process",
        role: str = "worker",
    ) -> None:
        self._envs, self._setup, self._rows_of, self._timeout = envs, setup, rows_of, timeout
        self._module, self._role = module, role
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._starting: dict[int, _Starting] = {}
        self._rows_at: dict[int, tuple[int, float]] = {}
        """For each worker that owes an answer: its number of rows, and when that last changed."""

    @property
    def workers(self) -> list[int]:
        """The numbers of the started workers."""
        return list(self._processes)

    def start(self, worker: int, env_seed: int) -> None:
        """Start a worker's process, which loads its modules meanwhile. See `wait_until_ready`."""
        self._rows_at.pop(worker, None)
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

    def _connect(self, worker: int, starting: _Starting) -> None:
        """Wait for a worker to connect, and send its setup. It answers when its environments are made."""
        process, timeout = self._processes[worker], self._seconds_to_start
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
                raise WorkerLostError(f"{self.name(worker)} has died{self._how_it_ended(worker)}") from error

    def _tell(self, worker: int, listener: Listener, env_seed: int) -> None:
        connection = self._connections[worker] = listener.accept()
        connection.send({"worker": worker, "envs": self._envs[worker], "seed": env_seed})
        connection.send_bytes(self._setup)

    @property
    def _seconds_to_start(self) -> float:
        return max(self._timeout, SECONDS_TO_START)

    def send(self, worker: int, message: tuple[str, Any]) -> None:
        """Send a message.

        Raises:
            WorkerLostError: if it has died.
            EnvError: if it has died of an error, which it had sent before.
        """
        connection = self._connections[worker]
        try:
            connection.send(message)
        except OSError as error:
            with contextlib.suppress(EOFError, OSError):
                while connection.poll() and not isinstance(self._receive(worker), WorkerLostError):
                    pass
            raise WorkerLostError(f"{self.name(worker)} has died{self._how_it_ended(worker)}") from error

    def answers(
        self, workers: Sequence[int], *, at_start: bool = False, patience: float | None = None
    ) -> "Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]":
        """Each worker's next answer, as they come; or how it was lost, if it died or makes no more steps.

        Args:
            workers: those that owe an answer.
            at_start: whether they are being started.
            patience: seconds to wait for the first answer, and then only for those that are there; None to wait for
                all.
        """
        timeout = self._seconds_to_start if at_start else self._timeout
        waiting = {self._connections[worker]: worker for worker in workers}
        alive = self._rows_at
        for worker in workers:
            alive.setdefault(worker, (-1, time.monotonic()))
        longest = min(1.0, timeout / 4)
        while waiting:
            for connection in wait(list(waiting), longest if patience is None else min(longest, patience)):
                worker = waiting.pop(cast("Connection[Any, Any]", connection))
                alive.pop(worker, None)
                yield worker, self._receive(worker)
            now = time.monotonic()
            for connection, worker in list(waiting.items()):
                if at_start:
                    give_up_if_stopped(self.name(worker))
                rows, (rows_before, since) = self._rows_of(worker), alive[worker]
                if rows != rows_before:
                    alive[worker] = rows, now
                elif now - since > timeout:
                    del waiting[connection], alive[worker]
                    self._processes[worker].kill()
                    yield (
                        worker,
                        WorkerLostError(
                            f"{self.name(worker)} has made no step for {timeout:g} s, after {rows} of its rollout: a "
                            "step or a reset hangs, or is slower than worker_timeout (--worker-timeout) allows"
                        ),
                    )
            if patience is not None:
                return

    def _receive(self, worker: int) -> "tuple[Any, float] | WorkerLostError":
        try:
            kind, value, more = self._connections[worker].recv()
        except (EOFError, OSError):
            return WorkerLostError(f"{self.name(worker)} has died{self._how_it_ended(worker)}")
        if kind == "error":
            raise EnvError(f"{self.name(worker)} failed: {value}")
        return value, more

    def connect(self, workers: Sequence[int]) -> None:
        """Wait until started workers have loaded their modules, and send their setup.

        Raises:
            WorkerLostError: if one of them is lost meanwhile.
            Stopped: if a stop was requested before they have connected.
        """
        for worker in workers:
            if worker in self._starting:
                self._connect(worker, self._starting.pop(worker))

    def wait_until_ready(self, workers: Sequence[int]) -> None:
        """Wait until started workers have made their environments.

        Raises:
            WorkerLostError: if one of them is lost meanwhile.
            Stopped: if a stop was requested before they have connected.
        """
        self.connect(workers)
        for _, answer in self.answers(workers, at_start=True):
            if isinstance(answer, WorkerLostError):
                raise answer

    def end(self, worker: int) -> None:
        """End a lost worker; `start` then starts another in its place."""
        if worker in self._connections:
            self._connections[worker].close()
        self._processes[worker].kill()
        self._processes[worker].wait()

    def name(self, worker: int) -> str:
        """A worker, for messages."""
        envs = self._envs[worker]
        return f"{self._role} {worker} (environments {envs.start} to {envs.stop - 1})"

    def _how_it_ended(self, worker: int) -> str:
        try:
            code = self._processes[worker].wait(timeout=SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            return ""
        if code < 0:
            return f": killed by {signal.Signals(-code).name}"
        return f": exit code {code}"

    def close(self) -> None:
        """End all of them; a second call does nothing."""
        for worker, starting in self._starting.items():  # without waiting, because they have no work yet
            starting.listener.close()
            self._processes[worker].kill()
        self._starting = {}
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # it has died before
                connection.send(("close", None))
            connection.close()
        deadline = time.monotonic() + SECONDS_TO_CLOSE
        for process in self._processes.values():
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:  # within a long step
                process.kill()
                process.wait()
        self._connections, self._processes = {}, {}
        self._rows_of = lambda worker: 0  # the owner's function would keep its owner alive


def _address_without_a_file() -> str | None:
    """A name for a socket that is in no folder (on Linux), so that a killed trainer leaves no file."""
    return f"\0hybridppo-{os.getpid()}-{secrets.token_hex(8)}" if sys.platform == "linux" else None
