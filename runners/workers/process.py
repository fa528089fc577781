"""A worker process: steps its environments with its own actor, and writes its columns of the rollout.

`LocalProcesses` starts it as `hybridppo.runners.workers.process ADDRESS`, with the key of the connection in its
environment variables. It loads neither torch nor the script that started the training. It ends when told to, when the
connection breaks, or when the trainer is gone while it steps: no worker outlives its trainer.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from typing import Any, NamedTuple

import cloudpickle

from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.runners.samplers.stepping import NEVER
from hybridppo.runners.workers.share import Share, parameters_of, text_of_failure
from hybridppo.runners.workers.shared_arrays import PublishedParameters, SharedArrays
from hybridppo.spaces.arrays import Array
from hybridppo.system.interruption import requests_to_end

KEY_VARIABLE = "HYBRIDPPO_WORKER_KEY"

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


def serve(trainer: Trainer) -> None:
    """Make the environments; then fill rows, or answer other messages."""
    setup, arrays = trainer.setup, trainer.arrays
    with contextlib.closing(Share(setup, trainer.envs, trainer.seed)) as share:
        whole = [
            RolloutBuffer(**{name: arrays[f"{name}{i}"] for name in setup["fields"]})
            for i in range(setup["num_buffers"])
        ]
        buffers = [buffer.of(share.columns) for buffer in whole]
        published = PublishedParameters(arrays)
        stop = arrays["stop"].data
        share.stepper.heartbeat = trainer.heartbeat.data

        def answer(kind: str, value: Any) -> tuple[Any, float]:
            if kind != "fill":
                return share.answer(kind, value), 0.0
            turn, first, end = value
            # A worker that is to catch up with others does not stop before their row.
            flag = stop if end is None else NEVER
            parameters, version = published.read()
            filled = share.fill(buffers[turn], parameters_of(parameters, setup["shapes"]), version, flag, first, end)
            return filled, share.stepper.seconds

        trainer.answer(answer)


if __name__ == "__main__":
    main(serve)
