"""A worker whose work is done in this process until it has started: a training need not wait for it.

Environments whose saved state is known to be all there is of them move by it. Of others, what is done here is written
down, and the worker does it again when it is there: the same resets, and steps by the same actions. So it comes to
where the environments are here, whatever they keep and wherever. Each step's checksum is compared; environments that
do not repeat themselves from a seed stay here, which is said. Either way the worker goes on with the same bits as if it
had been there from the start.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from hybridppo.environments.base import Environments
from hybridppo.errors import EnvError
from hybridppo.rollouts.buffer import FinalObservations
from hybridppo.runners.samplers.stepping import NEVER, Flag, checksum
from hybridppo.runners.workers.processes import Processes
from hybridppo.runners.workers.share import Share, parameters_of
from hybridppo.runners.workers.transport import Work, WorkerLostError

Array = NDArray[Any]

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 16
"""After so many steps it is looked whether the worker is there: where they are slow, it goes on in the same rollout."""
TURNS_TO_CATCH_UP = 3
"""How often the worker may be told of what was done here while more is done; then it is waited for."""
WORKER = 0


class Meanwhile:
    """As `Transport`, of one worker.

    Args:
        work: what it is started for.
        environments: all of them, made in this process and not stepped yet; they are the caller's to close.
        by_state: whether they move by their saved state, if it can be had (`has_all_in_its_state`).
    """

    def __init__(self, work: Work, environments: Environments, *, by_state: bool = False) -> None:
        assert len(work.shares) == 1, "it is for one worker"
        self._processes = Processes(work)
        self.buffers, self.stop = self._processes.buffers, self._processes.stop
        self._work, self._environments, self._by_state = work, environments, by_state
        self._actor_parameters = parameters_of(self._processes.parameters, work.setup["shapes"])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-start-of-worker")
        self._started: Future[None] | None = None
        self._here: Share | None = None
        """What steps the environments in this process; None where the worker does."""
        self._done: list[tuple[str, Any]] = []
        """What was done here, and the worker has not been told of."""
        self._rows = 0
        """Steps among it."""
        self._expected: list[int | None] | None = None
        """Of what it was told and has not answered, the checksums."""
        self._turns = 0
        self._sums: list[int | None] = []
        """Of what is in `_done`."""
        self._stays = False
        """Whether the environments stay here for good."""
        self._owed: tuple[str, Any] | None = None
        """The message to be answered."""

    @property
    def workers(self) -> list[int]:  # noqa: D102 - as in the protocol
        return self._processes.workers

    def start(self, worker: int, env_seed: int) -> None:  # noqa: D102 - as in the protocol
        self._processes.start(worker, env_seed)
        self._started = self._thread.submit(self._processes.wait_until_ready, [worker])
        self._here = Share(self._work.setup, self._work.shares[worker], env_seed, self._environments)

    def wait_until_ready(self, workers: Sequence[int]) -> None:
        """What there is in this process is ready."""

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the protocol
        self._processes.publish(parameters, version)

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the protocol
        if self._has_taken_over():
            self._processes.fill(worker, turn, first, end)
        else:
            self._owed = "fill", (turn, first, end)

    def ask(self, worker: int, kind: str, value: Any) -> None:  # noqa: D102 - as in the protocol
        if self._here is None:
            self._processes.ask(worker, kind, value)
        else:
            self._owed = kind, value

    def answers(self, workers: Sequence[int]) -> Iterator[tuple[int, tuple[Any, float] | WorkerLostError]]:  # noqa: D102
        if self._owed is None:
            yield from self._processes.answers(workers)
            return
        (kind, value), self._owed = self._owed, None
        if kind == "fill":
            yield WORKER, self._fill(*value)
            return
        assert self._here is not None  # which `ask` has seen
        yield WORKER, (self._here.answer(kind, value), 0.0)
        self._note(kind, value, None)

    def end(self, worker: int) -> None:  # noqa: D102 - as in the protocol
        self._processes.end(worker)

    def close(self) -> None:  # noqa: D102 - as in the protocol
        if self._started is not None and not self._started.done():
            self._processes.give_up_starting()
        self._thread.shutdown(wait=True)
        self._processes.close()

    def _fill(self, turn: int, first: int, end: int | None) -> tuple[Any, float] | WorkerLostError:
        """What the worker would answer: filled here, and from where it is there on, by it."""
        buffer = self.buffers[turn]
        last = len(buffer.rewards) if end is None else end
        flag: Flag = self.stop if end is None else NEVER
        finals: FinalObservations = []
        seconds = 0.0
        while first < last:
            if self._has_taken_over():
                self._processes.fill(WORKER, turn, first, end)
                ((_, answer),) = self._processes.answers([WORKER])
                if isinstance(answer, WorkerLostError):
                    return answer
                (first, more), took = answer
                return (first, finals + more), seconds + took
            here = self._here
            assert here is not None  # the worker has not taken over
            before, until = first, min(first + ROWS_AT_ONCE, last)
            first, more = here.fill(buffer, self._actor_parameters, flag, before, until)
            finals += more
            seconds += here.stepper.seconds
            if first > before and not self._stays:
                steps = buffer.actions[before:first].copy(), here.stepper.remembered.copy()
                self._note("steps", steps, checksum(buffer, before, first))
                self._rows += first - before
            if first < until:  # told to stop
                break
        return (first, finals), seconds

    def _note(self, kind: str, value: Any, found: int | None) -> None:
        """Write down what was done here, for the worker to do it again."""
        if not self._stays:
            self._done.append((kind, value))
            self._sums.append(found)

    def _has_taken_over(self) -> bool:
        """Whether the worker steps the environments from now on.

        It is told of what was done here, then of what was done meanwhile, until little is left, and waited for.
        """
        if self._here is None:
            return True
        if self._stays or self._started is None or not self._started.done():
            return False
        self._started.result()  # or why it could not start
        if self._by_state and self._has_moved():
            self._here = None
            self._thread.shutdown()
            return True
        if self._expected is not None and not self._processes.has_answered(WORKER):
            return False
        if not self._has_repeated():
            return False
        is_little = self._rows <= len(self.buffers[0].rewards) or self._turns == TURNS_TO_CATCH_UP
        self._turns += 1
        self._processes.ask(WORKER, "catch_up", self._done)
        self._expected, self._done, self._sums, self._rows = self._sums, [], [], 0
        if not is_little or not self._has_repeated():
            return False
        self._here = None
        self._thread.shutdown()
        return True

    def _has_moved(self) -> bool:
        """Whether the worker has the environments' state; else they have none that can be saved."""
        assert self._here is not None  # the worker has not taken over
        state, not_saved = self._here.answer("state", None)
        if not_saved is not None:
            self._by_state = False
            return False
        self._processes.ask(WORKER, "load_state", state)
        ((_, answer),) = self._processes.answers([WORKER])
        if isinstance(answer, WorkerLostError):
            raise answer
        if answer[0] is not None:
            raise EnvError(f"the environments' state does not fit those of the worker: {answer[0]}")
        return True

    def _has_repeated(self) -> bool:
        """Whether what the worker has done again is what was done here; it is waited for."""
        if self._expected is None:
            return True
        ((_, answer),) = self._processes.answers([WORKER])
        if isinstance(answer, WorkerLostError):
            raise answer
        expected, self._expected = self._expected, None
        if answer[0] == expected:
            return True
        self._stays = True
        self._done, self._sums = [], []
        logger.warning(
            "the environments do not repeat themselves from a seed and the same actions, so the worker process that "
            "was started meanwhile cannot go on where they are: they are stepped in this process, while nothing is "
            "learned. Draw all that is random from self.np_random; or set num_workers=1 (--num-workers 1), which waits "
            "for the worker, or num_workers=0, which samples in a thread"
        )
        return False
