"""Starts workers, waits for their answers, and finds those that are lost.

Where workers run and how messages reach them is a matter of their `Connections`: processes of this machine
(`local.py`) or actors of Ray's.
"""

import time
from collections.abc import Collection, Iterator
from typing import Any

from hybridppo.runners.workers.transport import SECONDS_TO_START, Connections, WorkerLostError
from hybridppo.system.interruption import give_up_if_stopped


class Pool:
    """Workers by number, each with some of the environments.

    A worker is lost if its process ends, or if it has neither answered nor made a step for `worker_timeout`. It is then
    reported as a `WorkerLostError` where its answer is waited for. The caller decides whether another replaces it.

    Args:
        connections: to the workers.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._progress: dict[int, tuple[int, float]] = {}
        """For each worker that owes an answer: its number of rows, and when that last changed."""
        self._listened = 0.0
        """The time of the last check for answers."""

    @property
    def workers(self) -> list[int]:
        """The numbers of the started workers."""
        return list(self._connections.workers)

    def name(self, worker: int) -> str:
        """A worker, for messages."""
        return self._connections.name(worker)

    def start(self, worker: int, env_seed: int) -> None:
        """Start a worker, whose first environment gets this seed. See `wait_until_ready`."""
        self._progress.pop(worker, None)
        self._connections.start(worker, env_seed)

    def wait_until_ready(self, workers: Collection[int]) -> None:
        """Wait until started workers have made their environments.

        Raises:
            WorkerLostError: if one of them is lost meanwhile.
            Stopped: if a stop was requested.
        """
        for worker in workers:
            self._connections.connect(worker, self._timeout(at_start=True))
        for _, answer in self.answers(workers, at_start=True):
            if isinstance(answer, WorkerLostError):
                raise answer
        self._connections.all_ready()

    def ask(self, worker: int, kind: str, value: Any) -> None:
        """Send a message, which is answered; messages are answered in their order.

        Raises:
            WorkerLostError: if it is known to be lost.
            EnvError: if it has died of an error, which it had sent before.
        """
        self._connections.send(worker, (kind, value))

    def answers(
        self, workers: Collection[int], *, patience: float | None = None, together: bool = False, at_start: bool = False
    ) -> "Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]":
        """Each worker's next answer and the seconds that it took, as they come; or how the worker was lost.

        Args:
            workers: those that owe an answer.
            patience: seconds to wait for the first answer, and then only for those that are there; None to wait for
                all.
            together: whether all answers are needed at once, which takes fewer waits.
            at_start: whether they make their environments.

        Raises:
            EnvError: if a worker failed.
        """
        connections, progress, waiting = self._connections, self._progress, list(workers)
        timeout = self._timeout(at_start)
        seconds = min(connections.seconds_between_looks, timeout / 4)
        if patience is not None:
            seconds = min(seconds, patience)
        for worker in waiting:
            progress.setdefault(worker, (-1, time.monotonic()))
        self._listen_again(self._listened)
        while waiting:
            for worker in connections.wait(waiting, seconds, together):
                waiting.remove(worker)
                progress.pop(worker, None)
                self._listened = listened = time.monotonic()
                yield worker, self._received(worker)  # the caller may wait for another worker meanwhile
                self._listen_again(listened)
            now = time.monotonic()
            for worker in list(waiting):
                if at_start:
                    give_up_if_stopped(self.name(worker))
                rows, (rows_before, since) = connections.rows(worker), progress[worker]
                if rows != rows_before:
                    progress[worker] = rows, now
                elif now - since > timeout and not connections.wait([worker], 0.0, together=False):
                    waiting.remove(worker)
                    del progress[worker]
                    lost = WorkerLostError(f"{self.name(worker)} {connections.silence(worker, rows, timeout)}")
                    self.end(worker)
                    yield worker, lost
            self._listened = time.monotonic()
            if patience is not None:
                return

    def _timeout(self, at_start: bool) -> float:
        return max(self._connections.timeout, SECONDS_TO_START if at_start else 0.0)

    def _listen_again(self, listened: float) -> None:
        """Do not count the time since `listened` if rows are only known from answers to questions in it."""
        if self._connections.asks_for_rows:
            now = time.monotonic()
            for worker, (rows, since) in self._progress.items():
                self._progress[worker] = rows, min(now, since + now - listened)

    def _received(self, worker: int) -> "tuple[Any, float] | WorkerLostError":
        try:
            return self._connections.receive(worker)
        except WorkerLostError as lost:
            return lost

    def end(self, worker: int) -> None:
        """End a lost worker, of which no answer comes any more; `start` then starts another in its place."""
        self._connections.kill(worker)

    def close(self) -> None:
        """End all of them; a second call does nothing."""
        self._connections.close()
