"""A pool of Ray's actors: starts, calls and ends them, and finds those that are lost."""

import contextlib
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from hybridppo.distribution.remote import RemoteActor, versions_here
from hybridppo.environments.pickling import pack
from hybridppo.errors import DistributionError, EnvError
from hybridppo.runners.workers.transport import SECONDS_TO_START, WorkerLostError
from hybridppo.system.interruption import give_up_if_stopped

SECONDS_BETWEEN_LOOKS = 0.1
"""Seconds within which a request to stop is passed on."""
SECONDS_BETWEEN_QUESTIONS = 1.0
"""Seconds between questions to an actor about its progress."""
SECONDS_TO_CLOSE = 5.0
"""Seconds that actors may take to close their environments before they are killed."""


@dataclass
class _Progress:
    """The last progress of an actor."""

    rows: int
    since: float
    question: Any = None
    """The question that it has not answered yet."""
    asked: float = 0.0


class RayPool:
    """Actors by number, on any machine of the cluster, each with one CPU and a share of the environments.

    An actor is lost if Ray says so, or if it has neither answered nor made a step for `timeout` seconds. It is then
    killed, and later answers are ignored. `Losses` decides whether another actor replaces it.

    Args:
        kind: the class of the actors.
        shares: the environments of each actor.
        setup: of the actors.
        timeout: in seconds.
        role: an actor's name in messages.

    Raises:
        DistributionError: if Ray cannot store the setup.
    """

    def __init__(
        self, kind: type[RemoteActor], shares: Sequence[slice], setup: dict[str, Any], timeout: float, role: str
    ) -> None:
        self._shares, self._timeout, self._role = shares, timeout, role
        self._tells_progress = bool(kind.concurrency_groups)
        self._kind = ray.remote(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD",
            concurrency_groups=kind.concurrency_groups or None,
        )(kind)  # fmt: skip
        with explained():
            self._setup = ray.put(pack(setup))
        self._handles: dict[int, Any] = {}
        self._places: dict[int, str] = {}
        """Process and machine of the actors that have begun."""
        self._owed: dict[int, deque[Any]] = {}
        """References to pending answers, in order."""
        self._progress: dict[int, _Progress] = {}
        """Of the actors with pending answers."""
        self._listened = 0.0
        """The time of the last check for answers."""

    @property
    def workers(self) -> list[int]:
        """The numbers of the started actors."""
        return list(self._handles)

    def name(self, worker: int) -> str:
        """An actor for messages, with its process and machine."""
        envs = self._shares[worker]
        return f"{self._role} {worker} (environments {envs.start} to {envs.stop - 1}){self._places.get(worker, '')}"

    def start(self, worker: int, env_seed: int) -> None:
        """Start an actor; its first environment has this seed. It answers when its environments are made."""
        self._places.pop(worker, None)
        self._owed[worker] = deque()
        self._progress.pop(worker, None)
        self._handles[worker] = self._kind.remote()
        path = [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]
        self.call(worker, "begin", self._setup, path, self._shares[worker], env_seed)

    def wait_until_ready(self, workers: Collection[int]) -> None:
        """Wait until the environments of these actors are made.

        Raises:
            WorkerLostError: if an actor is lost.
            Stopped: if a stop was requested.
        """
        for worker, answer in self._answers(workers, max(self._timeout, SECONDS_TO_START), at_start=True):
            if isinstance(answer, WorkerLostError):
                raise answer
            about = answer[0]
            self._places[worker] = f", process {about['pid']} of {about['host']}"
            if about["versions"] != versions_here():
                raise DistributionError(
                    f"{self.name(worker)} has {about['versions']}, and the trainer {versions_here()}: install the same"
                )

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Call a method; `answers` gives its result."""
        with explained():
            self._owed[worker].append(getattr(self._handles[worker], method).remote(*arguments))

    def answers(
        self, workers: Collection[int], *, patience: float | None = None, together: bool = False
    ) -> Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]:
        """The next answer of each actor with its seconds, as they come, or the loss of an actor.

        Args:
            workers: actors with pending answers.
            patience: seconds to wait for the first of them, and then only for those that are there; None for all.
            together: whether all answers are needed at once, which takes fewer waits.

        Raises:
            EnvError: if an actor failed.
        """
        return self._answers(workers, self._timeout, patience=patience, together=together)

    def _answers(
        self,
        workers: Collection[int],
        timeout: float,
        *,
        patience: float | None = None,
        together: bool = False,
        at_start: bool = False,
    ) -> Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]:
        waiting = {self._owed[worker][0]: worker for worker in workers}
        progress = self._progress
        for worker in workers:
            progress.setdefault(worker, _Progress(-1, time.monotonic()))
        self._listen_again()
        seconds = SECONDS_BETWEEN_LOOKS if patience is None else min(patience, SECONDS_BETWEEN_LOOKS)
        while waiting:
            count = len(waiting) if together else 1
            ready, _ = ray.wait(list(waiting), num_returns=count, timeout=seconds)
            if patience is not None:
                ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for ref in ready:
                worker = waiting.pop(ref)
                del progress[worker]
                self._listened = time.monotonic()
                yield worker, self._received(worker)
                self._listen_again()
            self._look_after(waiting.values())
            for ref, worker in list(waiting.items()):
                if at_start:
                    give_up_if_stopped(self.name(worker))
                if self._tells_progress:
                    self._ask_for_progress(worker, progress[worker])
                if time.monotonic() - progress[worker].since > timeout:
                    del waiting[ref]
                    self.end(worker)
                    yield worker, self._silent(worker, progress.pop(worker).rows, timeout)
            self._listened = time.monotonic()
            if patience is not None:
                return

    def _listen_again(self) -> None:
        """Do not count the time since the last check, in which the caller worked on answers."""
        now = time.monotonic()
        for progress in self._progress.values():
            progress.since = min(now, progress.since + now - self._listened)

    def _look_after(self, workers: Collection[int]) -> None:
        """Called from time to time with the actors that have not answered."""

    def _ask_for_progress(self, worker: int, progress: _Progress) -> None:
        now = time.monotonic()
        if progress.question is None:
            if now - progress.asked > min(SECONDS_BETWEEN_QUESTIONS, self._timeout / 4):
                progress.question, progress.asked = self._handles[worker].rows.remote(), now
            return
        if not ray.wait([progress.question], timeout=0)[0]:
            return
        with contextlib.suppress(ray.exceptions.RayError):  # the pending answer will show the loss
            rows = ray.get(progress.question)
            if rows != progress.rows:
                progress.rows, progress.since = rows, now
        progress.question = None

    def _silent(self, worker: int, rows: int, timeout: float) -> WorkerLostError:
        if worker not in self._places:
            has = {name: amount for name, amount in ray.cluster_resources().items() if name == "CPU"}
            return WorkerLostError(
                f"{self.name(worker)} has not begun within {timeout:g} s. Each needs a CPU; the cluster has {has}, of "
                f"which {ray.available_resources().get('CPU', 0):g} are free"
            )
        after = f", after {rows} of its rollout" if rows >= 0 else ""
        return WorkerLostError(
            f"{self.name(worker)} has made no step for {timeout:g} s{after}, or does not answer: a step or a reset "
            "hangs, or is slower than worker_timeout (--worker-timeout) allows, or the network is down"
        )

    def _received(self, worker: int) -> tuple[Any, float] | WorkerLostError:
        try:
            # A busy machine may take a while to fetch an answer.
            answer = ray.get(self._owed[worker].popleft(), timeout=self._timeout)
        except ray.exceptions.RayTaskError as error:
            raise EnvError(f"{self.name(worker)} failed: {error}") from error
        except ray.exceptions.RayError as error:
            self.end(worker)
            return WorkerLostError(f"{self.name(worker)} is lost: {reason_of(error)}")
        kind, value, seconds = pickle.loads(answer) if isinstance(answer, bytes) else answer
        if kind == "error":
            raise EnvError(f"{self.name(worker)} failed: {value}")
        return value, seconds

    def end(self, worker: int) -> None:
        """Kill an actor; its answers are ignored, and `start` may start another in its place."""
        _kill(self._handles[worker])

    def close(self) -> None:
        """Let all actors close their environments, and end them; a second call does nothing."""
        handles, self._handles = self._handles, {}
        if not handles or not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):  # those that are lost are gone
            refs = [handle.close.remote() for handle in handles.values()]
            ray.wait(refs, num_returns=len(refs), timeout=SECONDS_TO_CLOSE)
        for handle in handles.values():
            _kill(handle)


def _kill(handle: Any) -> None:
    with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it has ended
        ray.kill(handle, no_restart=True)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """A context in which Ray's errors become errors that say what to do."""
    try:
        yield
    except ray.exceptions.ObjectStoreFullError as error:
        raise DistributionError(
            "Ray's store of objects is full, and so is the disk that it spills to: give it more "
            "(ray start --object-store-memory), free the disk, or lower num_envs or num_steps"
        ) from error
    except ray.exceptions.RayError as error:
        raise DistributionError(f"Ray failed: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """The sentence of Ray's error that says what happened."""
    text = str(error)
    for mark in ("Worker exit detail: ", "Death cause: ", "died because "):
        if mark in text:
            text = text.partition(mark)[2]
            break
    return f"{type(error).__name__}: {text.splitlines()[0].partition('. ')[0]}" if text else type(error).__name__
