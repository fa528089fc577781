"""Processes of this machine: starts and ends them, watches them, and carries messages to and from them."""

import contextlib
import logging
import mmap
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, ClassVar

import cloudpickle
import numpy as np

from hybridppo import _version
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.environments.pickling import IN_THIS_PROCESS, pack
from hybridppo.errors import EnvError, HybridPPOError, shown_error
from hybridppo.rollouts.rollout import Layout, arrays_in, size_of
from hybridppo.spaces.arrays import Array
from hybridppo.system.seeds import seed_of
from hybridppo.system.signals import give_up_if_stopped, requests_to_end

logger = logging.getLogger(__name__)

_PACKAGE_ROOT = str(Path(_version.__file__).resolve().parent.parent)

# The library may have been imported from a folder that is not in `sys.path` any more.
_BEGIN = (
    "import sys; sys.path[:] = {path}; sys.path.append({root}); import hybridppo, importlib; sys.path.pop(); "
    "sys.exit(importlib.import_module(sys.argv.pop(1)).main())"
)


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that calls `main` of a module, with this process's `sys.path` before the first import.

    `python -m` would first look into the working directory and `PYTHONPATH`, where a file may have the name of a module
    of the standard library.
    """
    path = [folder for folder in sys.path if isinstance(folder, str)]  # Python ignores anything else
    return [sys.executable, "-c", _BEGIN.format(path=ascii(path), root=ascii(_PACKAGE_ROOT)), module, *arguments]


def started(module: str, **options: Any) -> "tuple[subprocess.Popen[bytes], Any]":
    """A process that calls `main` of a module, and the connection to it, which is its standard input.

    Args:
        module: the module.
        **options: as for `Popen`.
    """
    ours, theirs = Pipe()
    with theirs, os.fdopen(_descriptor_of(theirs), "r+b", 0) as stdin:
        return subprocess.Popen(command_of(module), stdin=stdin.fileno(), **options), ours


def connection_of_stdin() -> Any:
    """The connection to the process that has started this one by `started`; the standard input becomes empty."""
    connection = _connection_of(os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return connection


def _descriptor_of(connection: Any) -> int:
    """A new descriptor of a connection."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(reduction.duplicate(connection.fileno()), os.O_RDWR)
    return os.dup(connection.fileno())


def _connection_of(descriptor: int) -> Any:
    """The connection of a descriptor."""
    if sys.platform == "win32":
        import msvcrt
        from multiprocessing.connection import PipeConnection

        return PipeConnection(msvcrt.get_osfhandle(descriptor))
    return Connection(descriptor)


