"""Sampling in worker processes: each steps some of the environments with its own actor, into shared memory."""

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
from itertools import accumulate, pairwise
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import nn

import hybridppo
from hybridppo.distributions import Distribution
from hybridppo.envs import WORKER_TIMEOUT, Environments, EnvSource, EnvState
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.networks import is_plain_mlp, numpy_activation
from hybridppo.numpy_mlp import NumpyActor
from hybridppo.runners.page_locking import PageLock
from hybridppo.runners.sampler import BaseSampler
from hybridppo.runners.shared_arrays import SharedArrays
from hybridppo.runners.stepping import Block, Finals
from hybridppo.runners.worker_process import KEY_VARIABLE, signals_blocked

Array = NDArray[Any]

_PACKAGE_ROOT = Path(hybridppo.__file__).resolve().parent.parent

SECONDS_TO_CLOSE = 5.0
"""How long a worker may take to end in good order before it is killed."""


class WorkerSampler(BaseSampler):
    """Steps environments in processes of their own.

    Workers start light: a fresh interpreter that loads gymnasium and NumPy, not torch. Environments are seeded by
    their number, so how many workers there are changes nothing, but for an environment's own
    vectorised form, whose copies share one generator.

    Args:
        source: as for `make_environments`.
        template: the `N` environments as made in this process, for their spaces and reset mode; not stepped.
        distribution: of the action space.
        network: the actor, for the shapes of its parameters.
        num_workers: processes, at most `N`; environments are divided as evenly as possible.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness.
        options: further arguments of `make_environments`.
        timeout: seconds without a step after which a worker counts as hung.
        pin_memory: keep rollouts in page-locked memory, for fast copies to a GPU.

    Raises:
        EnvError: where a worker fails, dies or hangs: which one, with its own traceback or signal.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        distribution: Distribution,
        network: nn.Module,
        *,
        num_workers: int,
        num_steps: int,
        env_seed: int,
        noise: np.random.Generator,
        options: dict[str, Any] | None = None,
        timeout: float = WORKER_TIMEOUT,
        pin_memory: bool = False,
    ) -> None:
        num_envs = template.num_envs
        if not 1 <= num_workers <= num_envs:
            raise ConfigurationError(f"num_workers must lie between 1 and num_envs = {num_envs}, got {num_workers}")
        if not is_plain_mlp(network):
            raise ConfigurationError(
                "worker processes sample with MLPs of tanh or relu only: choose such a network, or num_workers=0"
            )
        layout = Block.layout(num_steps, num_envs, template.encode.size, distribution)
        shapes = [tuple(parameter.shape) for parameter in network.parameters()]
        size = sum(parameter.numel() for parameter in network.parameters())
        shared = {f"{name}{i}": spec for i in range(2) for name, spec in layout.items()}
        shared |= {"parameters": ((size,), "float32"), "stop": ((1,), "uint8")}
        self._arrays = SharedArrays(shared)
        self._closed = False
        self._parameters = self._arrays["parameters"]
        blocks = [Block(**{name: self._arrays[f"{name}{i}"] for name in layout}) for i in range(2)]
        stop, skips_row_after_end = self._arrays["stop"].data, template.skips_row_after_end
        super().__init__(stop, blocks, distribution, skips_row_after_end=skips_row_after_end, noise=noise)
        self._seconds_filling = 0.0
        self._timeout = timeout
        bounds = [i * num_envs // num_workers for i in range(num_workers + 1)]
        self._envs = [slice(start, end) for start, end in pairwise(bounds)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection[Any, Any]] = []
        self._page_lock: PageLock | None = None
        setup = {
            "source": gym.spec(source) if isinstance(source, str) else source,
            "options": options or {},
            "layout": shared,
            "fields": list(layout),
            "path": self._arrays.path,
            "shapes": shapes,
            "activation": numpy_activation(network),
        }
        try:
            self._start_workers(setup, env_seed)
            if pin_memory:
                assert self._arrays.memory is not None  # not closed yet
                self._page_lock = PageLock(self._arrays.memory)
        except BaseException:
            self.close()
            raise

    def _start_workers(self, setup: dict[str, Any], env_seed: int) -> None:
        key = secrets.token_bytes(32)
        # One thread each: the processes are the parallelism.
        environment = {
            **os.environ,
            KEY_VARIABLE: key.hex(),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")))),
        }
        address = _address_without_a_file()
        with Listener(address, authkey=key) as listener:
            address = address or str(listener.address)
            command = [sys.executable, "-m", "hybridppo.runners.worker_process", address.replace("\0", "@")]
            for envs in self._envs:
                # One at a time until it has connected: connections then belong to processes in order.
                with signals_blocked():
                    self._processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
                connection = self._accept(listener, address, key)
                self._connections.append(connection)
                connection.send(sys.path)
                connection.send_bytes(cloudpickle.dumps({**setup, "envs": envs, "seed": env_seed + envs.start}))
        self._receive_all()
        self._arrays.unlink()

    def _accept(self, listener: Listener, address: str, key: bytes) -> "Connection[Any, Any]":
        """The connection of the worker started last, or an error where it ended before it connected."""
        worker = len(self._processes) - 1
        with ThreadPoolExecutor(1) as thread:
            accepted = thread.submit(listener.accept)
            while not accepted.done():
                if self._processes[worker].poll() is not None and not accepted.done():
                    Client(address, authkey=key).close()  # connects in its place, so that the thread ends
                    raise EnvError(f"{self._name(worker)} ended at its start{self._how_it_ended(worker)}")
                futures.wait([accepted], timeout=0.1)
            return accepted.result()

    def _begin(self, block: Block, actor: SamplingActor, first: int) -> None:
        assert isinstance(actor, NumpyActor)  # what a placement gives for such a network on the CPU
        np.concatenate([parameter.reshape(-1) for parameter in actor.parameters], out=self._parameters)
        self._turn_begun = next(i for i, mine in enumerate(self._blocks) if mine is block)
        self._send_all([("fill", (self._turn_begun, first, None))] * len(self._connections))

    def _end(self) -> tuple[int, Finals]:
        answers = self._receive_all()
        self._seconds_filling = max(seconds for _, seconds in answers)
        parts = [finals for (_, finals), _ in answers]
        filled = [rows for (rows, _), _ in answers]
        # Workers that were told to stop have stopped where each was: those behind go on to where the furthest is.
        behind = {worker: rows for worker, rows in enumerate(filled) if rows < max(filled)}
        if behind:
            self._send_all([("fill", (self._turn_begun, rows, max(filled))) for rows in behind.values()], list(behind))
            for worker, ((_, more), _) in zip(behind, self._receive_all(list(behind)), strict=True):
                parts[worker] += more
        finals = [
            (step, envs.start + env, observation)
            for envs, part in zip(self._envs, parts, strict=True)
            for step, env, observation in part
        ]
        return max(filled), sorted(finals, key=lambda final: final[:2])  # as one process would have found them

    def _stepper_state(self) -> tuple[list[EnvState], Array]:
        self._send_all([("state", None)] * len(self._connections))
        states, observations = [], []
        for (state, not_saved), _ in self._receive_all():
            if not_saved is not None:
                raise EnvStateError(not_saved)
            states += state[0]
            observations.append(state[1])
        return states, np.concatenate(observations)

    def _load_stepper_state(self, states: list[EnvState], observation: Array) -> None:
        ends = list(accumulate(state["num_envs"] for state in states))
        if not {envs.stop for envs in self._envs} <= set(ends):
            raise EnvStateError(
                f"they were saved as vectors of {[state['num_envs'] for state in states]} environments each, which "
                f"cannot be divided among {len(self._envs)} workers: num_workers={len(states)} goes on exactly"
            )
        parts = [
            ([s for s, end in zip(states, ends, strict=True) if envs.start < end <= envs.stop], observation[envs])
            for envs in self._envs
        ]
        self._send_all([("load_state", part) for part in parts])
        for not_restored, _ in self._receive_all():
            if not_restored is not None:
                raise EnvStateError(not_restored)

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._seconds_filling

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._send_all([("restart", env_seed + envs.start) for envs in self._envs])
        self._receive_all()

    def _send_all(self, messages: Sequence[tuple[str, Any]], workers: Sequence[int] | None = None) -> None:
        """A message to each worker, or to each of some."""
        for i, message in zip(range(len(self._connections)) if workers is None else workers, messages, strict=True):
            try:
                self._connections[i].send(message)
            except OSError as error:
                raise EnvError(f"{self._name(i)} has died{self._how_it_ended(i)}") from error

    def _receive_all(self, workers: Sequence[int] | None = None) -> list[tuple[Any, float]]:
        """One answer of every worker, or of each of some."""
        workers = range(len(self._connections)) if workers is None else workers
        waiting = {self._connections[i]: i for i in workers}
        answers: dict[int, tuple[Any, float]] = {}
        deadline = time.monotonic() + self._timeout
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                names = ", ".join(self._name(i) for i in waiting.values())
                raise EnvError(f"no answer from {names} within {self._timeout:g} s: a step hangs, or is that slow")
            for connection in [connection for connection in waiting if connection in ready]:
                worker = waiting.pop(connection)
                answers[worker] = self._receive(connection, worker)
        return [answers[i] for i in workers]

    def _receive(self, connection: "Connection[Any, Any]", worker: int) -> tuple[Any, float]:
        try:
            kind, value, more = connection.recv()
        except (EOFError, OSError) as error:
            raise EnvError(f"{self._name(worker)} has died{self._how_it_ended(worker)}") from error
        if kind == "error":
            raise EnvError(f"{self._name(worker)} failed: {value}")
        return value, more

    def _name(self, worker: int) -> str:
        envs = self._envs[worker]
        return f"worker {worker} (environments {envs.start} to {envs.stop - 1})"

    def _how_it_ended(self, worker: int) -> str:
        try:
            code = self._processes[worker].wait(timeout=SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            return ""
        if code < 0:
            return f": killed by {signal.Signals(-code).name}"
        return f": exit code {code}"

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._closed:
            return
        self._closed = True
        self.request_stop()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # died before
                connection.send(("close", None))
            connection.close()
        for process in self._processes:
            try:
                process.wait(timeout=SECONDS_TO_CLOSE)
            except subprocess.TimeoutExpired:  # in the middle of a long step
                process.kill()
                process.wait()
        self._connections, self._processes = [], []
        if self._page_lock is not None:
            self._page_lock.close()
        self._arrays.close()


def _address_without_a_file() -> str | None:
    """A name for a socket that is in no folder, where there is such a thing (Linux): a killed trainer leaves none."""
    return f"\0hybridppo-{os.getpid()}-{secrets.token_hex(8)}" if sys.platform == "linux" else None
