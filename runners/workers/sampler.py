"""Sampling in workers that fill a rollout together."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from hybridppo.distributions.base import Distribution
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvSource
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.workers.slowest import SlowestWorker
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.runners.workers.workers import Workers


class WorkerSampler(BaseSampler):
    """Each worker fills its columns of a rollout; the rollout is complete when the slowest has done so.

    Args:
        source: as for `Workers`.
        template: as for `Workers`.
        distribution: distribution of the actions.
        network: as for `Workers`.
        noise: generator of the actions' randomness.
        discounts: as for `BaseSampler`.
        **options: as for `Workers`.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        distribution: Distribution,
        network: nn.Module,
        *,
        noise: np.random.Generator,
        discounts: Any = None,
        **options: Any,
    ) -> None:
        self._first: int | None = None
        """The row from which workers fill the rollout under way; None if they do not."""
        self._replaced: set[int] = set()
        """Workers that were lost since, whose rows do not count."""
        workers = self._workers = self._stepper = Workers(
            source, template, distribution, network, self._forget, **options
        )
        stop, buffers = workers.pool.stop, workers.pool.buffers
        memory = options.get("memory")
        super().__init__(workers, stop, buffers, distribution, noise=noise, memory=memory, discounts=discounts)
        self._slowest = SlowestWorker(workers.work)
        self._turn_begun = 0

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        workers = self._workers
        workers.publish(actor)
        self._turn_begun = next(i for i, mine in enumerate(self._buffers) if mine is buffer)
        for worker in workers.pool.workers:
            if not workers.fill(worker, self._turn_begun, first):
                workers.pool.fill(worker, self._turn_begun, first)
        self._first = first

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        workers, pool = self._workers, self._workers.pool
        assert self._first is not None, "no rollout was begun"
        first = self._first
        answers: dict[int, tuple[int, FinalObservations]] = {}
        seconds = [0.0] * len(workers.columns)

        def wait_for(numbers: Sequence[int]) -> None:
            for worker, answer in pool.answers(numbers):
                if isinstance(answer, WorkerLostError):
                    workers.replace(worker, answer)
                else:
                    filled, took = answer
                    answers[worker] = filled.rows, answers.get(worker, (0, []))[1] + filled.finals
                    seconds[worker] += took
                    if filled.infos is not None:
                        workers.infos.append(filled.infos)

        wait_for(pool.workers)
        filled = max((rows for rows, _ in answers.values()), default=self.num_steps)
        # Workers that were stopped continue to the row of the one that is ahead.
        behind = {worker: rows for worker, (rows, _) in answers.items() if rows < filled}
        for worker, rows in behind.items():
            with contextlib.suppress(WorkerLostError):  # `answers` returns it
                pool.fill(worker, self._turn_begun, rows, filled)
        wait_for(list(behind))
        replaced, self._replaced, self._first = self._replaced, set(), None
        for worker in replaced:
            self._drop(worker, first, filled)
        for worker in answers.keys() - replaced:
            workers.losses.end_row(worker)
        self.seconds_filling = max(seconds)
        self._slowest.add(seconds)
        finals = [
            (step, workers.columns[worker].start + env, observation)
            for worker, (_, part) in answers.items()
            if worker not in replaced
            for step, env, observation in part
        ]
        return filled, sorted(finals, key=lambda final: final[:2])  # in the order of one process

    def _forget(self, worker: int) -> None:
        """Drop the rows and the unfinished episodes of a worker that was lost."""
        if self._first is not None:
            self._replaced.add(worker)  # when it is known how many rows there are
            return
        done = self._under_way.filled if self._under_way is not None else 0
        self._drop(worker, done, done)

    def _drop(self, worker: int, first: int, end: int) -> None:
        """Drop what a lost worker wrote to rows `first` to `end`, and the episodes that it was in."""
        columns = self._workers.columns[worker]
        if end == 0:  # the rollout had no rows yet
            self.drop_running(columns)
            self.env_restarts += (columns.stop - columns.start) // self._num_agents
            return
        part = self._buffers[self._turn_begun].of(columns)
        for array in (
            part.outputs, part.actions, part.rewards, part.terminated, part.truncated, part.restarted, part.absent,
            part.waiting,
        ):  # fmt: skip
            array[first:end] = 0
        if part.starts is not None:
            part.starts[first:end] = False
        part.observations[first + 1 if first else 0 : end + 1] = 0
        part.restarted[end - 1] += 1
