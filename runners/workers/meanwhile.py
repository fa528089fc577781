"""A worker whose work is done in this process until it has started: a training need not wait for it.

It then goes on where the environments are here, which it takes over by their saved state: with the same bits as if it
had been there from the start. So this is for environments whose saved state is known to be all there is of them.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from hybridppo.environments.base import Environments
from hybridppo.errors import EnvError
from hybridppo.rollouts.buffer import FinalObservations
from hybridppo.runners.samplers.stepping import NEVER, Flag
from hybridppo.runners.workers.processes import Processes
from hybridppo.runners.workers.share import Share, parameters_of
from hybridppo.runners.workers.transport import Work, WorkerLostError

Array = NDArray[Any]

ROWS_AT_ONCE = 16
"""After so many steps it is looked whether the worker is there: it may go on in the middle of a rollout."""
WORKER = 0


class Meanwhile:
    """As `Transport`, of one worker.

    Args:
        work: what it is started for.
        environments: all of them, made in this process and not stepped yet; closed when the worker takes over. The
            caller closes them, too.
    """

    def __init__(self, work: Work, environments: Environments) -> None:
        assert len(work.shares) == 1, "it is for one worker"
        self._processes = Processes(work)
        self.buffers, self.stop = self._processes.buffers, self._processes.stop
        self._work, self._environments = work, environments
        self._actor_parameters = parameters_of(self._processes.parameters, work.setup["shapes"])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-start-of-worker")
        self._started: Future[None] | None = None
        self._here: Share | None = None
        """What steps the environments in this process; None where the worker does."""
        self._owed: tuple[str, Any] | None = None
        """The message to be answered here."""

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
        else:
            assert self._here is not None  # which `ask` has seen
            yield WORKER, (self._here.answer(kind, value), 0.0)

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
            until = min(first + ROWS_AT_ONCE, last)
            first, more = here.fill(buffer, self._actor_parameters, flag, first, until)
            finals += more
            seconds += here.stepper.seconds
            if first < until:  # told to stop
                break
        return (first, finals), seconds

    def _has_taken_over(self) -> bool:
        """Whether the worker steps the environments from now on; as soon as it is there, it is given their state."""
        if self._here is None:
            return True
        if self._started is None or not self._started.done():
            return False
        self._started.result()  # or why it could not start
        state, not_saved = self._here.answer("state", None)
        if not_saved is None:
            self._processes.ask(WORKER, "load_state", state)
            ((_, answer),) = self._processes.answers([WORKER])
            if isinstance(answer, WorkerLostError):
                raise answer
            not_saved = answer[0]
        if not_saved is not None:
            raise EnvError(
                f"the worker process cannot go on where the environments are: {not_saved}. Set num_workers=1 "
                "(--num-workers 1), which has them there from the start"
            )
        self._here = None
        self._thread.shutdown()
        self._environments.close()
        return True
