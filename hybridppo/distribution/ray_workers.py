"""Workers anywhere that Ray reaches: rollouts come back, parameters go out, once a rollout."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import ray.exceptions
from numpy.typing import NDArray

from hybridppo.distribution.messages import MOST_BYTES, packed, unpacked
from hybridppo.distribution.remote_share import CONTROL, Fill, RemoteShare, new_rows, path_here, versions_here
from hybridppo.environments.pickling import pack
from hybridppo.errors import DistributionError, EnvError
from hybridppo.runners.samplers.stepping import Flag
from hybridppo.runners.workers.transport import SECONDS_TO_START, Work, WorkerLostError
from hybridppo.spaces.state_dependent import noise_row
from hybridppo.system.interruption import give_up_if_stopped

Array = NDArray[Any]

SECONDS_BETWEEN_LOOKS = 0.1
"""How soon a stop that was asked for is passed on."""
SECONDS_BETWEEN_BEATS = 1.0
"""How often a worker is asked whether it goes on."""
SECONDS_TO_CLOSE = 5.0
"""How long workers may take to close their environments before they are killed."""


@dataclass
class Awaited:
    """An answer that a worker owes."""

    ref: Any
    task: Fill | None = None
    turn: int = 0
    is_stopped: bool = False


@dataclass
class Pulse:
    """What was last heard of a worker."""

    rows: int
    since: float
    """When that was new."""
    beat: Any = None
    """What it was asked, and has not answered."""
    asked: float = 0.0


class RayWorkers:
    """As `Transport`.

    A worker is an actor of Ray's with one CPU. It is lost where Ray says so, or where for `worker_timeout` seconds
    nothing was heard of it, or no further step: it is killed then, and what it may answer is never looked at.

    Args:
        work: what they are started for.
        role: what a worker is called in messages.
    """

    def __init__(self, work: Work, role: str = "sampler") -> None:
        self.buffers = [work.allocate() for _ in range(2)]
        self.stop: Flag = bytearray(1)
        self._work, self._role, self._timeout = work, role, work.options.worker_timeout
        self._memory = work.setup["memory"]
        setup = pack({**work.setup, "layout": work.layout})
        self._kind = ray.remote(num_cpus=1, concurrency_groups=CONTROL)(RemoteShare)
        with explained():
            self._setup = ray.put(setup)
        self._handles: dict[int, Any] = {}
        self._places: dict[int, str] = {}
        self._awaited: dict[int, Awaited] = {}
        self._attempt = self._rollout = 0
        self._version = -1
        self._parameters: Any = None

    @property
    def workers(self) -> list[int]:  # noqa: D102 - as in the protocol
        return list(self._handles)

    def name(self, worker: int) -> str:
        """A worker, for messages, and where it is."""
        return self._work.name(worker, self._role) + self._places.get(worker, "")

    def start(self, worker: int, env_seed: int) -> None:  # noqa: D102 - as in the protocol
        self._places.pop(worker, None)
        options = {"scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
        handle = self._handles[worker] = self._kind.options(**options).remote()
        ref = handle.begin.remote(self._setup, path_here(), self._work.shares[worker], env_seed)
        self._awaited[worker] = Awaited(ref)

    def wait_until_ready(self, workers: Sequence[int]) -> None:  # noqa: D102 - as in the protocol
        for worker, answer in self._answers(workers, max(self._timeout, SECONDS_TO_START), at_start=True):
            if isinstance(answer, WorkerLostError):
                raise answer
            about = answer[0]
            self._places[worker] = f", process {about['pid']} of {about['host']}"
            require_versions(self.name(worker), about["versions"])

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the protocol
        self._version, self._rollout = version, self._rollout + 1
        with explained():
            flat = np.concatenate([parameter.reshape(-1) for parameter in parameters]).astype(np.float32, copy=False)
            self._parameters = flat if flat.nbytes <= MOST_BYTES else ray.put(flat)

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the protocol
        self._attempt += 1
        task = Fill(self._rollout, self._attempt, self._version, first, end)
        noise = None
        if end is None:
            row = noise_row(self._work.setup["distribution"], first)
            noise = np.ascontiguousarray(self.buffers[turn].noise[row:, self._work.columns[worker]])
        parameters = self._parameters if end is None else None
        small, stored = (parameters, None) if isinstance(parameters, np.ndarray) else (None, parameters)
        size = sum(array.nbytes for array in (small, noise) if array is not None)
        with explained():
            ref = self._handles[worker].fill_as.remote(packed((task, small, noise), size), stored)
        self._awaited[worker] = Awaited(ref, task, turn)

    def ask(self, worker: int, kind: str, value: Any) -> None:  # noqa: D102 - as in the protocol
        with explained():
            self._awaited[worker] = Awaited(self._handles[worker].ask.remote(kind, value))

    def answers(self, workers: Sequence[int]) -> Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]:  # noqa: D102
        return self._answers(workers, self._timeout)

    def _answers(
        self, workers: Sequence[int], timeout: float, *, at_start: bool = False
    ) -> Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]:
        waiting = {self._awaited[worker].ref: worker for worker in workers}
        pulses = {worker: Pulse(-1, time.monotonic()) for worker in workers}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=SECONDS_BETWEEN_LOOKS)
            for ref in ready:
                worker = waiting.pop(ref)
                left = time.monotonic()
                yield worker, self._received(worker)
                for pulse in pulses.values():  # whoever takes answers may take long, and nobody listens meanwhile
                    pulse.since += time.monotonic() - left
            if self.stop[0]:
                self._pass_on_the_stop(waiting.values())
            for ref, worker in list(waiting.items()):
                if at_start:
                    give_up_if_stopped(self.name(worker))
                pulse = pulses[worker]
                self._listen(worker, pulse)
                if time.monotonic() - pulse.since > timeout:
                    del waiting[ref]
                    self._kill(worker)
                    yield worker, self._lost(worker, pulse, timeout)

    def _listen(self, worker: int, pulse: Pulse) -> None:
        now = time.monotonic()
        if pulse.beat is None:
            if now - pulse.asked > min(SECONDS_BETWEEN_BEATS, self._timeout / 4):
                pulse.beat, pulse.asked = self._handles[worker].rows.remote(), now
            return
        if not ray.wait([pulse.beat], timeout=0)[0]:
            return
        with contextlib.suppress(ray.exceptions.RayError):  # its answer, which is waited for, will say so
            rows = ray.get(pulse.beat)
            if rows != pulse.rows:
                pulse.rows, pulse.since = rows, now
        pulse.beat = None

    def _lost(self, worker: int, pulse: Pulse, timeout: float) -> WorkerLostError:
        if worker not in self._places:
            has = {name: amount for name, amount in ray.cluster_resources().items() if name == "CPU"}
            return WorkerLostError(
                f"{self.name(worker)} has not begun within {timeout:g} s. Each needs a CPU; the cluster has {has}, of "
                f"which {ray.available_resources().get('CPU', 0):g} are free"
            )
        return WorkerLostError(
            f"{self.name(worker)} has made no step for {timeout:g} s, after {max(0, pulse.rows)} of its rollout, or "
            "does not answer: a step or a reset hangs, or is slower than worker_timeout (--worker-timeout) allows, or "
            "the network is down"
        )

    def _pass_on_the_stop(self, workers: Any) -> None:
        for worker in workers:
            awaited = self._awaited[worker]
            # Those that go on to where others have stopped do not stop before.
            if awaited.task is not None and awaited.task.end is None and not awaited.is_stopped:
                awaited.is_stopped = True
                self._handles[worker].stop.remote(awaited.task.attempt)

    def _received(self, worker: int) -> tuple[Any, float] | WorkerLostError:
        awaited = self._awaited[worker]
        try:
            kind, value, seconds = unpacked(ray.get(awaited.ref, timeout=self._timeout))
        except ray.exceptions.RayTaskError as error:
            raise EnvError(f"{self.name(worker)} failed: {error}") from error
        except ray.exceptions.RayError as error:
            self._kill(worker)
            return WorkerLostError(f"{self.name(worker)} is lost: {reason_of(error)}")
        if kind == "error":
            raise EnvError(f"{self.name(worker)} failed: {value}")
        if awaited.task is None:
            return value, seconds
        task, filled, finals, arrays = value
        if task != awaited.task:
            raise DistributionError(
                f"{self.name(worker)} answered for {task}, and was asked for {awaited.task}: nothing of it is used"
            )
        part = self.buffers[awaited.turn].of(self._work.columns[worker])
        for name, array in part.arrays.items():
            if name != "noise":
                array[new_rows(name, task.first, filled, self._memory)] = arrays[name]
        return (filled, finals), seconds

    def end(self, worker: int) -> None:  # noqa: D102 - as in the protocol
        self._kill(worker)
        self._awaited.pop(worker, None)

    def _kill(self, worker: int) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # of one that is gone already
            ray.kill(self._handles[worker], no_restart=True)

    def close(self) -> None:  # noqa: D102 - as in the protocol
        handles, self._handles = self._handles, {}
        if not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):  # those that are lost are gone
            for worker, handle in handles.items():
                awaited = self._awaited.get(worker)
                if awaited is not None and awaited.task is not None:
                    handle.stop.remote(awaited.task.attempt)
            ray.wait([handle.close.remote() for handle in handles.values()] or [ray.put(None)],
                     num_returns=max(1, len(handles)), timeout=SECONDS_TO_CLOSE)  # fmt: skip
        for handle in handles.values():
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(handle, no_restart=True)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Within it, what Ray cannot send is told of with what can be done."""
    try:
        yield
    except ray.exceptions.ObjectStoreFullError as error:
        raise DistributionError(
            "Ray's store of objects is full, and so is the disk that it spills to: give it more "
            "(ray start --object-store-memory), free the disk, or lower num_envs or num_steps"
        ) from error
    except ray.exceptions.RayError as error:
        raise DistributionError(f"Ray failed: {reason_of(error)}") from error


def require_versions(who: str, there: dict[str, str]) -> None:
    """Refuse a worker with other versions than here."""
    if there != (here := versions_here()):
        raise DistributionError(f"{who} has {there}, and the trainer {here}: install the same")


def reason_of(error: Exception) -> str:
    """The one sentence of Ray's many that says what happened."""
    text = str(error)
    for mark in ("Worker exit detail: ", "Death cause: ", "died because "):
        if mark in text:
            text = text.partition(mark)[2]
            break
    return f"{type(error).__name__}: {text.splitlines()[0].partition('. ')[0]}" if text else type(error).__name__
