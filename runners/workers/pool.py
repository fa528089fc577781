"""Starts workers, waits for their answers, and finds those that are lost.

Workers are processes of this machine (`local.py`) or actors of Ray's (`hybridppo/distributed/ray_actors.py`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.runners.samplers.stepping import Flag
from hybridppo.runners.workers.transport import SECONDS_TO_START, WorkerLostError, name_of
from hybridppo.spaces.arrays import Array
from hybridppo.system.interruption import give_up_if_stopped


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
        return name_of(self._role, worker, self._shares[worker])

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


class Transport(Pool):
    """A pool that also carries parameters and rollouts, between workers and a sampler."""

    buffers: list[RolloutBuffer]
    """The arrays of rollouts."""
    stop: Flag
    """Set to 1 to stop workers before their next step."""

    @abstractmethod
    def publish(self, parameters: Sequence[Array], version: int) -> None:
        """Publish the actor's parameters for all rows that workers begin from now on."""

    @abstractmethod
    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:
        """Let a worker fill its columns of a buffer from row `first` on; with `end`, it does not stop before that row.

        It answers with a `Filled` (`share.py`). It raises as `ask` does.
        """
