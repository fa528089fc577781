"""A worker process: steps its environments with its own actor, and writes its part of the rollout.

Started by `WorkerSampler` as `python -m hybridppo.runners.workers.process ADDRESS`, with the key of the connection in
its environment. It loads neither torch nor the script that started the training. It ends when told to, or when the
connection breaks, or when the trainer is gone while it steps: no worker outlives its trainer.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import EnvState
from hybridppo.environments.checks import require_same_spaces
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.interruption import requests_to_end
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.runners.samplers.stepping import NEVER, Stepper
from hybridppo.runners.workers.shared_arrays import SharedArrays

KEY_VARIABLE = "HYBRIDPPO_WORKER_KEY"

SECONDS_BETWEEN_LOOKS = 2.0


def main(serve: "Callable[[Connection[Any, Any]], None]") -> None:
    """Connect, and serve until the connection ends."""
    leave_signals_to_the_trainer()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection: Connection[Any, Any] = Client(
        sys.argv[1].replace("@", "\0"), authkey=bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    )
    try:
        serve(connection)
    except (EOFError, ConnectionError):
        pass  # the trainer is gone
    except BaseException as error:
        # The library's own errors of environments say all there is to say.
        told = (
            str(error) if isinstance(error, EnvError) else f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        )
        with contextlib.suppress(ConnectionError):  # another worker failed first, and the trainer has gone
            connection.send(("error", told, None))
        raise SystemExit(1) from None


def end_with_parent(parent: int) -> None:
    """Watch for the trainer's end, for a worker that is stuck in a step and will never see its connection break.

    Native code that holds the interpreter's lock forever holds this up as well. Where processes are not given to
    another parent (Windows), nothing is seen.
    """
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def leave_signals_to_the_trainer() -> None:
    """Ignore what reaches the whole process group, as Ctrl-C does: what it means is the trainer's to decide."""
    for number in _signals():
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _signals())  # those that came meanwhile are ignored, too


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Within it, a process that is started has these signals wait until it is ready to ignore them."""
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


def serve(connection: "Connection[Any, Any]") -> None:
    """Make the environments that the first message describes; then a rollout per message."""
    sys.path[:] = connection.recv()
    mine = connection.recv()
    setup = cloudpickle.loads(connection.recv_bytes())
    source = source_here(setup["source"], setup["options"].imports)
    envs: slice = mine["envs"]
    num_envs = envs.stop - envs.start
    # One thread each: the processes are the parallelism.
    environments = make_environments(source, num_envs, setup["options"], first=envs.start, threads=1)
    try:
        require_same_spaces(
            environments,
            setup["spaces"],
            f"environments {envs.start} to {envs.stop - 1}, made in a worker process,",
            "those made in the trainer",
            setup["num_envs"],
        )
        arrays = SharedArrays(setup["layout"], setup["path"])
        # An environment is a column of a rollout, or as many as it has agents.
        columns = slice(envs.start * environments.num_agents, envs.stop * environments.num_agents)
        whole = [RolloutBuffer(**{name: arrays[f"{name}{i}"] for name in setup["fields"]}) for i in range(2)]
        buffers = [buffer.of(columns) for buffer in whole]
        # Views of one flat array that the trainer writes before each rollout.
        ends = np.cumsum([int(np.prod(shape)) for shape in setup["shapes"]])[:-1]
        flat = np.split(arrays["parameters"], ends)
        parameters = [part.reshape(shape) for part, shape in zip(flat, setup["shapes"], strict=True)]
        stop = arrays["stop"].data
        stepper = Stepper(environments, setup["distribution"], mine["seed"], setup["memory"])
        stepper.heartbeat = arrays[f"heartbeat{mine['worker']}"].data
        connection.send(("ready", None, None))
        while True:
            kind, value = connection.recv()
            if kind == "close":
                return
            if kind == "restart":
                stepper.restart(value)
                connection.send(("done", [], 0.0))
                continue
            if kind == "state":
                connection.send(("done", _state(stepper), 0.0))
                continue
            if kind == "load_state":
                connection.send(("done", _load_state(stepper, *value), 0.0))
                continue
            turn, first, end = value
            # Those that go on to where others have stopped do not stop before.
            flag = stop if end is None else NEVER
            actor = setup["form"].actor(parameters)
            answer = stepper.fill(buffers[turn], actor, flag, first, end)
            connection.send(("done", answer, stepper.seconds))
    finally:
        environments.close()


def _state(stepper: Stepper) -> tuple[Any, str | None]:
    """The environments' state, or why it cannot be saved."""
    try:
        return stepper.state(), None
    except EnvStateError as error:
        return None, str(error)


def _load_state(
    stepper: Stepper, states: list[EnvState], observation: NDArray[Any], remembered: NDArray[Any]
) -> str | None:
    """Why the state cannot be put back, if so."""
    try:
        stepper.load_state(states, observation, remembered)
    except EnvStateError as error:
        return str(error)
    except Exception as error:  # of what is not such a state at all
        return f"what was saved of them cannot be read: {type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main(serve)
