"""Workers in Ray actors: starts and ends them, and carries messages to and from them."""

import contextlib
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import ray.exceptions

from hybridppo.distributed.remote import RemoteActor, Servant, versions_here
from hybridppo.environments.pickling import ALONE, pack
from hybridppo.errors import DistributedError, EnvError
from hybridppo.runners.processes import Pool, WorkerLostError

SECONDS_BETWEEN_QUESTIONS = 1.0
"""Seconds between questions to an actor about its progress."""
SECONDS_TO_CLOSE = 5.0
"""Seconds that actors may take to close their environments before they are killed."""


class Actors(Pool):
    """Actors on any machine of the cluster, each with one CPU and a share of the environments.

    Args:
        kind: the work of the actors.
        role: the name of an actor in messages.
        shares: the environments of each actor.
        setup: the setup of all actors.
        timeout: seconds without an answer or a step after which an actor is lost.

    Raises:
        DistributedError: if Ray cannot store the setup.
    """

    seconds_between_looks = 0.1
    """Seconds within which a request to stop is passed on."""
    asks_for_rows = True

    def __init__(
        self, kind: type[Servant], role: str, shares: Sequence[slice], setup: dict[str, Any], timeout: float
    ) -> None:
        super().__init__(role, shares, timeout)
        self._kind = ray.remote(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD",
            concurrency_groups={"control": 1},
        )(RemoteActor)  # fmt: skip
        with explained():
            self._setup = ray.put(pack({**setup, "kind of servant": kind}, ALONE))
        self._handles: dict[int, Any] = {}
        self._places: dict[int, str] = {}
        """Process and machine of each actor that has started."""
        self._owed: dict[int, deque[Any]] = {}
        """References to pending answers, in order."""
        self._rows: dict[int, int] = {}
        """The last known progress of the actors with pending answers."""
        self._questions: dict[int, tuple[Any, float]] = {}
        """The last question of each actor about its progress, None if it is answered, and the time it was asked."""

    @property
    def workers(self) -> list[int]:  # noqa: D102 - as in the base
        return list(self._handles)

    def name(self, worker: int) -> str:
        """An actor for messages, with its process and machine."""
        return super().name(worker) + self._places.get(worker, "")

    def start(self, worker: int, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._places.pop(worker, None)
        self._owed[worker] = deque()
        self._forget_progress(worker)
        self._handles[worker] = self._kind.remote()
        path = [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]
        self._call(worker, "begin", self._setup, path, self._shares[worker], env_seed)

    def ask(self, worker: int, kind: str, value: Any) -> None:
        """As in the base. Ray searches any value but bytes; only users' objects may need Ray's own pickling."""
        self._call(worker, "answer", (kind, value) if kind == "steer" else pickle.dumps((kind, value)))

    def _call(self, worker: int, method: str, *arguments: Any) -> None:
        with explained():
            self._owed[worker].append(getattr(self._handles[worker], method).remote(*arguments))

    def tell(self, worker: int, kind: str, value: Any) -> None:
        """Send a message without an answer, which is also received during a call."""
        self._handles[worker].tell.remote(kind, value)

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:  # noqa: D102 - as in the base
        by_ref = {self._owed[worker][0]: worker for worker in workers}
        ready, others = ray.wait(list(by_ref), num_returns=len(by_ref) if together else 1, timeout=seconds)
        if ready and others and not together:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        return [by_ref[ref] for ref in ready]

    def receive(self, worker: int) -> tuple[Any, float]:  # noqa: D102 - as in the base
        self._forget_progress(worker)
        try:
            # A busy machine may take a while to fetch an answer. Ray takes no infinite limit.
            answer = ray.get(self._owed[worker].popleft(), timeout=min(self._timeout, 10.0**6))
        except ray.exceptions.RayTaskError as error:
            raise EnvError(f"{self.name(worker)} failed: {error}") from error
        except ray.exceptions.RayError as error:
            self.kill(worker)
            raise WorkerLostError(f"{self.name(worker)} is lost: {reason_of(error)}") from error
        kind, value, seconds = pickle.loads(answer) if isinstance(answer, bytes) else answer
        if kind == "error":
            raise EnvError(f"{self.name(worker)} failed: {value}")
        if worker not in self._places:
            self._places[worker] = f", process {value['pid']} of {value['host']}"
            if value["versions"] != versions_here():
                raise DistributedError(
                    f"{self.name(worker)} has {value['versions']}, and the trainer {versions_here()}: install the same"
                )
        return value, seconds

    def rows(self, worker: int) -> int:
        """As in the base; the actor is asked from time to time."""
        question, asked = self._questions.get(worker, (None, 0.0))
        if question is None:
            now = time.monotonic()
            if now - asked > min(SECONDS_BETWEEN_QUESTIONS, self._timeout / 4):
                self._questions[worker] = self._handles[worker].rows.remote(), now
        elif ray.wait([question], timeout=0)[0]:
            with contextlib.suppress(ray.exceptions.RayError):  # the pending answer will show the loss
                self._rows[worker] = ray.get(question)
            self._questions[worker] = None, asked
        return self._rows.get(worker, -1)

    def _forget_progress(self, worker: int) -> None:
        self._rows.pop(worker, None)
        self._questions.pop(worker, None)

    def silence(self, worker: int, rows: int, timeout: float) -> str:  # noqa: D102 - as in the base
        if worker not in self._places:
            has = {name: amount for name, amount in ray.cluster_resources().items() if name == "CPU"}
            return (
                f"has not begun within {timeout:g} s. Each needs a CPU; the cluster has {has}, of which "
                f"{ray.available_resources().get('CPU', 0):g} are free"
            )
        after = f", after {rows} of its rollout" if rows >= 0 else ""
        return (
            f"has made no step for {timeout:g} s{after}, or does not answer: a step or a reset hangs, or is slower "
            "than worker_timeout (--worker-timeout) allows, or the network is down"
        )

    def kill(self, worker: int) -> None:  # noqa: D102 - as in the base
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
    """A context in which Ray's errors become errors with a remedy."""
    try:
        yield
    except ray.exceptions.ObjectStoreFullError as error:
        raise DistributedError(
            "Ray's store of objects is full, and so is the disk that it spills to: give it more "
            "(ray start --object-store-memory), free the disk, or lower num_envs or num_steps (train_frequency of DDPG "
            "and TD3)"
        ) from error
    except ray.exceptions.RayError as error:
        raise DistributedError(f"Ray failed: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """The sentence of Ray's error that says what happened."""
    text = str(error)
    for mark in ("Worker exit detail: ", "Death cause: ", "died because "):
        if mark in text:
            text = text.partition(mark)[2]
            break
    return f"{type(error).__name__}: {text.splitlines()[0].partition('. ')[0]}" if text else type(error).__name__
