"""Processes that tests start. They end when the tests do, even if those are killed.

Importing torch takes most of a short process. So where processes can be forked, one process has imported
the library already (`warm_process.py`), and every other is a copy of it. Tests that depend on imports, on variables
that are read during an import, or on how the interpreter starts need `warm=False`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import psutil

CAN_FORK = sys.platform == "linux"
"""Forked processes on macOS may not use its own libraries."""
FOLDER = Path(__file__).parent


def start_python(*arguments: object, warm: bool = True, **options: Any) -> "subprocess.Popen[str]":
    """`python` with `-m` and a module, `-c` and code, or a script, and what they take; `options` as for `Popen`.

    Of those, a warm process takes `cwd`, `env`, `stdout`, `stderr` and `start_new_session`.
    """
    theirs, ours = os.pipe()  # nothing is ever written: it ends when the tests do
    try:
        process: Any
        if warm and CAN_FORK:
            process = _WarmProcess(list(map(str, arguments)), theirs, ends_with_the_tests=True, **options)
        else:
            watched = [sys.executable, str(FOLDER / "warm_process.py"), *map(str, arguments)]
            process = subprocess.Popen(watched, stdin=theirs, text=True, **options)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(process, os.close, ours)
    return process  # type: ignore[no-any-return]


def run_python(
    *arguments: object, check: bool = False, timeout: float = 300.0, warm: bool = True, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end, and capture its output."""
    process = start_python(*arguments, warm=warm, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    done = subprocess.CompletedProcess(list(map(str, arguments)), process.returncode, output, errors)
    if check and done.returncode:
        raise AssertionError(f"exit code {done.returncode} of {done.args}:\n{output}\n{errors}")
    return done


def wait_until(holds: Callable[[], object], process: Any = None, *, what: str = "so", seconds: float = 120.0) -> None:
    """Until something holds, which a process, if it is given, must not have ended before."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"not {what} within {seconds} s"
        time.sleep(0.01)


def still_alive(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended within so many seconds. A zombie has ended: whoever inherited it may reap it later."""
    alive = list(processes)
    deadline = time.monotonic() + seconds
    while alive := [process for process in alive if _is_alive(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment variables that the library sets for worker processes, and that are read when NumPy is imported."""


class WarmSubprocess:
    """Replaces `subprocess` where the library starts worker processes and whole runs: they are copies of a warm one."""

    TimeoutExpired = subprocess.TimeoutExpired
    kind = "--serve-workers"

    @classmethod
    def Popen(cls, command: list[str], *, stdin: int, **options: Any) -> Any:  # noqa: N802 - as it is called there
        """A process of `command_of(MODULE)`, whose standard input is the connection."""
        if command[3] == "hybridppo.tools.jobs":
            return _warm_copy(command, stdin, **options)
        assert ONE_THREAD.items() <= options["env"].items()
        return _warm_copy(command, stdin, kind=cls.kind, **options)


class WarmTrainers:
    """Replaces `subprocess` where the library starts learners."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    @staticmethod
    def Popen(command: list[str], *, stdin: int) -> Any:  # noqa: N802 - as it is called there
        """A process of `command_of(MODULE, ARGUMENTS)`."""
        assert stdin == subprocess.DEVNULL
        with open(os.devnull) as nothing:
            return _warm_copy(command, nothing.fileno())


def _warm_copy(command: list[str], stdin: int, **options: Any) -> Any:
    process = _WarmProcess(command[1:], stdin, **options)
    _copies[psutil.Process(process.pid)] = command[3]
    return process


_copies: dict[psutil.Process, str] = {}
"""Processes that are not children of this one, and the module that each of them runs."""


def processes_of(module: str) -> list[psutil.Process]:
    """Processes that run a module for this process: its children, or copies of a warm one."""
    found = [copy for copy, runs in living_copies().items() if runs == module]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if module in child.cmdline():
                found.append(child)
    return found


def living_copies() -> dict[psutil.Process, str]:
    """Processes of workers and learners that are copies of a warm one, and the module that each of them runs."""
    for copy in [copy for copy in _copies if not _is_alive(copy)]:
        del _copies[copy]
    return dict(_copies)


def started_processes() -> set[psutil.Process]:
    """All processes that this one has started, without the warm ones; their copies are included."""
    found, warm = set(living_copies()), {server.pid for server, _ in _warm.values()}
    for child in psutil.Process().children():
        if child.pid not in warm:
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {child, *child.children(recursive=True)}
    return found


def worker_processes() -> list[psutil.Process]:
    """This process's workers."""
    return processes_of("hybridppo.runners.worker")


def workers_of(pid: int) -> list[psutil.Process]:
    """The workers and learners of a process, without git, which a trainer asks for the commit."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended meanwhile
            found += [child] * any(part.startswith("hybridppo.") for part in child.cmdline())
    return found


class _WarmProcess:
    """The part of `subprocess.Popen` that tests and the library use; a copy of a warm process in its own session."""

    def __init__(
        self,
        arguments: list[str],
        stdin: int,
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: Any = None,
        stderr: Any = None,
        start_new_session: bool = False,
        kind: str = "--serve",
        ends_with_the_tests: bool = False,
    ) -> None:
        self.args, self.stdin, self.returncode = arguments, None, None
        with contextlib.ExitStack() as stack:
            streams = [_Stream(stream, inherited) for stream, inherited in ((stdout, 1), (stderr, 2))]
            for stream in streams:
                stack.callback(stream.handed_over)
            self.stdout, self.stderr = (stream.pipe for stream in streams)
            self._readers: list[_Reader] = []
            handles = [stdin, *(stream.handle for stream in streams)]
            self._connection = _connect(kind)
            asked = {
                "arguments": arguments,
                "cwd": str(cwd or os.getcwd()),
                "env": dict(os.environ if env is None else env),
                "ends_with_the_tests": ends_with_the_tests,
            }
            line = json.dumps(asked).encode() + b"\n"
            socket.send_fds(self._connection, [line[:1]], handles)
            self._connection.sendall(line[1:])
            self.pid = int(self._connection.recv(8))

    def __del__(self) -> None:
        self._connection.close()  # of one that was killed, and that nobody waited for

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(None if timeout is None else max(timeout, 1e-6))
            # A few bytes, sent at once: they are all there, or none is.
            try:
                with contextlib.suppress(BlockingIOError):
                    text = self._connection.recv(8)
                    self.returncode = int(text) if text else -9  # nobody is left who could say
            except TimeoutError:
                pass
            if self.returncode is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        self._readers = self._readers or [_Reader(pipe) for pipe in (self.stdout, self.stderr)]
        self.wait(timeout)
        output, errors = (reader.text(timeout) for reader in self._readers)
        return output, errors

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def terminate(self) -> None:
        self.send_signal(15)


class _Stream:
    """A process's stream as `Popen` gets it: to be read here, discarded, or shared with ours."""

    def __init__(self, stream: Any, inherited: int) -> None:
        self.pipe: IO[str] | None = None
        self._owned: int | None = None
        if stream == subprocess.PIPE:
            here, self.handle = os.pipe()
            self._owned = self.handle
            self.pipe = open(here, encoding="utf-8")  # noqa: SIM115
        elif stream == subprocess.DEVNULL:
            self._owned = self.handle = os.open(os.devnull, os.O_RDWR)
        else:
            self.handle = inherited if stream is None else stream.fileno()

    def handed_over(self) -> None:
        """Close our end, as the process has its own, so that the end can be seen."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None


class _Reader:
    """Reads a stream to its end while others are read."""

    def __init__(self, pipe: IO[str] | None) -> None:
        self._pipe, self._parts = pipe, [""]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        if self._pipe is not None and not self._pipe.closed:
            with self._pipe:
                self._parts.append(self._pipe.read())

    def text(self, timeout: float | None) -> str | None:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("what a process says", timeout or 0.0)
        return None if self._pipe is None else "".join(self._parts)


_warm: "dict[str, tuple[subprocess.Popen[bytes], str]]" = {}


def share_warm_processes() -> None:
    """Start the warm processes for this process and those that it starts from now on."""
    if CAN_FORK:
        for kind in ("--serve", "--serve-workers", "--serve-workers-with-torch"):
            _warm[kind] = _started(kind)
            os.environ[f"WARM{kind}"] = _warm[kind][1]


def _started(kind: str) -> "tuple[subprocess.Popen[bytes], str]":
    address = os.path.join(tempfile.mkdtemp(prefix="warm-"), "address")
    command = [sys.executable, str(FOLDER / "warm_process.py"), kind, address]
    environment = {**os.environ, **({} if kind == "--serve" else ONE_THREAD)}
    # Its standard input is a pipe of ours: it ends with us.
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment), address


def _connect(kind: str) -> socket.socket:
    address = os.environ.get(f"WARM{kind}")
    if address is None:
        if kind not in _warm or _warm[kind][0].poll() is not None:
            _warm[kind] = _started(kind)
        address = _warm[kind][1]
    connection = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + 120.0
    while True:
        try:
            connection.connect(address)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):  # it still imports the library
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