def wait_for_ends(processes: Iterable["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Wait for all processes to end, and kill those that still run after this number of seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
"""The environment of processes with one thread each, because the processes are the parallelism."""

SECONDS_BETWEEN_LOOKS = 0.5


class SharedArrays:
    """Named arrays in memory that processes share. It has no name in a folder: nothing remains of killed processes.

    Args:
        layout: shape and type of each array, by name.
        source: the connection to a process that sends its memory (`send`); None for new memory.
    """

    def __init__(self, layout: Layout, source: Any = None) -> None:
        size = size_of(layout)
        if sys.platform == "win32":
            self._tag = f"hybridppo-{secrets.token_hex(8)}" if source is None else source.recv()
            shared = mmap.mmap(-1, size, tagname=self._tag)
        else:
            self._file = _memory_file(size) if source is None else os.fdopen(reduction.recv_handle(source), "r+b")
            shared = mmap.mmap(self._file.fileno(), size)
        memory = np.frombuffer(shared, np.uint8)
        self.memory: Array | None = memory
        """The bytes of all arrays; None after `close`."""
        self._arrays = arrays_in(memory, layout)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def send(self, connection: Any) -> None:
        """Let another process map the memory."""
        if sys.platform == "win32":
            connection.send(self._tag)
        else:
            reduction.send_handle(connection, self._file.fileno(), None)

    def close(self) -> None:
        """Free the memory once no array refers to it."""
        self._arrays.clear()
        self.memory = None
        if sys.platform != "win32":
            self._file.close()


def _memory_file(size: int) -> IO[bytes]:
    """A file without a name, in memory if the system has such files."""
    has_memory = hasattr(os, "memfd_create")
    file: Any = os.fdopen(os.memfd_create("hybridppo"), "r+b") if has_memory else tempfile.TemporaryFile()  # noqa: SIM115
    file.truncate(size)
    return file


Answer = Callable[[str, Any], tuple[Any, float]]
"""Answers a message of a kind, and its value, with a result and its seconds."""
ASKS = "asks"
"""The kind of message by which a worker asks the trainer to act, before its answer."""


def answer_trainer(
    serving: Callable[[dict[str, Any], slice, int, SharedArrays, Array], AbstractContextManager[Answer]],
) -> None:
    """Answer the process that has started this one, until the connection, which is the standard input, ends.

    Args:
        serving: a context, entered with the setup that the trainer has sent; the environments of this worker; the seed
            of the first of them; the shared arrays; and `[1]`, the number of rows that are filled. It gives the
            function that answers. The setup also has `ask`, a function that asks the trainer to act for a group, whose
            second argument says whether the noise of exploration is new, and `wait`, which returns when it has acted
            for a group.
    """
    acted: set[int] = set()

    def ask(group: int, has_explored: bool) -> None:
        connection.send((ASKS, (group, has_explored), 0.0))

    def wait(group: int) -> None:
        while group not in acted:
            kind, another = connection.recv()
            if kind == "close":
                raise ConnectionError("the trainer has ended")
            acted.add(another)
        acted.remove(group)

    leave_signals_to_the_trainer()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = connection_of_stdin()
    try:
        connection.send(("started", None, 0.0))
        worker, envs, seed, layout = connection.recv()
        arrays = SharedArrays(layout, connection)
        setup = {**cloudpickle.loads(connection.recv_bytes()), "ask": ask, "wait": wait}
        with serving(setup, envs, seed, arrays, arrays["heartbeats"][worker]) as answer:
            connection.send(("ready", None, 0.0))
            while (message := connection.recv())[0] != "close":
                leave_signals_to_the_trainer()  # again: an environment may have set handlers
                connection.send(("done", *answer(*message)))
    except BaseException as error:  # an `EOFError` or `ConnectionError` may be the environment's own
        with contextlib.suppress(ConnectionError):  # the trainer is gone
            kind = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
            connection.send((kind, text_of_failure(error), None))
            raise SystemExit(1) from None


def text_of_failure(error: BaseException) -> str:
    """An error as another process reports it: the library's own need no traceback."""
    if isinstance(error, HybridPPOError):
        return str(error)
    return "\n".join([shown_error(error), *traceback.format_exception(error)])


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


LOSSES_IN_A_ROW = 3
"""How often in a row a worker may be lost and replaced before it has done its work."""


class Pool(ABC):
    """Workers by number, each with some of the environments.

    Each message is answered once, in order, and more may be sent before the answer.

    A worker is lost if its process ends, or if it has neither answered nor made a step for `timeout`. It is then
    reported as a `WorkerLostError` where its answer is waited for. The caller decides whether another replaces it.

    Args:
        role: the name of a worker in messages.
        shares: the environments of each worker.
        options: have the seconds without an answer or a step after which a worker is lost.
    """

    seconds_between_looks: ClassVar[float]
    """The longest wait for an answer before the pool checks whether workers are lost."""
    asks_for_rows: ClassVar[bool]
    """Whether workers are asked for their rows, from time to time, while their answers are waited for."""

    def __init__(self, role: str, shares: Sequence[slice], options: EnvironmentOptions) -> None:
        self._role, self._shares, self._timeout = role, shares, float(options.worker_timeout)
        self.restarts = options.restarts
        """Whether a lost worker may be replaced."""
        self._progress: dict[int, tuple[int, float]] = {}
        """For each worker that owes an answer: its number of rows, and when that last changed."""
        self._listened = 0.0
        """The time of the last check for answers."""
        self._losses, self._losses_in_a_row = Counter[int](), Counter[int]()

        self.acting: Any = None
        """Acts for workers that ask for it (`acting.py`); None if they act themselves."""

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
        for _, answer in self.answers(workers, at_start=True):
            if isinstance(answer, WorkerLostError):
                raise answer

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
        timeout = max(self._timeout, SECONDS_TO_START if at_start else 0.0)
        seconds = min(self.seconds_between_looks, timeout / 4)
        if patience is not None:
            seconds = min(seconds, patience)
        for worker in waiting:
            progress.setdefault(worker, (-1, time.monotonic()))
        self._listen_again(self._listened)
        looked = time.monotonic()
        while waiting:
            for worker in self.wait(waiting, seconds, together):
                answer = self._received(worker)
                if self.acting is not None and self.acting.notes(worker, answer):
                    continue
                waiting.remove(worker)
                progress.pop(worker, None)
                self._listened = listened = time.monotonic()
                yield worker, answer  # the caller may wait for another worker meanwhile
                self._listen_again(listened)
            if self.acting is not None:
                self.acting.act_for(waiting)
            now = time.monotonic()
            if self.acting is not None and now - looked < seconds:  # workers ask often
                continue
            looked = now
            for worker in list(waiting):
                if at_start:
                    give_up_if_stopped(self.name(worker))
                rows, (rows_before, since) = self.rows(worker), progress[worker]
                if rows != rows_before or (self.acting is not None and self.acting.waits(worker)):
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

    def call(self, worker: int, kind: str, value: Any) -> Any:
        """The answer of a worker that owes no other; raises as `ask` and `receive` do."""
        self.ask(worker, kind, value)
        ((_, answer),) = self.answers([worker])
        if isinstance(answer, WorkerLostError):
            raise answer
        return answer[0]

    def replace(
        self, worker: int, lost: WorkerLostError, seed: int, begin: Callable[[int], object] = lambda seed: None
    ) -> None:
        """Start another worker in place of a lost one, and another again if that one is lost, too.

        Args:
            worker: its number.
            lost: the error of the loss.
            seed: the seed of the lost worker. The new worker has another seed, because this one might fail again.
            begin: called with the seed of the new worker when its environments are made.

        Raises:
            EnvError: if it may not be replaced, or was lost too often in a row.
        """
        if not self.restarts:
            raise lost
        while True:
            self._losses[worker] += 1
            self._losses_in_a_row[worker] += 1
            if self._losses_in_a_row[worker] > LOSSES_IN_A_ROW:
                raise EnvError(f"lost {self._losses_in_a_row[worker]} times in a row, the last: {lost}") from lost
            logger.warning("%s\nAnother is started in its place; what it had not finished is dropped.", lost)
            env_seed = seed_of(seed, f"after loss {self._losses[worker]}")
            try:
                self.end(worker)
                self.start(worker, env_seed)
                self.wait_until_ready([worker])
                begin(env_seed)
                return
            except WorkerLostError as again:
                lost = again

    def end_row(self, worker: int) -> None:
        """Count losses in a row from 0 again, because the worker has done its work."""
        self._losses_in_a_row[worker] = 0


SECONDS_TO_CLOSE = 5.0
"""Seconds for workers to end by themselves before they are killed."""


def close_probe(environments: Any) -> None:
    """Close environments that this process made for their spaces alone; do not wait longer than for a worker's."""
    thread = threading.Thread(target=environments.close, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_CLOSE)
    if thread.is_alive():
        logger.warning(
            "close() of an environment, which was made in this process for its spaces, hangs for %g s: the training "
            "goes on in its workers, and does not wait for it",
            SECONDS_TO_CLOSE,
        )


class LocalProcesses(Pool):
    """Workers in processes of this machine, which share arrays with this one.

    Args:
        module: the module that a process runs.
        role: the name of a worker in messages.
        shares: the environments of each worker.
        setup: sent to all workers; has the `options` of the environments.
        layout: the layout of the shared arrays; `stop` and the workers' `heartbeats` are added.
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
        *,
        layout: Layout | None = None,
        otherwise: str = IN_THIS_PROCESS,
    ) -> None:
        super().__init__(role, shares, setup["options"])
        self._module = module
        self._setup = pack(setup, otherwise)  # it names the source or the options if they cannot be pickled
        self._layout = {**(layout or {}), "stop": ((1,), "uint8"), "heartbeats": ((len(shares), 1), "int64")}
        self.arrays = SharedArrays(self._layout)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Any] = {}
        self._starting: dict[int, int] = {}
        """The seeds of workers that have not connected yet."""

    @property
    def workers(self) -> list[int]:  # noqa: D102 - as in the base
        return list(self._processes)

    def start(self, worker: int, env_seed: int) -> None:
        """Start a worker's process, which loads its modules meanwhile; the connection is its standard input."""
        with signals_blocked():
            self._processes[worker], self._connections[worker] = started(self._module, env={**os.environ, **ONE_THREAD})
        self._starting[worker] = env_seed

    def wait_until_ready(self, workers: Collection[int]) -> None:
        """As in the base; sends a worker its setup as soon as it has loaded its modules. A second call does nothing."""
        workers = [worker for worker in workers if worker in self._starting]
        for worker, answer in self.answers(workers, at_start=True):
            if isinstance(answer, WorkerLostError):
                raise answer
            connection, seed = self._connections[worker], self._starting.pop(worker)
            try:
                connection.send((worker, self._shares[worker], seed, self._layout))
                self.arrays.send(connection)
                connection.send_bytes(self._setup)
            except OSError as error:
                raise self._died(worker) from error
        super().wait_until_ready(workers)

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
        if sys.platform == "win32":
            return [by_connection[connection] for connection in wait(list(by_connection), seconds)]
        poll = select.poll()  # `wait` takes ten times as long to register a connection
        by_descriptor = {connection.fileno(): worker for connection, worker in by_connection.items()}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        return [by_descriptor[descriptor] for descriptor, _ in poll.poll(1e3 * seconds)]

    def receive(self, worker: int) -> tuple[Any, float]:  # noqa: D102 - as in the base
        try:
            kind, value, seconds = self._connections[worker].recv()
        except (EOFError, OSError) as error:
            raise self._died(worker) from error
        if kind == "error":
            raise EnvError(f"{self.name(worker)} failed: {value}")
        if kind == "interrupted":  # its environment has replaced the handler of Ctrl-C
            raise KeyboardInterrupt(f"{self.name(worker)} was interrupted: {value}")
        return (ASKS, value) if kind == ASKS else (value, seconds)

    def rows(self, worker: int) -> int:  # noqa: D102 - as in the base
        return int(self.arrays["heartbeats"][worker, 0])

    def silence(self, worker: int, rows: int, timeout: float) -> str:  # noqa: D102 - as in the base
        if worker in self._starting:
            return (
                f"has not connected within {timeout:g} s of its start: Python hangs while it starts, or is slower than "
                "worker_timeout (--worker-timeout) allows"
            )
        return (
            f"has made no step for {timeout:g} s, after {rows} of its rollout: a step or a reset hangs, or is slower "
            "than worker_timeout (--worker-timeout) allows"
        )

    def _died(self, worker: int) -> WorkerLostError:
        how = ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._processes[worker].wait(timeout=SECONDS_TO_CLOSE)
            how = f": killed by {signal.Signals(-code).name}" if code < 0 else f": exit code {code}"
        return WorkerLostError(f"{self.name(worker)} has died{how}")

    def kill(self, worker: int) -> None:  # noqa: D102 - as in the base
        self._connections[worker].close()
        self._processes[worker].kill()
        self._processes[worker].wait()

    def close(self) -> None:
        """End all of them, and free the shared arrays; a second call does nothing."""
        for worker in self._starting:  # without waiting, because they have no work yet
            self._processes[worker].kill()
        self._starting = {}
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # it has died before
                connection.send(("close", None))
            connection.close()
        wait_for_ends(self._processes.values(), SECONDS_TO_CLOSE)  # a step may take longer
        self._connections, self._processes = {}, {}
        self.arrays.close()
