"""A process of the tests, and the one that others are copies of: see `processes.py`.

python warm_process.py ARGUMENTS            as `python ARGUMENTS`, until the standard input is closed
python warm_process.py --serve ADDRESS      import the library, and fork for everyone who connects there
python warm_process.py --serve-workers ADDRESS      the same with the imports of worker processes, which lack torch
python warm_process.py --serve-workers-with-torch ADDRESS      with these and torch
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(arguments: list[str], ends_with_the_tests: bool = True) -> None:
    """Run as the interpreter does with these arguments, while the process that started this one exists."""
    first, *rest = arguments
    # In the place of this file's folder, in which `hybridppo` are the tests of it.
    sys.path[0] = "" if first in ("-c", "-m") else os.path.dirname(os.path.abspath(first))

    def end_with_the_tests() -> None:
        os.read(0, 1)  # it returns when the other end of the pipe is gone
        os._exit(1)

    if ends_with_the_tests:
        threading.Thread(target=end_with_the_tests, daemon=True).start()
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(rest[0], "<string>", "exec"), names)
    else:
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")


TRAINERS = ("hybridppo.commands.main", "hybridppo.learner_process", "hybridppo.training")
"""What trainings import."""
WORKERS = (
    "gymnasium.envs.classic_control", "hybridppo.distributions.of_policies", "hybridppo.runners.episodes",
    "hybridppo.runners.worker", "pytest", "network_kinds", "space_kinds", "toy_agents", "toy_environments",
)  # fmt: skip
"""What worker processes import, also for the environments of tests."""
SERVES = {
    "--serve": TRAINERS,
    "--serve-workers": WORKERS,
    "--serve-workers-with-torch": (*TRAINERS, *WORKERS),
}


def serve(address: str) -> None:
    """Fork for everyone who asks, and report how each copy ended, until the standard input is closed."""
    os.setsid()  # no group that a signal goes to
    if hasattr(signal, "pthread_sigmask"):  # whoever is first may have blocked some, as the library does for its own
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    assert threading.active_count() == 1  # of which no copy could be made
    gc.freeze()
    gc.set_threshold(20_000)  # as in conftest.py
    ended, wakes = os.pipe()
    for handle in (ended, wakes):
        os.set_blocking(handle, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    asking: dict[int, socket.socket] = {}  # by the copy that was made for each
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        while True:
            readable, _, _ = select.select([listening, 0, ended], [], [])
            if 0 in readable:
                with contextlib.suppress(OSError):  # others' files stay, and with them the folder
                    os.unlink(address)
                    os.rmdir(os.path.dirname(address))
                return
            if ended in readable:
                os.read(ended, 4096)
                _tell_how_copies_ended(asking)
            if listening in readable:
                connection, _ = listening.accept()
                asked, handles = _read(connection)
                pid = os.fork() if asked is not None else -1
                if asked is not None and pid == 0:
                    os.setsid()  # first: whoever has its number may send a signal to its group
                    with contextlib.suppress(OSError):  # whoever asked may be gone
                        connection.sendall(f"{os.getpid():8}".encode())
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (listening, connection, *asking.values()):
                        each.close()
                    os.close(ended)
                    os.close(wakes)
                    _become(asked, handles)
                for handle in handles:
                    os.close(handle)
                if asked is None:
                    connection.close()
                    continue
                asking[pid] = connection


def _read(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The request and the handles of its streams; None if the asking process was killed meanwhile."""
    line, handles, _, _ = socket.recv_fds(connection, 1, 3)
    while not line.endswith(b"\n"):
        more = connection.recv(65536)
        if not more:
            return None, handles
        line += more
    return json.loads(line), handles


def _tell_how_copies_ended(asking: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with asking.pop(found[0]) as connection, contextlib.suppress(OSError):
                connection.sendall(f"{os.waitstatus_to_exitcode(found[1]):8}".encode())


def _become(asked: dict[str, Any], handles: list[int]) -> None:
    """Become the requested process; never returns."""
    code = 1
    try:
        for target, handle in enumerate(handles):
            os.dup2(handle, target)
        for handle in handles:
            if handle > 2:
                os.close(handle)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[1:1] = [path for path in paths if path not in sys.path[1:]]
        run(asked["arguments"], asked["ends_with_the_tests"])
        code = 0
    except SystemExit as ended:
        code = _exit_code(ended)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        _end(code)


def _exit_code(ended: SystemExit) -> int:
    if isinstance(ended.code, int):
        return ended.code
    if ended.code is None:
        return 0
    print(ended.code, file=sys.stderr)
    return 1


def _end(code: int) -> None:
    """End as the interpreter does: wait for threads, run the registered exit functions, and flush all output."""
    import atexit

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] in SERVES:
        here, sys.path[0] = sys.path[0], ROOT
        sys.path.append(here)
        for name in SERVES[sys.argv[1]]:
            importlib.import_module(name)
        sys.path.remove(here)
        serve(sys.argv[2])
    else:
        run(sys.argv[1:])
