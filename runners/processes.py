"""Processes of this machine: starts and ends them, watches them, and carries messages to and from them."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import cloudpickle

from hybridppo import _version
from hybridppo.environments.pickling import IN_THIS_PROCESS, pack
from hybridppo.errors import EnvError
from hybridppo.rollouts.buffer import Layout
from hybridppo.runners.shared_memory import SharedArrays
from hybridppo.spaces.arrays import Array
from hybridppo.system.signals import give_up_if_stopped, requests_to_end

_PACKAGE_ROOT = str(Path(_version.__file__).resolve().parent.parent)

# The library may have been imported from a folder that is not in `sys.path` any more.
_BEGIN = (
    "import sys; sys.path[:] = {path}; sys.path.append({root}); import hybridppo, runpy; sys.path.pop(); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs a module like `python -m`, with this process's `sys.path` before the first import.

    `python -m` would first look into the working directory and `PYTHONPATH`, where a file may have the name of a module
    of the standard library.
    """
    path = [folder for folder in sys.path if isinstance(folder, str)]  # Python ignores anything else
    return [sys.executable, "-c", _BEGIN.format(path=ascii(path), root=ascii(_PACKAGE_ROOT)), module, *arguments]


def wait_for_ends(processes: Iterable["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Wait for all processes to end, and kill those that still run after this number of seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


KEY_VARIABLE = "HYBRIDPPO_WORKER_KEY"
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
"""The environment of processes with one thread each, because the processes are the parallelism."""

SECONDS_BETWEEN_LOOKS = 2.0


class Trainer(NamedTuple):
    """The setup that the trainer has sent, and the connection to it."""

    connection: "Connection[Any, Any]"
    setup: dict[str, Any]
    envs: slice
    """The environments of this worker."""
    seed: int
    """The seed of the first of them."""
    arrays: SharedArrays
    heartbeat: Array
    """`[1]`, the number of rows that are filled."""

    def answer(self, answer: Callable[[str, Any], tuple[Any, float]]) -> None:
        """Report that the worker is ready; answer each message with a result and its seconds, until the end."""
        self.connection.send(("ready", None, 0.0))
        while True:
            kind, value = self.connection.recv()
            if kind == "close":
                return
            self.connection.send(("done", *answer(kind, value)))


def main(serve: Callable[[Trainer], None]) -> None:
    """Connect, and serve until the connection ends."""
    leave_signals_to_the_trainer()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    address, key = sys.argv[1].replace("@", "\0"), bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    try:
        connection: Connection[Any, Any] = Client(address, authkey=key)
    except (EOFError, ConnectionError, FileNotFoundError):
        return  # the trainer went while this process began
    try:
        mine, setup = connection.recv(), cloudpickle.loads(connection.recv_bytes())
        arrays = SharedArrays(*mine["shared"])
        serve(Trainer(connection, setup, mine["envs"], mine["seed"], arrays, arrays["heartbeats"][mine["worker"]]))
    except (EOFError, ConnectionError):
        pass  # the trainer is gone
    except BaseException as error:
        with contextlib.suppress(ConnectionError):  # another worker has failed first, and the trainer is gone
            connection.send(("error", text_of_failure(error), None))
        raise SystemExit(1) from None


def text_of_failure(error: BaseException) -> str:
    """An error as its worker reports it: the library's own errors of environments need no traceback."""
    return str(error) if isinstance(error, EnvError) else f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def end_with_parent(parent: int) -> None:
    """Watch for the trainer's end, for a worker that hangs in a step and does not see its connection break.

    Native code that holds the interpreter's lock forever blocks this, too. If processes do not get another parent
    (Windows), the end is not noticed.
    """
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def leave_signals_to_the_trainer() -> None:
    """Ignore signals to the whole process group, such as Ctrl-C, which the trainer handles."""
    for number in _signals():
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _signals())  # signals that came meanwhile are ignored, too


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """A context in which signals to a started process wait until it is ready to ignore them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signals() -> list[signal.Signals]:
    return [signal.SIGINT, *requests_to_end()]


SECONDS_TO_START = 120.0
"""The least time limit for workers to start, load their modules, and make and reset their environments."""


class WorkerLostError(EnvError):
    """A worker has died or hangs; the message names it, and says how it ended."""


class Pool(ABC):
    """Workers by number, each with some of the environments.

    Each message is answered once, in order, and more may be sent before the answer.

    A worker is lost if its process ends, or if it has neither answered nor made a step for `timeout`. It is then
    reported as a `WorkerLostError` where its answer is waited for. The caller decides whether another replaces it.

    Args:
        role: the name of a worker in messages.
        shares: the environments of each worker.
        timeout: seconds without an answer or a step after which a worker is lost.
    """

    seconds_between_looks: ClassVar[float]
    """The longest wait for an answer before the pool checks whether workers are lost."""
    asks_for_rows: ClassVar[bool]
    """Whether workers are asked for their rows, from time to time, while their answers are waited for."""

    def __init__(self, role: str, shares: Sequence[slice], timeout: float) -> None:
        self._role, self._shares, self._timeout = role, shares, timeout
        self._progress: dict[int, tuple[int, float]] = {}
        """For each worker that owes an answer: its number of rows, and when that last changed."""
        self._listened = 0.0
        """The time of the last check for answers."""

    @property
    @abstractmethod
    def workers(self) -> list[int]:
        """The numbers of the started workers."""

    def name(self, worker: int) -> str:
        """A worker, for messages."""
        envs = self._shares[worker]
        return f"{self._role} {worker} (environments {envs.start} to {envs.stop - 1})"

    @abstractmethod
    def start(self, worker: int, env_seed: int) -> None:
        """Start a worker, whose first environment gets this seed. See `wait_until_ready`."""

    def connect(self, worker: int, timeout: float) -> None:  # noqa: B027 - nothing to do if messages wait for it
        """Wait until a started worker can receive messages; it may raise as `wait_until_ready` does."""

    def all_ready(self) -> None:  # noqa: B027 - optional
        """Called when workers have made their environments."""

    @abstractmethod
    def ask(self, worker: int, kind: str, value: Any) -> None:
        """Send a message.

        Raises:
            WorkerLostError: if the worker is known to be lost.
            EnvError: if it has died of an error, which it had sent before.
        """

    @abstractmethod
    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:
        """The workers that have answered, after at most so many seconds; `together` waits for all."""

    @abstractmethod
    def receive(self, worker: int) -> tuple[Any, float]:
        """The next answer of a worker that has answered, and its seconds.

        Raises:
            WorkerLostError: if the worker is lost.
            EnvError: if it failed.
        """

    @abstractmethod
    def rows(self, worker: int) -> int:
        """The last known number of rows that a worker has filled, which shows that it does not hang."""

    @abstractmethod
    def silence(self, worker: int, rows: int, timeout: float) -> str:
        """How a worker is lost that has made no step for too long, for messages."""

    @abstractmethod
    def kill(self, worker: int) -> None:
        """End a worker at once; a second call does nothing."""

    @abstractmethod
    def close(self) -> None:
        """Let all workers close their environments, and end them; a second call does nothing."""

    def start_all(self, env_seeds: Sequence[int]) -> None:
        """Start a worker for each seed, and wait until all are ready. If that fails, end all of them."""
        try:
            for worker, env_seed in enumerate(env_seeds):
                self.start(worker, env_seed)
            self.wait_until_ready(range(len(env_seeds)))
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self, workers: Collection[int]) -> None:
        """Wait until started workers have made their environments.

        Raises:
            WorkerLostError: if one of them is lost meanwhile.
            Stopped: if a stop was requested.
        """
        for worker in workers:
            self.connect(worker, self._patience(at_start=True))
        for _, answer in self.answers(workers, at_start=True):
            if isinstance(answer, WorkerLostError):
                raise answer
        self.all_ready()

    def answers(
        self, workers: Collection[int], *, patience: float | None = None, together: bool = False, at_start: bool = False
    ) -> "Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]":
        """Each worker's next answer and the seconds that it took, as they come; or how the worker was lost.

        Args:
            workers: the workers that owe an answer.
            patience: seconds to wait for the first answer; only answers that have come by then are returned. None to
                wait for all.
            together: whether all answers are needed at once, which takes fewer waits.
            at_start: whether the workers are making their environments.

        Raises:
            EnvError: if a worker failed.
        """
        progress, waiting = self._progress, list(workers)
        timeout = self._patience(at_start)
        seconds = min(self.seconds_between_looks, timeout / 4)
        if patience is not None:
            seconds = min(seconds, patience)
        for worker in waiting:
            progress.setdefault(worker, (-1, time.monotonic()))
        self._listen_again(self._listened)
        while waiting:
            for worker in self.wait(waiting, seconds, together):
                waiting.remove(worker)
                progress.pop(worker, None)
                self._listened = listened = time.monotonic()
                yield worker, self._received(worker)  # the caller may wait for another worker meanwhile
                self._listen_again(listened)
            now = time.monotonic()
            for worker in list(waiting):
                if at_start:
                    give_up_if_stopped(self.name(worker))
                rows, (rows_before, since) = self.rows(worker), progress[worker]
                if rows != rows_before:
                    progress[worker] = rows, now
                elif now - since > timeout and not self.wait([worker], 0.0, together=False):
                    waiting.remove(worker)
                    del progress[worker]
                    lost = WorkerLostError(f"{self.name(worker)} {self.silence(worker, rows, timeout)}")
                    self.end(worker)
                    yield worker, lost
            self._listened = time.monotonic()
            if patience is not None:
                return

    def _patience(self, at_start: bool) -> float:
        return max(self._timeout, SECONDS_TO_START if at_start else 0.0)

    def _listen_again(self, listened: float) -> None:
        """Do not count the time since `listened` as silence, if rows are known only from answers to questions."""
        if self.asks_for_rows:
            now = time.monotonic()
            for worker, (rows, since) in self._progress.items():
                self._progress[worker] = rows, min(now, since + now - listened)

    def _received(self, worker: int) -> "tuple[Any, float] | WorkerLostError":
        try:
            return self.receive(worker)
        except WorkerLostError as lost:
            return lost

    def end(self, worker: int) -> None:
        """End a lost worker, from which no answer is expected any more; `start` then starts another in its place."""
        self._progress.pop(worker, None)
        self.kill(worker)


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
        environment = {**os.environ, **ONE_THREAD, KEY_VARIABLE: key.hex()}
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
                while not futures.wait([told], timeout=0.1).done:
                    if process.poll() is not None and not futures.wait([told], timeout=0.1).done:
                        raise WorkerLostError(f"{self.name(worker)} ended at its start{self._how_it_ended(worker)}")
                    if time.monotonic() - starting.since > timeout:
                        raise WorkerLostError(
                            f"{self.name(worker)} has not connected within {timeout:g} s of its start: Python hangs "
                            "while it starts, or is slower than worker_timeout (--worker-timeout) allows"
                        )
                    give_up_if_stopped(self.name(worker))
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
